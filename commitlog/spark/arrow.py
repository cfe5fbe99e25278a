"""Fitting Spark's batches to a table's schema, column by column and by name.

What cannot fit is refused when the query is planned (`check`), before an executor starts; what
only the values can tell (a null, an overflow) is refused at the value (`conform`). A cast never
changes what a value means: numbers may widen or narrow if they fit, a timestamp with a time zone
keeps its instant whatever zone the session names, and text never becomes a number.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.types import StructType

from commitlog.errors import InvalidTransaction
from commitlog.spark.pyspark_api import arrow_schema_of


def arrow_schema(schema: StructType, table: str) -> pa.Schema:
    """Return the Arrow schema of a query's columns.

    Raises:
        InvalidTransaction: names a column of a type that Arrow has no place for.
    """
    for field in schema.fields:
        try:
            arrow_schema_of(StructType([field]))
        except PySparkTypeError:
            raise _bad(
                table, field.name, f"is {field.dataType.simpleString()}, which tables cannot hold",
                "Cast it in the query, to a string perhaps",
            ) from None  # fmt: skip
    return arrow_schema_of(schema)


def check(given: pa.Schema, wanted: pa.Schema, table: str) -> None:
    """Raise if a query's columns can never fit the table's.

    Raises:
        InvalidTransaction: names the column, both types, and what to select instead.
    """
    names = set(wanted.names)
    doubled = sorted({name for name in given.names if given.names.count(name) > 1})
    if doubled:
        raise _bad(table, doubled[0], "is there twice", "Select each column once")
    for field in given:
        if field.name not in names:
            near = difflib.get_close_matches(field.name, names, n=1)
            raise _bad(
                table, field.name, "is not a column of the table",
                f"Rename it to {near[0]!r}" if near else f"Its columns are {_list(wanted)}",
            )  # fmt: skip
    for field in wanted:
        position = given.get_field_index(field.name)
        if position < 0:
            if not field.nullable:
                raise _bad(table, field.name, "is required and missing", "Select it")
            continue
        found = given.field(position).type
        if pa.types.is_null(found) and not field.nullable:
            raise _bad(table, field.name, "is required and always null", "Select its values")
        if not fits(found, field.type):
            raise _bad(
                table, field.name, f"is {found} where the table has {field.type}",
                "Cast it in the query",
            )  # fmt: skip


def fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether values of one type may be stored as another without changing what they mean."""
    if given.equals(wanted) or pa.types.is_null(given):
        return True
    if pa.types.is_dictionary(wanted):
        return fits(given, wanted.value_type)
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        return _fits_struct(given, wanted)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return fits(given.key_type, wanted.key_type) and fits(given.item_type, wanted.item_type)
    if _is_list(given) and _is_list(wanted):
        return fits(given.value_type, wanted.value_type)
    return any(test(given) and test(wanted) for test in _FAMILIES) or (
        pa.types.is_integer(given) and (pa.types.is_floating(wanted) or pa.types.is_decimal(wanted))
    )


def conform(batches: Iterable[pa.RecordBatch], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield each batch with exactly the columns, order, types and nullability of `wanted`.

    Raises:
        InvalidTransaction: a null in a required column, or a value that its type cannot hold.
    """
    for batch in batches:
        if batch.num_rows:
            columns = [_column(batch, field) for field in wanted]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    position = batch.schema.get_field_index(field.name)
    if position < 0:
        return pa.nulls(batch.num_rows, field.type)
    values = batch.column(position)
    if values.null_count and not field.nullable:
        raise InvalidTransaction(
            f"column {field.name!r} holds {values.null_count} nulls and the table allows none",
            field=field.name,
            advice="Filter or fill them in the query",
        )
    if values.type.equals(field.type):
        return values
    try:
        return _cast(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidTransaction(
            f"column {field.name!r} does not fit {field.type}: {error}",
            field=field.name,
            advice="Cast or filter it in the query",
        ) from error


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(wanted):
        return values.cast(wanted.value_type).dictionary_encode().cast(wanted)
    return values.cast(wanted)


def _fits_struct(given: pa.StructType, wanted: pa.StructType) -> bool:
    inner = {field.name: field for field in wanted}
    return all(f.name in inner and fits(f.type, inner[f.name].type) for f in given) and all(
        f.nullable or given.get_field_index(f.name) >= 0 for f in wanted
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


_FAMILIES = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_duration,
    _is_text,
    _is_bytes,
)


def _list(schema: pa.Schema) -> str:
    return ", ".join(schema.names)


def _bad(table: str, column: str, problem: str, advice: str) -> InvalidTransaction:
    return InvalidTransaction(
        f"{table}: column {column!r} {problem}", field=column, value=table, advice=advice
    )
