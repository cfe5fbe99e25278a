"""The batch source: one version of a table, its fragments dealt out to tasks.

The version is fixed when the query is planned, so all tasks read the same one however long the
query runs. Neighbouring small fragments are one task's: a task costs as much as some ten thousand
rows. Options `columns` and `filter` say what is read of it: Spark has no column pruning for Python
sources, and where a data frame is read twice, it takes the filters that were pushed down last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from commitlog.adapters.lance_datasets import scan_columns
from commitlog.client.leader.arguments import lances_words
from commitlog.client.rows.excerpts import Excerpt, taken_apart
from commitlog.client.rows.lost_files import while_files_stay
from commitlog.client.rows.rows import whole
from commitlog.errors import InvalidRequest, shown_text
from commitlog.spark.arrow import BATCH_BYTES, put_together, spark_schema, to_spark
from commitlog.spark.options import Connection, ReadOptions
from commitlog.spark.plain_errors import plain_errors
from commitlog.spark.pyspark_api import arrow_schema_of
from commitlog.spark.versions import TableVersions, VersionWanted, standing

PARTITION_BYTES = 128 * 1024**2
"""What Spark reads in one task of other files, too."""
OPEN_BYTES = PARTITION_BYTES // 256
"""What opening a fragment is counted as, so that a task has 256 at most: of thousands with a row
each, one task read all, while the others had nothing to do."""
TOO_MUCH_TEXT = "Offset overflow"
"""What Lance says of 2 GiB in one batch's column, before it looks at the limit of bytes."""


class FragmentsPartition(InputPartition):
    """The fragments of one version that one task reads; none: the version is empty."""

    def __init__(self, fragment_ids: tuple[int, ...], excerpt: Excerpt) -> None:
        super().__init__(fragment_ids)
        self.fragment_ids = fragment_ids
        self.excerpt = excerpt


def open_table(options: ReadOptions, connect: Callable[[Connection], Any]) -> lance.LanceDataset:
    """Open the version that the options name, which has its manifest file from now on."""
    log = connect(options.connection)
    info = standing(log, options.table)
    version = TableVersions(log.runtime(), info).resolve(options.version)
    dataset: lance.LanceDataset = log.opened.plain(info, version)
    return dataset


def table_schema(options: ReadOptions, connect: Callable[[Connection], Any]) -> StructType:
    """Return a version's columns as Spark sees them."""
    if options.version == VersionWanted():
        # The log knows the head's columns; no file has to be opened.
        schema = standing(connect(options.connection), options.table).schema
    else:
        schema = open_table(options, connect).schema
    return spark_schema(schema, options.table, options.columns)


@plain_errors
class TableReader(DataSourceReader):
    """Reads one version; made when a query is planned, then sent to its tasks."""

    def __init__(
        self, options: ReadOptions, schema: StructType, connect: Callable[[Connection], Any]
    ) -> None:
        """Fix the version and list its fragments."""
        dataset = open_table(options, connect)
        there = set(dataset.schema.names)
        missing = [name for name in schema.names if name not in there]
        if missing:
            raise InvalidRequest(
                f"{options.table}: version {dataset.version} has no column {missing[0]!r}",
                field="columns", value=missing[0],
                advice=f"Its columns are {', '.join(dataset.schema.names)}; a table that SQL made"
                " before they changed is made again by DROP TABLE and CREATE TABLE",
            )  # fmt: skip
        self.table = options.table
        self.location = str(dataset.uri)
        self.schema = schema
        self.batch_rows = options.batch_rows
        self.predicate = predicate_of(options, dataset)
        sizes = [(int(f.fragment_id), *size_of(f.metadata)) for f in dataset.get_fragments()]
        groups = grouped(sizes, options.rows_per_partition) or [()]
        head, fragments = taken_apart(dataset)
        self.parts = [
            FragmentsPartition(
                ids, Excerpt(int(dataset.version), head, tuple(fragments[one] for one in ids))
            )
            for ids in groups
        ]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the parts, of which each task gets its own: a copy can't plan, and fails."""
        return {name: value for name, value in vars(self).items() if name != "parts"}

    def partitions(self) -> Sequence[InputPartition]:
        """Return what each task reads (Spark asks for one task at least)."""
        return self.parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield some fragments' rows, without deleted ones; runs on an executor."""
        assert isinstance(partition, FragmentsPartition)
        return while_files_stay(self._rows(partition), self.table, partition.excerpt.version)

    def _rows(self, partition: FragmentsPartition) -> Iterator[pa.RecordBatch]:
        if not partition.fragment_ids:
            return
        schema = arrow_schema_of(self.schema)
        dataset = partition.excerpt.open(self.location)
        found = map(dataset.get_fragment, partition.fragment_ids)
        fragments = [fragment for fragment in found if fragment is not None]
        assert len(fragments) == len(partition.fragment_ids), "a version keeps its fragments"
        batches = dataset.scanner(
            columns=scan_columns(schema.names),
            filter=self.predicate,
            batch_size=self.batch_rows,
            batch_size_bytes=batch_bytes(dataset),
            fragments=fragments,
            blob_handling="all_binary",
        ).to_batches()
        fit = (to_spark(batch, schema) for batch in fitting(batches, self.batch_rows))
        yield from put_together(fit, self.batch_rows)


def batch_bytes(dataset: lance.LanceDataset) -> int | None:
    """Return the limit of a batch; none for 2.0, of which Lance warns that it keeps to none."""
    return None if dataset.data_storage_version == "2.0" else BATCH_BYTES


def fitting(batches: Iterable[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield a scan's batches; say what to do about one that Lance can't make."""
    try:
        yield from batches
    except (ValueError, OSError, RuntimeError) as error:
        if TOO_MUCH_TEXT not in str(error):
            raise
        raise InvalidRequest(
            f"{batch_rows} rows of a column have more than the 2 GiB that a batch can hold",
            field="batchRows", value=batch_rows, advice="Set option 'batchRows' to fewer, such as"
            f" {max(1, batch_rows // 64)}",
        ) from error  # fmt: skip


def predicate_of(options: ReadOptions, dataset: lance.LanceDataset) -> str | None:
    """Return the predicate that the options name; refuse what Lance can't evaluate."""
    if not options.predicate:
        return None
    predicate = whole(options.predicate)
    try:
        dataset.scanner(filter=predicate).explain_plan()
    except (ValueError, OSError, RuntimeError) as error:
        raise InvalidRequest(
            f"Lance can't evaluate {shown_text(options.predicate)!r} over {options.table}:"
            f" {lances_words(error)}", field="filter", value=options.predicate,
            advice=f"Use SQL over the columns {', '.join(dataset.schema.names)}",
        ) from error  # fmt: skip
    return predicate


def size_of(fragment: FragmentMetadata) -> tuple[int, int]:
    """Return a fragment's rows, deleted ones included, and its bytes and what opening it costs."""
    size = sum(file.file_size_bytes or 0 for file in fragment.files)
    return fragment.physical_rows, size + OPEN_BYTES


def grouped(
    sizes: Iterable[tuple[int, int, int]], rows_max: int, size_max: int = PARTITION_BYTES
) -> list[tuple[int, ...]]:
    """Put neighbours together until they have so many rows or bytes; (id, rows, size) each."""
    groups: list[list[int]] = []
    rows = size = 0
    for number, more_rows, more in sizes:
        if groups and rows + more_rows <= rows_max and size + more <= size_max:
            groups[-1].append(number)
            rows, size = rows + more_rows, size + more
        else:
            groups.append([number])
            rows, size = more_rows, more
    return [tuple(group) for group in groups]
