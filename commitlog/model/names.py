"""Names and texts that every part of the system can carry.

Native code ends a name at its first NUL: Lance panics when it exports such a column, and one of
its panics ends the process. Text with a lone surrogate cannot be encoded at all. A control
character in a path is refused by Lance's stores, and a terminal obeys it. So the client and the
servers refuse such names before they append anything, and the machine refuses them again, since
a record may come from anywhere.

Whether a table of a given name can be created is one question; whether an old one can still be
addressed is another. These rules are for new names only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from commitlog.errors import InvalidTransaction
from commitlog.model.limits import (
    COLUMN_BYTES_MAX,
    KEY_BYTES_MAX,
    LOCATION_BYTES_MAX,
    LOCATION_PART_BYTES_MAX,
    NAME_PARTS_MAX,
    NAME_PARTS_SINCE,
    PROTOCOL_SUPPORTED,
)
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    CreateTable,
    DeclareTable,
    IcebergChange,
    Operation,
    Properties,
    RegisterTable,
    RenameTable,
)
from commitlog.model.reasons import Phrase, cut
from commitlog.model.table import (
    DELIMITER,
    LONE_SURROGATE,
    PART_LENGTH_MAX,
    TableId,
    format_table_id,
)
from commitlog.words import say

RESERVED = "commitlog."
"""How properties begin that mean something to the log."""
REASON = "commitlog.maintenance"
"""In a transaction's properties: why maintenance submitted it."""
ROWS_EXPIRED_THROUGH = "commitlog.rows.expired-through"
"""A table's property: the position through which the rows of applied writes have left the log."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ESCAPED = re.compile(r"\\u00([2-7][0-9a-fA-F])")
_RESERVED_COLUMNS = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)


class NameProblem(NamedTuple):
    """A name that something on its way can't carry."""

    field: str
    """What it names: `column`, `table`, `location`, `properties`."""
    value: str
    problem: Phrase

    @property
    def phrase(self) -> Phrase:
        """What is wrong, whole."""
        named = {"what": self.field, "name": cut(self.value), "problem": self.problem}
        return Phrase("name_unusable", named)

    def error(self) -> InvalidTransaction:
        """Return what a caller of the client gets."""
        return InvalidTransaction(say(self.phrase), field=self.field, value=self.value)


def text_problem(text: str) -> Phrase | None:
    """Return why a text can't be encoded, None if it can."""
    return Phrase("name_surrogate") if LONE_SURROGATE.search(text) else None


def _no_nul(text: str, bytes_max: int) -> Phrase | None:
    if "\0" in text:
        return Phrase("name_nul")
    problem = text_problem(text)
    if not problem and len(text.encode()) > bytes_max:
        problem = Phrase("name_too_long", {"bytes_max": bytes_max})
    return problem


def key_problem(key: str) -> Phrase | None:
    """Return what is wrong with a key of metadata, config or properties; None if nothing."""
    return _no_nul(key, KEY_BYTES_MAX)


def principal_problem(name: str) -> Phrase | None:
    """Return what is wrong with a writer's name, None if nothing: terminals show it."""
    return Phrase("name_control") if _CONTROL.search(name) else key_problem(name)


def column_problem(name: str, *, is_nested: bool = False) -> Phrase | None:
    """Return what is wrong with a column's name, None if nothing.

    A top-level column is named in Lance's plans, where dots and backticks have a meaning.
    """
    problem = _no_nul(name, COLUMN_BYTES_MAX)
    if problem or is_nested:
        return problem
    if not name:
        return Phrase("name_empty")
    if "." in name or "`" in name:
        return Phrase("name_dotted")
    return Phrase("name_reserved") if name in _RESERVED_COLUMNS else None


def part_problem(part: str) -> Phrase | None:
    """Return what is wrong with a part of a table's or namespace's name, None if nothing."""
    if not part or part in {".", ".."}:
        return Phrase("name_of_dots")
    if "/" in part or "\\" in part or DELIMITER in part:
        return Phrase("name_separated")
    if _CONTROL.search(part):
        return Phrase("name_control")
    if len(part) > PART_LENGTH_MAX:
        return Phrase("part_too_long", {"characters_max": PART_LENGTH_MAX})
    return text_problem(part)


def label_problem(name: str) -> Phrase | None:
    """Return what is wrong with the name of a tag, a branch or an index; None if nothing."""
    return Phrase("name_control") if _CONTROL.search(name) else _no_nul(name, KEY_BYTES_MAX)


def location_problem(location: str) -> Phrase | None:
    """Return why Lance can't keep a table at a location, None if it can."""
    if _CONTROL.search(location):
        return Phrase("name_control")
    if problem := _no_nul(location, LOCATION_BYTES_MAX):
        return problem
    if any(len(part.encode()) > LOCATION_PART_BYTES_MAX for part in location.split("/")):
        return Phrase("location_part_too_long", {"bytes_max": LOCATION_PART_BYTES_MAX})
    return None


_Check = Callable[[str], Phrase | None]


def first_problem(field: str, names: Iterable[str], check: _Check) -> NameProblem | None:
    """Return the first problem among names of one kind, None if there is none."""
    for name in names:
        if problem := check(name):
            return NameProblem(field, name, problem)
    return None


def path_problem(field: str, path: TableId, protocol: int) -> NameProblem | None:
    """Return what is wrong with the name of a new table or namespace, None if nothing."""
    if len(path) > NAME_PARTS_MAX and protocol >= NAME_PARTS_SINCE:
        parts = {"parts": len(path), "parts_max": NAME_PARTS_MAX}
        return NameProblem(field, format_table_id(path), Phrase("name_too_deep", parts))
    return first_problem(field, path, part_problem)


def problem_of(operation: Operation, protocol: int = PROTOCOL_SUPPORTED) -> NameProblem | None:
    """Return what is wrong with the names that a catalogue operation brings, None if nothing.

    What it only refers to may have any name: a table that has a bad one must be droppable.
    """
    if isinstance(operation, CreateTable | DeclareTable | RegisterTable):
        return (
            path_problem("table", operation.table, protocol)
            or first_problem("location", (operation.location,), location_problem)
            or properties_problem(operation.properties)
        )
    if isinstance(operation, RenameTable):
        return path_problem("table", operation.new_table, protocol)
    if isinstance(operation, CreateNamespace):
        return path_problem("namespace", operation.namespace, protocol) or properties_problem(
            operation.properties
        )
    if isinstance(operation, AlterProperties):
        return properties_problem(operation.upserts)
    if isinstance(operation, IcebergChange) and _makes_name(operation.requirements, protocol):
        return path_problem("table", operation.table, protocol)
    return None


def _makes_name(requirements: str, protocol: int) -> bool:
    """Return True if a change with these requirements, which are JSON, makes a table or a view.

    Types are spelled in any case, and JSON may spell each letter as an escape.
    """
    if protocol < NAME_PARTS_SINCE:
        return "assert-create" in requirements
    spelled = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), requirements).lower()
    return "assert-create" in spelled or '"assert-view-create"' in spelled


def properties_problem(properties: Properties) -> NameProblem | None:
    """Return what is wrong with the keys and values of properties, None if nothing."""
    if not properties:
        return None
    keys, values = (key for key, _ in properties), (value for _, value in properties)
    return first_problem("properties", keys, key_problem) or first_problem(
        "properties", values, text_problem
    )
