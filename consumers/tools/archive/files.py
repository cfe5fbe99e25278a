"""A segment's Parquet files: written whole or not at all, and checked against what proves them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from commitlog.adapters import disk
from commitlog.adapters.log_records import to_answered, to_submitted
from commitlog.core.log.replica import has_content
from commitlog.errors import CorruptLog
from commitlog.model.records import Outcome, Submitted
from commitlog.ports import RawRecord
from consumers.tools.archive.proof import ArchivedFile, DecidedSegment, digest_of

ROWS_PER_GROUP = 5_000
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("append_time_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


def table_of(records: Sequence[RawRecord]) -> pa.Table:
    """Return records as the table that their Parquet file holds."""
    columns = list(zip(*records, strict=True)) or [(), (), (), ()]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.table(arrays, schema=SCHEMA)


def records_in(parquet: pq.ParquetFile) -> Iterator[RawRecord]:
    """Yield the records that a Parquet file holds."""
    for batch in parquet.iter_batches(ROWS_PER_GROUP):
        yield from map(RawRecord, *(column.to_pylist() for column in batch.columns))


def write_file(folder: Path, name: str, records: Sequence[RawRecord]) -> ArchivedFile:
    """Write records to a file of this name; return what proves it."""
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / f"{name}.tmp"
    table = table_of(records)
    try:
        with staged.open("wb") as file:
            pq.write_table(table, file, row_group_size=ROWS_PER_GROUP, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = str(staged)  # the call itself knows none
        disk.discard(str(staged))
        raise
    size, sha256 = _hash_of(staged)
    staged.rename(folder / name)
    disk.sync(folder)  # so that the name outlasts a crash
    first, last = (records[0].offset, records[-1].offset) if records else (-1, -1)
    return ArchivedFile(
        name=name,
        rows=len(records),
        bytes=size,
        sha256=sha256,
        first_offset=first,
        last_offset=last,
        digest=digest_of(records),
    )


def read_file(folder: Path, file: ArchivedFile) -> Iterator[RawRecord]:
    """Yield a file's records; raise CorruptLog if it is gone or cannot be read."""
    try:
        with pq.ParquetFile(folder / file.name) as parquet:
            yield from records_in(parquet)
    except (OSError, pa.ArrowException) as error:
        raise CorruptLog(f"the archive's file {folder / file.name} cannot be read: {error}") from (
            error
        )


def check_segment(folder: Path, segment: DecidedSegment) -> None:
    """Read a segment's files from the disk and prove them; raise CorruptLog if they aren't it.

    The files are the ones that were written, their records the ones that were copied, the outcomes
    link the hashes of both ends, and each has its transaction, with the content that it names.
    """
    for file in (segment.outcomes, segment.transactions):
        path = folder / file.name
        try:
            found = _hash_of(path)
        except OSError as error:
            raise _bad(path, f"cannot be read: {error}") from error
        if found != (file.bytes, file.sha256):
            raise _bad(path, "isn't the file that was written: its sha256 differs")
    for file in (segment.outcomes, segment.transactions):
        records = list(read_file(folder, file))
        if (len(records), digest_of(records)) != (file.rows, file.digest):
            raise _bad(folder / file.name, "holds other records than were copied")
    answered = transactions_in(folder, segment)
    for outcome in outcomes_of(folder, segment):
        transaction = answered.pop(outcome.transaction_offset, None)
        if transaction is None or not has_content(transaction.record, outcome.payload_hash):
            raise _bad(
                folder / segment.transactions.name,
                f"hasn't the transaction that outcome {outcome.sequence} answers",
            )
    if answered:
        raise _bad(
            folder / segment.transactions.name,
            f"has {len(answered)} transactions that none of its outcomes answers",
        )


def outcomes_of(folder: Path, segment: DecidedSegment) -> list[Outcome]:
    """Return a segment's valid outcomes in their order; raise CorruptLog if some are missing.

    Of two that continue one outcome, only its hash at the end tells which is valid: a leader that
    was deposed may have appended the other one late.
    """
    by_hash: dict[bytes, Outcome] = {}
    for raw in read_file(folder, segment.outcomes):
        record = to_answered(0, *raw).record
        if isinstance(record, Outcome):
            by_hash[record.hash] = record
    found: list[Outcome] = []
    head = bytes.fromhex(segment.end.hash)
    for sequence in range(segment.end.sequence, segment.first_sequence - 1, -1):
        outcome = by_hash.get(head)
        if outcome is None or outcome.sequence != sequence:
            path = folder / segment.outcomes.name
            raise _bad(path, f"breaks the chain at outcome {sequence}")
        found.append(outcome)
        head = outcome.previous_hash
    if head.hex() != segment.start_hash:
        path = folder / segment.outcomes.name
        raise _bad(path, f"breaks the chain before outcome {segment.first_sequence}")
    return found[::-1]


def transactions_in(folder: Path, segment: DecidedSegment) -> dict[int, Submitted]:
    """Return a segment's transactions by their offsets."""
    found = {}
    for raw in read_file(folder, segment.transactions):
        submitted = to_submitted(0, *raw)
        if submitted is not None:
            found[raw.offset] = submitted
    return found


def _hash_of(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def _bad(path: Path, what: str) -> CorruptLog:
    return CorruptLog(f"the archive's file {path} {what}. Restore it; nothing was given up by it")
