"""Files that executors write and a driver commits (`file_commits`).

An executor is told where a table is and how its rows look, and never asks the log. What it
wrote goes to the driver as text: fragments as Lance has them in JSON, and, where the table
declares a key, the hashes of the keys, so that an upsert by somebody else conflicts with these
rows only if it is about the same keys.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from socket import gethostname
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata, write_fragments
from pyspark import TaskContext
from pyspark.sql.types import StructType

from commitlog.adapters.places import bound
from commitlog.adapters.row_contract import check_columns, present
from commitlog.adapters.row_digest import joined_digests, rows_digest
from commitlog.adapters.storage_options import storage_options
from commitlog.client.leader.repeats import digest_name
from commitlog.client.rows.data import arrow_stream
from commitlog.client.rows.full_storage import naming_full_storage
from commitlog.client.rows.rows import raise_wrong_rows
from commitlog.codecs.keys import HASH_BYTES, key_hashes, packed
from commitlog.errors import InvalidTransaction
from commitlog.model.limits import ROWS_INLINE_BYTES_MAX
from commitlog.model.operations import KeyHashes
from commitlog.spark.arrow import arrow_schema, conformed
from commitlog.spark.options import Connection, WriteOptions
from commitlog.spark.versions import standing

Connect = Callable[[Connection], Any]
"""What makes a `commitlog.CommitLog` of a connection; another one stands in for it in tests."""

KEYS_MAX = 200_000
"""An append of more rows than this names no keys: 16 bytes each would fill the record."""
KEYS_TOLD_MAX = 2_000_000
"""A task names no more keys than this by the number of tasks up to it: Spark takes 1 GiB of all."""
INLINE_TOLD_MAX = 32 * 1024**2
"""The same of the bytes of rows that a task keeps for the log: thousands keep some 200 MiB."""
TRACED_TASKS_MAX = 100


@dataclass(frozen=True)
class Target:
    """What an executor must know to write files that fit a table."""

    table: str
    location: str
    schema: bytes
    """The columns that are written."""
    data_storage_version: str
    rows_per_file: int
    bytes_per_file: int
    version: int
    """The table's, whose columns these are."""
    fields: str
    """See `fields_digest`."""
    key: tuple[str, ...] = ()
    """The columns of the table's declared key, in the order of their field ids."""
    key_field_ids: tuple[int, ...] = ()
    inline_bytes: int = 0
    """Rows of a task up to this size are kept as they are, for the log; above it, in files."""
    has_digest: bool = False
    """Whether the transaction notes a digest of the rows, which takes as long as writing them."""

    def arrow_schema(self) -> pa.Schema:
        """Return the schema of what is written, field metadata included."""
        return pa.ipc.read_schema(pa.BufferReader(self.schema))


@dataclass(frozen=True)
class Wrote:
    """When and where a task wrote its rows, for the transaction's trace."""

    ended_ns: int
    seconds: float
    host: str
    rows: int


@dataclass(frozen=True)
class WrittenFiles:
    """What was written: fragments in JSON, rows, and the hashes of the rows' keys."""

    fragments: tuple[str, ...] = ()
    rows: int = 0
    keys: bytes | None = b""
    """None: too many to name."""
    digest: int = 0
    """Of the rows, if the target has one; see `adapters.row_digest`."""
    inline: tuple[bytes, ...] = ()
    """Rows that are in no fragment, as streams of Arrow."""
    wrote: tuple[Wrote, ...] = ()
    """Who wrote, of the first tasks."""
    version: int = 0
    """The version of the table for which the fragments were written, and its `fields_digest`."""
    fields: str = ""

    def inline_rows(self) -> pa.Table:
        """Return the rows that are in no fragment."""
        return pa.concat_tables([pa.ipc.open_stream(rows).read_all() for rows in self.inline])

    def metadata(self) -> list[FragmentMetadata]:
        """Return the fragments as Lance takes them."""
        return [FragmentMetadata.from_json(text) for text in self.fragments]

    def key_hashes(self, target: Target) -> KeyHashes | None:
        """Return the keys as a transaction names them; None if it should name none."""
        if not target.key or self.keys is None:
            return None
        return named_keys(target.key_field_ids, self.keys)


def named_keys(field_ids: Sequence[int], hashes: bytes) -> KeyHashes:
    """Return the hashes of keys, one behind the other, as a transaction names them."""
    starts = range(0, len(hashes), HASH_BYTES)
    return KeyHashes(tuple(field_ids), packed(hashes[at : at + HASH_BYTES] for at in starts))


def no_keys(info: Any) -> KeyHashes | None:
    """Return what a transaction names that inserts no key; None if the table has no key."""
    ids = sorted(info.top_level_ids(info.primary_key))
    return named_keys(ids, b"") if ids else None


def named_by_task(most: int) -> int:
    """Return how many keys a task may name to its driver, if all tasks may name so many."""
    return _told_by_task(most, KEYS_TOLD_MAX)


def _told_by_task(most: int, of_all: int) -> int:
    context = TaskContext.get()
    return min(most, of_all // (context.partitionId() + 1 if context else 1))


def joined(parts: Iterable[WrittenFiles]) -> WrittenFiles:
    """Return what several tasks wrote as one."""
    found = list(parts)
    rows = sum(part.rows for part in found)
    known = [part.keys for part in found if part.keys is not None]
    all_known = len(known) == len(found) and rows <= KEYS_MAX
    fragments = tuple(text for part in found for text in part.fragments)
    digest = joined_digests([part.digest for part in found])
    inline = tuple(rows for part in found for rows in part.inline)
    keys = b"".join(known) if all_known else None
    wrote = tuple(one for part in found for one in part.wrote)[:TRACED_TASKS_MAX]
    version, fields = min(((p.version, p.fields) for p in found if p.fragments), default=(0, ""))
    return WrittenFiles(
        fragments=fragments,
        rows=rows,
        keys=keys,
        digest=digest,
        inline=inline,
        wrote=wrote,
        version=version,
        fields=fields,
    )


def in_fragments(files: WrittenFiles, target: Target) -> WrittenFiles:
    """Return the same with all rows in fragments; what isn't yet is written here."""
    if not files.inline:
        return files
    rows = files.inline_rows()
    written = write_files(rows.to_batches(), replace(target, inline_bytes=0, has_digest=False))
    rest = replace(files, rows=files.rows - written.rows, digest=0, inline=(), wrote=())
    return replace(joined([rest, written]), digest=files.digest)


def target_of(
    info: Any,
    table: str,
    columns: pa.Schema,
    *,
    rows_per_file: int,
    bytes_per_file: int,
    inline_bytes: int = 0,
    has_digest: bool = False,
) -> Target:
    """Return what executors need of a table's description (`client.tables.TableInfo`)."""
    key = sorted(info.primary_key, key=lambda name: info.top_level_ids([name]))
    return Target(
        table=table,
        location=info.location,
        schema=columns.serialize().to_pybytes(),
        data_storage_version=info.data_storage_version,
        rows_per_file=rows_per_file,
        bytes_per_file=bytes_per_file,
        version=info.version,
        fields=fields_digest(info),
        key=tuple(key),
        key_field_ids=tuple(info.top_level_ids(key)),
        inline_bytes=inline_bytes,
        has_digest=has_digest,
    )


def fields_digest(info: Any) -> str:
    """Return a digest of a table's columns, in which each has its field id, name and type."""
    fields = info.field_ids.values()
    told = [(field.id, field.parent_id, field.name, field.logical_type) for field in fields]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def plan(
    options: WriteOptions,
    schema: StructType,
    connect: Connect,
    *,
    overwrite: bool,
    has_digest: bool,
) -> Target:
    """Look the table up and check that the query's columns fit it, before any executor starts."""
    info = standing(connect(options.connection), options.table)
    return target_for(
        info, options.table, schema, options, overwrite=overwrite, has_digest=has_digest
    )


def target_for(
    info: Any,
    table: str,
    schema: StructType,
    options: WriteOptions,
    *,
    overwrite: bool,
    has_digest: bool,
) -> Target:
    """Return what executors need to append a query's rows, or to replace all with them.

    Columns that the query lacks are left out of the files; they are null when they are read. A
    table whose rows are replaced keeps all its columns.

    Raises:
        InvalidTransaction: names a column that doesn't fit.
    """
    given = arrow_schema(schema, table)
    if not given.names:
        raise InvalidTransaction(
            f"the rows for {table} have no columns", field="columns", value=table,
            advice=f"Select some of {', '.join(info.schema.names)}",
        )  # fmt: skip
    check_columns(given, info.schema, table)
    return target_of(
        info,
        table,
        info.schema if overwrite else present(given, info.schema),
        rows_per_file=options.rows_per_file,
        bytes_per_file=options.bytes_per_file,
        inline_bytes=ROWS_INLINE_BYTES_MAX if options.by_log and not overwrite else 0,
        has_digest=has_digest,
    )


def write_files(batches: Iterable[pa.RecordBatch], target: Target) -> WrittenFiles:
    """Stream batches into new fragments of a table; keep few rows as they are if it may."""
    began = time.monotonic()
    files = _write_files(batches, target)
    took = time.monotonic() - began
    if not files.rows:
        return files
    return replace(files, wrote=(Wrote(time.time_ns(), took, gethostname(), files.rows),))


def _write_files(batches: Iterable[pa.RecordBatch], target: Target) -> WrittenFiles:
    schema = target.arrow_schema()
    kept_max = _told_by_task(target.inline_bytes, INLINE_TOLD_MAX)
    small, fitted = _few(conformed(batches, schema, target.table), kept_max)
    if small:
        digest = sum(map(rows_digest, small if target.has_digest else ()))
        few = sum(batch.num_rows for batch in small)
        stream = arrow_stream(pa.Table.from_batches(small, schema))
        return WrittenFiles(rows=few, digest=joined_digests([digest]), inline=(stream,))
    first = next(fitted, None)
    if first is None:
        return WrittenFiles()
    keys: set[bytes] = set()
    keys_max = named_by_task(KEYS_MAX)
    failed: list[Exception] = []
    count = digest = 0

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal count, digest
        batch: pa.RecordBatch | None = first
        try:
            while batch is not None:
                count += batch.num_rows
                digest += rows_digest(batch) if target.has_digest else 0
                if target.key and count <= keys_max:
                    keys.update(hashes_of(batch, target.key))
                yield batch
                batch = next(fitted, None)
        except Exception as error:
            failed.append(error)
            raise

    try:
        with naming_full_storage(target.table, target.location):
            fragments = write_fragments(
                pa.RecordBatchReader.from_batches(schema, rows()),
                bound(target.location),
                schema=schema,
                max_rows_per_file=target.rows_per_file,
                max_bytes_per_file=target.bytes_per_file,
                data_storage_version=target.data_storage_version or None,
                storage_options=storage_options(target.location) or None,
            )
    except Exception as error:
        # pylance wraps what went wrong in the rows beyond recognition.
        if failed:
            raise failed[0] from None
        raise_wrong_rows(target.table, error)
        raise
    written = tuple(json.dumps(fragment.to_json()) for fragment in fragments)
    known = packed(keys) if count <= keys_max else None
    return WrittenFiles(
        fragments=written,
        rows=count,
        keys=known,
        digest=joined_digests([digest]),
        version=target.version,
        fields=target.fields,
    )


def _few(
    batches: Iterator[pa.RecordBatch], bytes_max: int
) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]:
    """Return all batches if they are small enough, else none, and an iterator over what is left."""
    if not bytes_max:
        return [], batches
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        kept.append(batch)
        size += batch.nbytes
        if size > bytes_max:
            return [], chain(kept, batches)
    return kept, iter(())


def brought(table: str, rows: int, digest: int) -> dict[str, int]:
    """Return what a transaction notes of the rows that it brings for a table."""
    return {f"for {table}": rows, digest_name(table): digest}


def hashes_of(rows: pa.RecordBatch, key: tuple[str, ...]) -> list[bytes]:
    """Return the hashes of the rows' keys; a key with a null in it equals no other."""
    if not all(name in rows.schema.names for name in key):
        return []
    keys = keyed_rows(rows.select(list(key)), key)
    return key_hashes([keys.column(name) for name in key])


def keyed_rows(rows: pa.RecordBatch, key: tuple[str, ...]) -> pa.RecordBatch:
    """Return the rows that have no null in their key."""
    valid = pc.is_valid(rows.column(key[0]))
    for name in key[1:]:
        valid = pc.and_(valid, pc.is_valid(rows.column(name)))
    return rows.filter(valid)


def small_enough(files: WrittenFiles) -> pa.Table | None:
    """Return the rows if one record can have them all, None if they belong into files."""
    if files.fragments or not files.inline:
        return None
    rows = files.inline_rows()
    return rows if rows.nbytes <= ROWS_INLINE_BYTES_MAX else None
