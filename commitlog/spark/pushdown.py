"""Spark's filters as Lance's SQL, for those that mean the same in both.

A filter that is not translated stays with Spark, so leaving one out is always right.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

IN_MAX = 1000
"""Longer lists are left to Spark."""
_COMPARISONS: dict[type, str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


def to_sql(wanted: Filter, columns: Sequence[str]) -> str:
    """Return the predicate in SQL, empty if Lance is not to judge it."""
    if isinstance(wanted, Not):
        inner = to_sql(wanted.child, columns)
        # NOT of a comparison with null is null in both, so such rows are left out by both.
        return f"(NOT {inner})" if inner else ""
    attribute: tuple[str, ...] = getattr(wanted, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in columns or "`" in attribute[0]:
        return ""
    name = f"`{attribute[0]}`"
    if isinstance(wanted, IsNull):
        return f"({name} IS NULL)"
    if isinstance(wanted, IsNotNull):
        return f"({name} IS NOT NULL)"
    if isinstance(wanted, In):
        values = [literal(value) for value in wanted.value]
        usable = 0 < len(values) <= IN_MAX and all(values)
        return f"({name} IN ({', '.join(values)}))" if usable else ""
    if isinstance(wanted, StringStartsWith):
        return f"(starts_with({name}, {literal(wanted.value)}))"
    comparison = _COMPARISONS.get(type(wanted))
    value = literal(getattr(wanted, "value", None))
    return f"({name} {comparison} {value})" if comparison and value else ""


def literal(value: Any) -> str:
    """Return a value as a SQL literal, empty if it has none that surely means the same.

    Floats have none: the two disagree about signed zeros and about NaN.
    """
    for kind, write in _LITERALS:
        if isinstance(value, kind):
            return write(value)
    return ""


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _instant(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return ""
    at = value.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return f"timestamp '{at}'"


_LITERALS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (bool, lambda value: "true" if value else "false"),
    (int, repr),
    (str, _text),
    (dt.datetime, _instant),
    (dt.date, lambda value: f"date '{value.isoformat()}'"),
)
