"""Which values of one column the rows of a predicate must have.

It is known only of predicates that begin with a comparison of a column of integers or text with
literals of its kind, and of nothing that could hold for other rows. What is found narrows Lance's
search and doesn't replace it: Lance evaluates the whole predicate over the rows that have these
values.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pyarrow as pa
from pyarrow import types

CHARACTERS_MAX = 1 << 20
_LITERAL = r"-?[0-9]{1,19}|'(?:[^'\\]|'')*'"
_COMPARISON = re.compile(
    rf"""\s* (?: `(?P<quoted>\w+)` | (?P<plain>[A-Za-z]\w*) )
    \s* (?: = \s* (?P<one>{_LITERAL})
        | \b IN \s* \( \s* (?P<many>(?:{_LITERAL}) (?: \s*,\s* (?:{_LITERAL}) )*) \s* \) )
    \s* (?P<more> \b AND \b [^()]* )? $""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL | re.ASCII,
)
_LITERALS = re.compile(_LITERAL)
_OTHERWISE = re.compile(r"\bor\b|--|/\*", re.IGNORECASE)
"""With an OR, other rows may fulfil a predicate; a comment would hide what is put behind it."""
_VALUES = re.compile(r"current_|local|session_|true|false|null|user", re.IGNORECASE)
"""What begins the words that SQL takes for a value of its own, though a column is called so."""


class Comparison(NamedTuple):
    """A column, and the values of which each row of a predicate has one."""

    column: str
    values: pa.Array
    is_all: bool
    """Whether the predicate says nothing else."""


def comparison(predicate: str, schema: pa.Schema) -> Comparison | None:
    """Return what a predicate begins with; None: it isn't known what it asks of a column."""
    found = _COMPARISON.match(predicate) if len(predicate) <= CHARACTERS_MAX else None
    if found is None or _OTHERWISE.search(found["more"] or ""):
        return None
    name = found["quoted"] or found["plain"]
    # Lance may take a name in another case.
    alike = [one for one in schema.names if one.lower() == name.lower()]
    if alike != [name] or (found["plain"] and _VALUES.match(name)):
        return None
    values = _values(_LITERALS.findall(found["one"] or found["many"]), schema.field(name).type)
    return None if values is None else Comparison(name, values, found["more"] is None)


def _values(literals: list[str], kind: pa.DataType) -> pa.Array | None:
    are_text = [one.startswith("'") for one in literals]
    try:
        if all(are_text) and (types.is_string(kind) or types.is_large_string(kind)):
            return pa.array([one[1:-1].replace("''", "'") for one in literals], kind)
        if not any(are_text) and types.is_integer(kind):
            return pa.array(list(map(int, literals)), kind)
    except (pa.ArrowInvalid, OverflowError):
        pass  # an integer that the column can't hold
    return None
