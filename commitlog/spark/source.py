"""The batch source: one version of a table, one partition per fragment.

The version is fixed when the query is planned, so all tasks read the same one however long the
query runs. Spark has no column pruning for Python sources: option `columns` prunes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from commitlog.errors import InvalidTransaction
from commitlog.spark.options import Connection, ReadOptions

BATCH_ROWS = 8192


@dataclass
class FragmentPartition(InputPartition):
    """One fragment of one version; None: the version is empty."""

    fragment_id: int | None

    def __init__(self, fragment_id: int | None) -> None:
        """Keep the id."""
        super().__init__(fragment_id)
        self.fragment_id = fragment_id


def table_schema(options: ReadOptions, connect: Callable[[Connection], Any]) -> StructType:
    """Return a version's columns as Spark sees them."""
    dataset = connect(options.connection).open(options.table, version=options.version)
    return spark_schema(dataset.schema, options)


def spark_schema(schema: pa.Schema, options: ReadOptions) -> StructType:
    """Return an Arrow schema's wanted columns as Spark's types: vectors become arrays."""
    missing = [name for name in options.columns if name not in schema.names]
    if missing:
        raise InvalidTransaction(
            f"{options.table}: no column {missing[0]!r}",
            field="columns",
            value=missing[0],
            advice=f"Its columns are {', '.join(schema.names)}",
        )
    fields = [schema.field(name) for name in options.columns] or list(schema)
    plain = [pa.field(f.name, readable_type(f.type), f.nullable) for f in fields]
    return from_arrow_schema(pa.schema(plain))


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
        dataset = connect(options.connection).open(options.table, version=options.version)
        self.location = str(dataset.uri)
        self.version = int(dataset.version)
        self.schema = schema
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
        for batch in fragment.to_batches(columns=list(schema.names), batch_size=BATCH_ROWS):
            columns = [batch.column(f.name).cast(f.type) for f in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
