"""Python values as Arrow arrays in a column's type.

pyarrow drops what it can't store when it is given a type: it truncates 1.5 to an integer, a
datetime to its date, and leaves out keys that a struct lacks. So each value gets the type that it
has by itself, and the row contract puts that into the column. Numbers without a type of their own
are literals: a float is rounded to the column's width.
"""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import lance
import pyarrow as pa
from pyarrow import types

from commitlog.adapters.row_contract import conform_column, fits
from commitlog.adapters.row_values import is_blob, is_list
from commitlog.adapters.shown_values import VALUE_CHARACTERS_MAX
from commitlog.errors import InvalidTransaction

_GROUPS: tuple[Any, ...] = (
    bool,
    numbers.Number,
    str,
    (bytes, bytearray, memoryview),
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
)
_FAILURES = (pa.ArrowException, TypeError, ValueError, OverflowError)


def literal_column(values: Sequence[Any], field: pa.Field, table: str) -> pa.Array:
    """Return values in a column's type.

    Raises:
        InvalidTransaction: names the column, the row and the value that it cannot hold.
    """
    array = _array(values, field.type, field.name, table)
    return conform_column(array, field, table, rounds=True)


def _array(values: Sequence[Any], kind: pa.DataType, name: str, table: str) -> pa.Array:
    """Return values in any type that fits `kind` without loss."""
    if is_blob(kind):
        return _blobs(values, kind, name, table)
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.bool8":
        return _array(values, pa.bool_(), name, table).cast(pa.int8())
    if isinstance(values, str | bytes) or not types.is_nested(kind) or _is_vector(kind):
        return _leaf(values, kind, name, table)
    if types.is_struct(kind):
        return _struct(values, kind, name, table)
    rows = [_items(row, kind, name, table, at) for at, row in enumerate(values)]
    flat = list(chain.from_iterable(row for row in rows if row is not None))
    mask = pa.array([row is None for row in rows], pa.bool_())
    offsets = pa.array(accumulate((len(row or ()) for row in rows), initial=0), pa.int32())
    if types.is_map(kind):
        for at, row in enumerate(rows):
            if any(key is None for key, _ in row or ()):
                raise _refused(values[at], at, kind, name, table, "a key of a map is never null")
        keys = _array([key for key, _ in flat], kind.key_type, f"{name}.key", table)
        if not flat:  # Arrow's type of no values can be no key's
            keys = pa.nulls(0, kind.key_type)
        items = _array([item for _, item in flat], kind.item_type, f"{name}.value", table)
        made = pa.map_(keys.type, items.type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=made, mask=mask)
    elements = _array(flat, kind.value_type, f"{name}.{kind.value_field.name}", table)
    return pa.ListArray.from_arrays(offsets, elements, mask=mask)


def _leaf(values: Sequence[Any], kind: pa.DataType, name: str, table: str) -> pa.Array:
    groups = _groups(values)
    if len(groups) > 1:
        raise _wrong(values, kind, name, table, "the values are of several kinds")
    try:
        found = pa.array(values)
    except _FAILURES as error:
        reason = str(error)
    else:
        if fits(found.type, kind):
            return found
        reason = f"the values are {found.type}"
    # Integers beyond 64 bits, and those that count a unit of time.
    if groups <= {1} and not types.is_boolean(kind) and all(map(_is_whole, values)):
        try:
            return pa.array([None if v is None else int(v) for v in values], type=kind)
        except _FAILURES as error:
            reason = str(error)
    raise _wrong(values, kind, name, table, reason)


def _is_whole(value: Any) -> bool:
    try:
        return value is None or (isinstance(value, numbers.Number) and value == int(value))  # type: ignore[call-overload]
    except _FAILURES:
        return False  # not a number, infinite, or complex


def _blobs(values: Sequence[Any], kind: pa.DataType, name: str, table: str) -> pa.Array:
    """Return blobs of bytes, of `lance.Blob`, or of text, which is the URI of an external one."""
    try:
        return lance.blob_array(list(values))
    except (TypeError, ValueError) as error:
        row = next((at for at, v in enumerate(values) if not _is_blob_value(v)), 0)
        raise _refused(values[row], row, kind, name, table, str(error)) from error


def _is_blob_value(value: Any) -> bool:
    try:
        lance.blob_array([value])
    except (TypeError, ValueError):
        return False
    return True


def _struct(values: Sequence[Any], kind: pa.StructType, name: str, table: str) -> pa.Array:
    names = {field.name for field in kind}
    given: dict[str, None] = {}
    for row, value in enumerate(values):
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise _refused(value, row, kind, name, table, "it is not a mapping of field names")
        if not names.issuperset(value):
            extra = sorted(map(str, set(value) - names))
            raise _refused(
                value, row, kind, name, table, f"{extra[0]!r} is not a field of the struct"
            )
        given.update(dict.fromkeys(value))
    children = [
        _array([None if v is None else v.get(each) for v in values], kind.field(each).type,
               f"{name}.{each}", table)
        for each in given
    ]  # fmt: skip
    mask = pa.array([value is None for value in values], pa.bool_())
    if not children:
        return pa.array([None if v is None else {} for v in values], type=pa.struct([]))
    return pa.StructArray.from_arrays(children, names=list(given), mask=mask)


def _items(value: Any, kind: pa.DataType, name: str, table: str, row: int) -> Any:
    if value is None:
        return None
    if types.is_map(kind) and isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise _refused(value, row, kind, name, table, "it is not a sequence")
    items = list(value)
    if types.is_map(kind) and not all(isinstance(i, tuple | list) and len(i) == 2 for i in items):
        raise _refused(value, row, kind, name, table, "it does not hold pairs of key and value")
    return items


def _is_vector(kind: pa.DataType) -> bool:
    """Return True for lists of numbers, in which Arrow loses nothing by itself."""
    if is_list(kind):
        return _is_vector(kind.value_type)
    return bool(types.is_floating(kind) or types.is_integer(kind))


def _groups(values: Sequence[Any]) -> set[Any]:
    """Return which kinds of values there are; times with and without a zone are two kinds."""
    samples = {type(value): value for value in values}
    if any(issubclass(kind, datetime.datetime) for kind in samples):
        return {_group(value) for value in values} - {None}
    return {_group(value) for value in samples.values()} - {None}


def _group(value: Any) -> Any:
    for number, group in enumerate(_GROUPS):
        if isinstance(value, group):
            aware = getattr(value, "tzinfo", None) is not None
            return (number, aware) if group is datetime.datetime else number
    return None


def _wrong(
    values: Sequence[Any], kind: pa.DataType, name: str, table: str, reason: str
) -> InvalidTransaction:
    """Name the first value that cannot be in the column by itself, else the first of all."""
    for row, value in enumerate(values):
        if value is None:
            continue
        try:
            if fits(pa.array([value]).type, kind):
                continue
        except _FAILURES:
            pass
        return _refused(value, row, kind, name, table, reason)
    return _refused(values[0], 0, kind, name, table, reason)


def _refused(
    value: Any, row: int, kind: pa.DataType, name: str, table: str, reason: str
) -> InvalidTransaction:
    shown = repr(value)
    if len(shown) > VALUE_CHARACTERS_MAX:
        shown = f"{shown[:VALUE_CHARACTERS_MAX]}..."
    return InvalidTransaction(
        f"column {name!r} of {table} is {kind} and cannot hold {shown} (value {row}): {reason}",
        field=name.partition(".")[0],
        value=shown,
        advice="Correct the value or convert the column first",
    )
