"""The JSON of an Iceberg change: refused before it is appended where no log could go on from it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any, NoReturn

from commitlog.core.iceberg.defaults import check_defaults
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.reading import Node, dump_json, load_json
from commitlog.core.iceberg.schemas import primitive, read_schema
from commitlog.errors import InvalidTransaction
from commitlog.model.operations import IcebergChange
from commitlog.model.table import parse_table_id

_MAY_OVERFLOW = re.compile(rb"[0-9][eE]\+?[0-9]{3}|(?<![0-9.])[0-9.]{200}")
"""How JSON may write a number that is more than a 64-bit float holds; few texts have that."""
_SHOWN_CHARACTERS = 40


class _TooLarge(Exception):
    pass


def number_problem(data: bytes) -> str:
    """Return which number of a JSON text is too large for a float, empty if none is.

    Python reads it as infinity, which JSON has no word for.
    """
    if not _MAY_OVERFLOW.search(data):
        return ""
    try:
        json.loads(data, parse_float=_finite)
    except _TooLarge as error:
        return str(error)
    except (ValueError, RecursionError):
        return ""  # it isn't JSON: who reads it says so
    return ""


def checked_change(change: IcebergChange) -> IcebergChange:
    """Return a change with the type names that everybody reads.

    Raises:
        InvalidTransaction: it isn't of a table's name and two JSON texts.
    """
    if not isinstance(change.table, tuple):
        _refuse("table", "must be a tuple of names", change.table)
    parse_table_id(change.table)
    read: dict[str, Any] = {}
    for name in ("requirements", "updates"):
        text = getattr(change, name)
        if not isinstance(text, str):
            _refuse(name, "must be JSON text", text)
        try:
            read[name] = load_json(text, name, is_sent=True)
        except Invalid as error:
            raise InvalidTransaction(str(error), field=name) from error
        if problem := number_problem(text.encode(errors="replace")):
            _refuse(name, problem, None)
    named = load_json(change.updates, "updates")
    with_type_names({"updates": named})
    # A text that needs no change stays as it is: a repetition is known by it.
    return change if named == read["updates"] else replace(change, updates=dump_json(named))


def with_type_names(body: Any) -> Any:
    """Return a request whose schemas name types as Iceberg's Java library does; it is changed.

    That takes them in any case, and its catalogue keeps `STRING` as `string`. The specification has
    no other names, and pyiceberg reads none. What isn't well-formed stays as it is.
    """
    if isinstance(body, dict):
        _named(body.get("schema"))
        for name in ("updates", "table-changes"):
            for one in _items(body.get(name)):
                with_type_names(one)
    return body


def check_view_schema(update: Node) -> dict[str, Any]:
    """Return the schema that a request gives a view; Invalid if Java couldn't read it."""
    schema = read_schema(update.member("schema"))
    check_defaults(update.member("schema"))
    return schema


def check_view_updates(updates: Node) -> None:
    """Refuse schemas that Java couldn't read; the rest is checked where it is decided."""
    for update in updates.items():
        if str(update.member("action").value).lower() == "add-schema":
            check_view_schema(update)


def _named(kind: Any) -> Any:
    if isinstance(kind, str):
        return primitive(kind) or kind
    if isinstance(kind, dict):
        for field in _items(kind.get("fields")):
            if isinstance(field, dict) and "type" in field:
                field["type"] = _named(field["type"])
        for part in {"element", "key", "value"}.intersection(kind):
            kind[part] = _named(kind[part])
    return kind


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _TooLarge(f"the number {text[:_SHOWN_CHARACTERS]} is more than a 64-bit float holds")
    return value


def _refuse(name: str, problem: str, value: object) -> NoReturn:
    raise InvalidTransaction(f"{name}: {problem}", field=name, value=value)
