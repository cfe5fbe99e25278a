"""The batch source: one version of a table, one partition per fragment.

The version is fixed when the query is planned, so all tasks read the same one however long the
query runs. Spark has no column pruning for Python sources: option `columns` prunes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, StructType

from commitlog.errors import InvalidTransaction
from commitlog.spark.options import Connection, ReadOptions
from commitlog.spark.pushdown import to_sql
from commitlog.spark.versions import TableVersions


@dataclass
class FragmentPartition(InputPartition):
    """One fragment of one version; None: the version is empty."""

    fragment_id: int | None

    def __init__(self, fragment_id: int | None) -> None:
        """Keep the id."""
        super().__init__(fragment_id)
        self.fragment_id = fragment_id


def open_table(options: ReadOptions, connect: Callable[[Connection], Any]) -> lance.LanceDataset:
    """Open the version that the options name, which has its manifest file from now on."""
    log = connect(options.connection)
    info = log.table(options.table)
    version = TableVersions(log.runtime(), info).resolve(options.version)
    dataset: lance.LanceDataset = log.opened.plain(info, version)
    return dataset


def table_schema(options: ReadOptions, connect: Callable[[Connection], Any]) -> StructType:
    """Return a version's columns as Spark sees them."""
    return spark_schema(open_table(options, connect).schema, options.table, options.columns)


def spark_schema(schema: pa.Schema, table: str, columns: Sequence[str] = ()) -> StructType:
    """Return an Arrow schema's wanted columns as Spark's types: vectors become arrays."""
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise InvalidTransaction(
            f"{table}: no column {missing[0]!r}",
            field="columns",
            value=missing[0],
            advice=f"Its columns are {', '.join(schema.names)}",
        )
    fields = [schema.field(name) for name in columns] or list(schema)
    plain = [pa.field(f.name, readable_type(f.type), f.nullable) for f in fields]
    try:
        return from_arrow_schema(pa.schema(plain))
    except PySparkTypeError as error:
        raise InvalidTransaction(
            f"{table}: Spark has no type for a column: {error}",
            field="columns",
            advice="Name the other columns in option 'columns'",
        ) from error


def spark_types(schema: pa.Schema) -> dict[str, DataType]:
    """Return Spark's type of each column of an Arrow schema."""
    return {field.name: field.dataType for field in spark_schema(schema, "the table")}


def readable_type(kind: pa.DataType) -> pa.DataType:
    """Return the nearest type that Spark knows."""
    if pa.types.is_dictionary(kind):
        return readable_type(kind.value_type)
    if pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(readable_type(kind.value_type))
    if pa.types.is_list(kind):
        return pa.list_(readable_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, readable_type(f.type), f.nullable) for f in kind])
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_unsigned_integer(kind):
        wider = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}
        return wider[kind.bit_width]
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return kind


class TableReader(DataSourceReader):
    """Reads one version; made when a query is planned, then sent to its tasks."""

    def __init__(
        self, options: ReadOptions, schema: StructType, connect: Callable[[Connection], Any]
    ) -> None:
        """Fix the version and list its fragments."""
        dataset = open_table(options, connect)
        self.location = str(dataset.uri)
        self.version = int(dataset.version)
        self.schema = schema
        self.batch_rows = options.batch_rows
        self.predicate = ""
        self.fragment_ids = [int(f.fragment_id) for f in dataset.get_fragments()]

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per fragment (Spark asks for at least one)."""
        return [FragmentPartition(i) for i in self.fragment_ids] or [FragmentPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one fragment's rows, without deleted ones; runs on an executor."""
        assert isinstance(partition, FragmentPartition)
        if partition.fragment_id is None:
            return
        schema = to_arrow_schema(self.schema, timezone="UTC")
        dataset = lance.dataset(self.location, version=self.version)
        fragment = dataset.get_fragment(partition.fragment_id)
        assert fragment is not None, "a version keeps its fragments"
        batches = fragment.to_batches(
            columns=list(schema.names),
            filter=self.predicate or None,
            batch_size=self.batch_rows,
        )
        for batch in batches:
            yield to_spark(batch, schema)


class FilteringReader(TableReader):
    """Reads one version and has Lance judge the filters that it can.

    Apart from `TableReader`, because Spark refuses a reader with `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is set.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take what Lance can judge; return what is left for Spark."""
        columns = self.schema.names
        predicates = []
        for wanted in filters:
            predicate = to_sql(wanted, columns)
            if predicate:
                predicates.append(predicate)
            else:
                yield wanted
        self.predicate = " AND ".join(predicates)


def to_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch in the types that Spark expects; columns that it lacks are null."""
    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        values = pa.nulls(batch.num_rows, field.type) if at < 0 else batch.column(at)
        columns.append(values if values.type.equals(field.type) else values.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
