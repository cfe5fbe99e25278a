"""Spark's filters as Lance's SQL, for those that mean the same in both.

Spark compares what it reads, Lance what the column has. So Lance compares only in columns whose
values Spark reads unchanged. A filter that is not translated stays with Spark, so leaving one out
is always right.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import types
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


def to_sql(wanted: Filter, columns: Mapping[str, pa.DataType]) -> str:
    """Return the predicate in SQL, empty if Lance is not to judge it; `columns` are the table's."""
    if isinstance(wanted, Not):
        inner = to_sql(wanted.child, columns)
        # NOT of a comparison with null is null in both, so such rows are left out by both.
        return f"(NOT {inner})" if inner else ""
    attribute: tuple[str, ...] = getattr(wanted, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in columns or "`" in attribute[0]:
        return ""
    name, kind = f"`{attribute[0]}`", columns[attribute[0]]
    if isinstance(wanted, IsNull):
        return f"({name} IS NULL)"
    if isinstance(wanted, IsNotNull):
        return f"({name} IS NOT NULL)"
    if isinstance(wanted, In):
        values = [literal(value, kind) for value in wanted.value]
        usable = 0 < len(values) <= IN_MAX and all(values)
        return f"({name} IN ({', '.join(values)}))" if usable else ""
    value = literal(getattr(wanted, "value", None), kind)
    if isinstance(wanted, StringStartsWith):
        return f"(starts_with({name}, {value}))" if value else ""
    comparison = _COMPARISONS.get(type(wanted))
    return f"({name} {comparison} {value})" if comparison and value else ""


def literal(value: Any, kind: pa.DataType) -> str:
    """Return a value as a SQL literal for a column's type, empty if none surely means the same.

    Floats have none: the two disagree about signed zeros and about NaN.
    """
    for python, fits, write in _LITERALS:
        if isinstance(value, python):
            return write(value) if fits(value, kind) else ""
    return ""


def _is_in_range(value: int, kind: pa.DataType) -> bool:
    if not types.is_integer(kind):
        return False
    # Spark reads unsigned integers as wider ones. Lance takes the lowest number of 64 bits for a
    # float, so the lowest of each type is left out.
    if types.is_unsigned_integer(kind):
        return bool(0 <= value < 2**kind.bit_width)
    return bool(abs(value) < 2 ** (kind.bit_width - 1))


def _is_text(_: str, kind: pa.DataType) -> bool:
    plain = kind.value_type if types.is_dictionary(kind) else kind
    return any(
        test(plain) for test in (types.is_string, types.is_large_string, types.is_string_view)
    )


def _is_instant(value: dt.datetime, kind: pa.DataType) -> bool:
    """Return True for microseconds in UTC: Spark truncates finer units, and Lance's literals do.

    In a column of another zone, Lance takes a literal for the time of a clock there.
    """
    return value.tzinfo is not None and bool(kind.equals(pa.timestamp("us", "UTC")))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _instant(value: dt.datetime) -> str:
    at = value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"timestamp '{at}Z'"


_LITERALS: tuple[tuple[type, Callable[[Any, pa.DataType], bool], Callable[[Any], str]], ...] = (
    (bool, lambda _, kind: types.is_boolean(kind), lambda value: "true" if value else "false"),
    (int, _is_in_range, repr),
    (str, _is_text, _text),
    (dt.datetime, _is_instant, _instant),
    (dt.date, lambda _, kind: types.is_date32(kind), lambda value: f"date '{value.isoformat()}'"),
)
