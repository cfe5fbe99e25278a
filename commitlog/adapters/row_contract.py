"""The row contract: which Arrow value goes into which column of a table.

A value is written as it is or refused; no write rounds, truncates, overflows or parses. Every path
that writes rows asks here. `check_columns` compares schemas when a write is planned and refuses
what can never fit. `conform` converts a batch to the table's types and refuses the first value
that its column cannot hold, naming column, row and value.

What fits:

- integers, floats and integers, integers and decimals: judged by value, in all widths;
- floats of another width: judged by value. The elements of a vector (a fixed-size list of floats)
  are rounded to the nearest float of their width instead, since a vector has no more precision
  than its column; a finite element never becomes infinite;
- decimals of another precision, scale or width, timestamps, times and durations of another unit:
  judged by value;
- timestamps of another time zone: the instant is kept. With and without a zone never mix;
- text in all its layouts, bytes in all theirs, dates in both, lists in all, dictionaries and their
  values; structs and maps by their parts, structs by name. Text that isn't UTF-8 fits nowhere;
- an extension type and its storage; bytes as blobs. JSON is text that isn't empty.

Text never becomes a number or bytes, a boolean never a number, a decimal never a float. A null
never enters a column, list or struct that requires values.
"""

from __future__ import annotations

import difflib
from collections import Counter

import pyarrow as pa
from pyarrow import types

from commitlog.adapters.row_text import check_text, is_text
from commitlog.adapters.row_values import (
    Misfit,
    aligned,
    compact,
    convert,
    is_blob,
    is_list,
    is_number,
    is_stored_list,
    require,
)
from commitlog.errors import InvalidTransaction, WrongColumns


def check_columns(
    given: pa.Schema, wanted: pa.Schema, table: str, *, partial: bool = False
) -> None:
    """Refuse columns that can never fit a table's.

    With `partial` any column may be missing; otherwise only those that may be null.

    Raises:
        WrongColumns: names the column, both types, and what to do.
    """
    # `names` makes a list of all each time.
    names, columns = given.names, dict.fromkeys(wanted.names)
    if len(set(names)) < len(names):
        doubled = min(name for name, count in Counter(names).items() if count > 1)
        raise _bad(table, doubled, "is given twice", "Give each column once")
    for name in names:
        if name not in columns:
            near = [one for one in columns if one.lower() == name.lower()]
            near = near or difflib.get_close_matches(name, columns, n=1)
            raise WrongColumns(
                f"{table} has no column {name!r}",
                field="schema",
                value=name,
                advice=f"Rename it to {near[0]!r}"
                if near
                else f"Its columns are {', '.join(columns)}",
            )
    for field in wanted:
        position = given.get_field_index(field.name)
        if position < 0:
            if not field.nullable and not partial:
                raise _bad(table, field.name, "may not be null and is missing", "Give it values")
            continue
        found = given.field(position).type
        if types.is_null(found) and not field.nullable:
            raise _bad(table, field.name, "may not be null and is always null", "Give it values")
        if not found.equals(field.type):
            _check_type(found, field, table)
            if _is_hollow(found, field.type):
                raise _bad(
                    table, field.name,
                    f"is {field.type} and cannot hold {found}: a struct in it has no fields",
                    "Name at least one field of it, or leave it out",
                )  # fmt: skip


def _check_type(given: pa.DataType, field: pa.Field, table: str) -> None:
    problem = _misfit(given, field.type, field.name)
    if problem is not None:
        path, inner, reason = problem
        where = "" if path == field.name else f" ({path!r}: {inner})"
        raise WrongColumns(
            f"column {field.name!r} of {table} is {field.type} and cannot hold"
            f" {given}{where}: {reason}",
            field=field.name,
            value=str(given),
            advice="It is a VARIANT of Spark: cast it, or make text of it with `to_json`"
            if _is_variant(inner)
            else "Convert the column first",
        )


def _is_variant(kind: pa.DataType) -> bool:
    """Return True for Spark's VARIANT, which comes as a struct with a mark at one of its fields."""
    return types.is_struct(kind) and any(b"variant" in (one.metadata or {}) for one in kind)


def fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if values of one type can be stored as another, each value permitting."""
    return _misfit(given, wanted, "") is None


def present(given: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """Return a table's schema without the columns, and fields of structs, that a source lacks.

    A write that conforms to it keeps what the source doesn't name.
    """
    named = {field.name: field for field in given}
    fields = [_narrowed(field, named[field.name]) for field in wanted if field.name in named]
    return pa.schema(fields, wanted.metadata)


def conform(
    batch: pa.RecordBatch, wanted: pa.Schema, table: str, *, first_row: int = 0
) -> pa.RecordBatch:
    """Return a batch with the columns, order and types of `wanted`; the values are the same.

    Missing columns are null; `present` leaves them out. `first_row` is the number of the batch's
    first row in the caller's data.

    Raises:
        InvalidTransaction: names the column, the row and the value that it cannot hold.
    """
    columns = []
    for field in wanted:
        position = batch.schema.get_field_index(field.name)
        found = pa.nulls(batch.num_rows) if position < 0 else batch.column(position)
        columns.append(conform_column(found, field, table, first_row=first_row))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def conform_column(
    values: pa.Array, field: pa.Field, table: str, *, first_row: int = 0, rounds: bool = False
) -> pa.Array:
    """Return values in a column's type; see `conform`.

    With `rounds`, floats are rounded to the nearest of the column's width, as vectors always are.
    """
    if is_number(values.type) and values.type.equals(field.type) and not values.null_count:
        return aligned(values)
    _check_type(values.type, field, table)
    try:
        converted = compact(convert(values, field.type, rounds))
        require(converted, field)
        check_text(converted)
    except Misfit as found:
        path = ".".join((field.name, *found.path))
        raise InvalidTransaction(
            f"row {first_row + found.position} of column {path!r} is {found.shown}, which"
            f" {found.kind} in {table} cannot hold: {found.reason}",
            field=field.name,
            value=found.shown,
            advice="Correct the value or convert the column first",
        ) from None
    return aligned(converted)


def _is_hollow(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if nothing would be left of a struct by `present`: no file has such a column."""
    if not (types.is_struct(given) and types.is_struct(wanted)) or not wanted.num_fields:
        return False
    inner = (_is_hollow(field.type, wanted.field(field.name).type) for field in given)
    return not given.num_fields or any(inner)


def _narrowed(field: pa.Field, given: pa.Field) -> pa.Field:
    if not (types.is_struct(field.type) and types.is_struct(given.type)):
        return field
    named = [given.type.get_field_index(inner.name) for inner in field.type]
    kept = [
        _narrowed(inner, given.type.field(at))
        for inner, at in zip(field.type, named, strict=True)
        if at >= 0
    ]
    return field.with_type(pa.struct(kept))


def _misfit(
    given: pa.DataType, wanted: pa.DataType, path: str
) -> tuple[str, pa.DataType, str] | None:
    """Return where a type can never fit another, what is there, and why; None if it can."""
    if types.is_null(given) or given.equals(wanted):
        return None
    if isinstance(wanted, pa.BaseExtensionType):
        if is_blob(wanted) and _is_bytes(given):
            return None
        if isinstance(given, pa.BaseExtensionType):
            if given.extension_name != wanted.extension_name:
                return path, given, "it is another extension type"
            if is_blob(wanted):
                return None
            given = given.storage_type
        return _misfit(given, wanted.storage_type, path)
    if isinstance(given, pa.BaseExtensionType):
        return _misfit(given.storage_type, wanted, path)
    if types.is_dictionary(given):
        return _misfit(given.value_type, wanted, path)
    if types.is_dictionary(wanted):
        return _misfit(given, wanted.value_type, path)
    if types.is_struct(given) and types.is_struct(wanted):
        return _struct_misfit(given, wanted, path)
    if types.is_map(given) and types.is_map(wanted):
        return _misfit(given.key_type, wanted.key_type, f"{path}.key") or _misfit(
            given.item_type, wanted.item_type, f"{path}.value"
        )
    if is_list(given) and is_stored_list(wanted):
        sizes = [kind.list_size for kind in (given, wanted) if types.is_fixed_size_list(kind)]
        if len(set(sizes)) > 1:
            return path, given, f"lists of {sizes[0]} are not lists of {sizes[1]}"
        return _misfit(given.value_type, wanted.value_type, f"{path}.{wanted.value_field.name}")
    reason = _leaf_misfit(given, wanted)
    return (path, given, reason) if reason else None


def _struct_misfit(
    given: pa.StructType, wanted: pa.StructType, path: str
) -> tuple[str, pa.DataType, str] | None:
    names = [field.name for field in given]
    for field in given:
        if wanted.get_field_index(field.name) < 0 or names.count(field.name) > 1:
            return path, given, f"{field.name!r} is not a field of the struct, or occurs twice"
    for field in wanted:
        if field.name not in names:
            if not field.nullable:
                return path, given, f"field {field.name!r} may not be null and is missing"
            continue
        found = given.field(field.name).type
        problem = _misfit(found, field.type, f"{path}.{field.name}")
        if problem is not None:
            return problem
        if types.is_null(found) and not field.nullable:
            return path, given, f"field {field.name!r} may not be null and is always null"
    return None


def _leaf_misfit(given: pa.DataType, wanted: pa.DataType) -> str:
    if types.is_timestamp(given) and types.is_timestamp(wanted):
        if (given.tz is None) != (wanted.tz is None):
            return "one has a time zone and the other has none"
        return ""
    if types.is_fixed_size_binary(given) and types.is_fixed_size_binary(wanted):
        same = given.byte_width == wanted.byte_width
        return "" if same else "the widths differ"
    if any(test(given) and test(wanted) for test in _FAMILIES):
        return ""
    if types.is_integer(given) and (types.is_floating(wanted) or types.is_decimal(wanted)):
        return ""
    if types.is_integer(wanted) and (types.is_floating(given) or types.is_decimal(given)):
        return ""
    return "the types are not comparable"


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


_FAMILIES = (
    *(types.is_integer, types.is_floating, types.is_decimal, types.is_boolean),
    *(types.is_date, types.is_time, types.is_duration, is_text, _is_bytes),
)


def _bad(table: str, column: str, problem: str, advice: str) -> WrongColumns:
    return WrongColumns(
        f"column {column!r} of {table} {problem}", field="schema", value=column, advice=advice
    )
