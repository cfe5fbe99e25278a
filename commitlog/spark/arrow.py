"""Spark's columns and a table's, each in the other's types.

What may be written where, and how, is the row contract's to say (`adapters.row_contract`). Here are
the Arrow types of a query's columns, and the nearest types that Spark has for a table's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from commitlog.adapters.row_contract import conform
from commitlog.adapters.row_values import is_blob
from commitlog.errors import InvalidRequest, InvalidTransaction
from commitlog.spark.pyspark_api import arrow_schema_of

BATCH_BYTES = 64 * 1024**2
"""What a batch has at most, but for one row: the JVM would have no room for thousands of images."""
SPARKS_DIGITS = 38
"""A decimal of Spark has no more."""
SQL_TABLE = "For a table of SQL's CREATE TABLE, run CREATE OR REPLACE TABLE first"
_NAME = r"\s*(?:`((?:[^`]|``)+)`|([^`,\s][^,]*)|)\s*"
"""A column's name in a list: between backquotes as in SQL, or one without a comma, or none."""


def arrow_schema(schema: StructType, table: str) -> pa.Schema:
    """Return the Arrow schema of a query's columns.

    Raises:
        InvalidTransaction: names a column of a type that Arrow has no place for.
    """
    # Of `array()`, which is of nothing, Spark says that it has no nulls; Arrow refuses such a type.
    schema = schema.toNullable()
    for field in schema.fields:
        try:
            arrow_schema_of(StructType([field]))
        except PySparkTypeError:
            raise InvalidTransaction(
                f"{table}: column {field.name!r} is {field.dataType.simpleString()}, which tables"
                " cannot hold",
                field=field.name,
                value=table,
                advice="Cast it in the query, for example to a string",
            ) from None
    return arrow_schema_of(schema)


def fetched(frame: DataFrame) -> pa.Table:
    """Return a frame's rows, where a null may be anything in a column.

    `toArrow` fails for a null struct with fields that may not be null, as those of Avro's records.
    """
    pairs = zip(frame.schema, frame.schema.toNullable(), strict=True)
    other = {new.name: new.dataType for old, new in pairs if new.dataType != old.dataType}
    casts = {name: frame[quoted(name)].cast(kind) for name, kind in other.items()}
    return (frame.withColumns(casts) if casts else frame).toArrow()


def column_names(text: str) -> tuple[str, ...]:
    """Return the names that option `columns` lists, each once.

    Raises:
        InvalidTransaction: it is no list, or has nothing in it.
    """
    pairs = re.findall(f"{_NAME}(?:,|$)", text)
    names = filter(None, (one.replace("``", "`") or other.strip() for one, other in pairs))
    found = tuple(dict.fromkeys(names))
    if text and not (found and re.fullmatch(f"{_NAME}(?:,{_NAME})*", text)):
        raise InvalidTransaction(
            "option 'columns' is not a list of column names", field="columns", value=text,
            advice="Separate names by commas, and put one that has a comma between backquotes",
        )  # fmt: skip
    return found


def quoted(column: str) -> str:
    """Return a column's name as Spark takes it for a name, whatever it holds."""
    return "`" + column.replace("`", "``") + "`"


def conformed(
    batches: Iterable[pa.RecordBatch], wanted: pa.Schema, table: str
) -> Iterator[pa.RecordBatch]:
    """Yield each batch that has rows by the row contract; `conform` says what it raises."""
    rows = 0
    for batch in batches:
        if batch.num_rows:
            yield conform(batch, wanted, table, first_row=rows)
            rows += batch.num_rows


def put_together(batches: Iterable[pa.RecordBatch], rows_max: int) -> Iterator[pa.RecordBatch]:
    """Yield neighbours as one batch, up to so many rows and `BATCH_BYTES`.

    Lance gives one for each fragment, and each has its price, however small: the JVM takes 0.1 ms,
    and a join hashes its other side again.
    """
    kept: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if kept and (rows + batch.num_rows > rows_max or size + batch.nbytes > BATCH_BYTES):
            yield _joined(kept)
            kept, rows, size = [], 0, 0
        kept.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if kept:
        yield _joined(kept)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return one batch; a large one that is alone isn't copied."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def spark_schema(schema: pa.Schema, table: str, columns: Sequence[str] = ()) -> StructType:
    """Return an Arrow schema's wanted columns as Spark's types: vectors become arrays."""
    there = set(schema.names)
    missing = [name for name in columns if name not in there]
    if missing:
        raise InvalidTransaction(
            f"{table}: no column {missing[0]!r}",
            field="columns",
            value=missing[0],
            advice=f"Its columns are {', '.join(schema.names)}",
        )
    found: list[StructField] = []
    for field in [schema.field(name) for name in columns] or list(schema):
        kind = readable_type(field.type)
        try:
            if _is_too_wide(kind):
                raise PySparkTypeError(f"{kind} has more than {SPARKS_DIGITS} digits")
            one = pa.schema([pa.field(field.name, kind, field.nullable)])
            found += from_arrow_schema(one, prefer_timestamp_ntz=True)  # False by default in 4.1
        except PySparkTypeError as error:
            raise InvalidTransaction(
                f"{table}: Spark has no type for column {field.name!r}, which is {field.type}:"
                f" {error}",
                field="columns",
                value=field.name,
                advice="Name the other columns in option 'columns'",
            ) from error
    return StructType(found)


def check_given(schema: StructType, known: Sequence[str], what: str) -> None:
    """Refuse a schema of the caller's with a column that there isn't."""
    unknown = [name for name in schema.names if name not in known]
    if unknown:
        raise InvalidRequest(
            f"{what} has no column {unknown[0]!r}, which the query's schema names", field="schema",
            value=unknown[0], advice=f"The columns are {', '.join(known)}. {SQL_TABLE}",
        )  # fmt: skip


def readable_type(kind: pa.DataType) -> pa.DataType:
    """Return the nearest type that Spark knows."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.large_binary() if is_blob(kind) else readable_type(kind.storage_type)
    if types.is_nested(kind):
        return _readable_nested(kind)
    if types.is_dictionary(kind):
        return readable_type(kind.value_type)
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_date64(kind):
        return pa.date32()
    if types.is_decimal(kind) and kind.precision <= SPARKS_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_unsigned_integer(kind):
        wider = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}
        return wider[kind.bit_width]
    if types.is_float16(kind):
        return pa.float32()
    if types.is_string_view(kind):
        return pa.string()
    if types.is_fixed_size_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    return kind


def _readable_nested(kind: pa.DataType) -> pa.DataType:
    if types.is_struct(kind):
        return pa.struct([pa.field(f.name, readable_type(f.type), f.nullable) for f in kind])
    if types.is_map(kind):
        return pa.map_(readable_type(kind.key_type), readable_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(readable_type(kind.value_type))
    return kind


def _is_too_wide(kind: pa.DataType) -> bool:
    if types.is_nested(kind):
        return any(_is_too_wide(kind.field(at).type) for at in range(kind.num_fields))
    return bool(types.is_decimal(kind)) and kind.precision > SPARKS_DIGITS


def to_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch in the types that Spark expects; columns that it lacks are null.

    Raises:
        InvalidTransaction: names a column with a value that Spark cannot hold.
    """
    if not schema.names:
        return batch.select([])  # which still counts its rows
    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        given = batch.column(at) if at >= 0 else pa.nulls(batch.num_rows, field.type)
        if given.null_count and not field.nullable:
            # Spark would only say "Value at index is null".
            raise InvalidTransaction(
                f"column {field.name!r} has nulls, and Spark was told that it has none",
                field=field.name,
                advice=f"Plan the query again. {SQL_TABLE}",
            )
        try:
            values = readable(given)
            columns.append(values if values.type.equals(field.type) else values.cast(field.type))
        except pa.ArrowException as error:
            raise InvalidTransaction(
                f"Spark cannot hold a value of column {field.name!r} as {field.type}: {error}",
                field=field.name,
                advice="If the column's type has changed, start the query again; otherwise name the"
                " other columns in option 'columns'",
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def readable(values: pa.Array) -> pa.Array:
    """Return values in the nearest type that Spark knows: what is below microseconds is cut off."""
    if is_blob(values.type):
        # As it is written: what is read are bytes already.
        return values.storage.flatten()[values.storage.type.get_field_index("data")]
    plain = readable_type(values.type)
    if plain.equals(values.type):
        return values
    return pc.cast(values, options=pc.CastOptions(plain, allow_time_truncate=True))
