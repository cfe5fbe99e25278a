"""Rebuilds tables' rows from the writes in the log, and compares them with the tables' versions.

A Lance file's bytes are its writer's, so what is compared is the content of rows. A table is taken
as some version has it, what was written by the log since is applied to that, and the newest version
has to have the same rows. Commits that change rows without the log's having them start over: what
they left is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import lance
import pyarrow as pa
import pyarrow.compute as pc

from commitlog.adapters.lance_datasets import open_dataset
from commitlog.adapters.lance_refs import versions_with_files
from commitlog.adapters.places import bound
from commitlog.adapters.row_digest import joined_digests, row_hashes, rows_digest
from commitlog.client.accepted.row_reading import read_write
from commitlog.client.accepted.row_tail import Tail, rows_of
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.row_groups import Group, RowsUnusable, Write
from commitlog.client.rows.rows import ROW_ADDRESS, ROW_ID, hashes_of
from commitlog.core.log.replica import Decided
from commitlog.core.tables.lance_tables import Table, is_in
from commitlog.errors import without_build_paths
from commitlog.model.operations import ApplyRows, WriteRows
from commitlog.model.records import OperationResult, Transaction, is_commit

ROWS_MAX = 20_000_000
"""A larger table isn't rebuilt in one process's memory."""
WRITES_AT_ONCE = 2_000
KEPT_AS_THEY_ARE = frozenset(
    {"Rewrite", "ReserveFragments", "CreateIndex", "UpdateConfig", "UpdateBases"}
)
"""Operations that leave rows as they are."""
_SHOWN_CHARACTERS = 200


class _At(NamedTuple):
    """A write that was applied."""

    sequence: int
    operation: int
    offset: int
    """Of its transaction; -1: it was accepted before this began to follow."""


@dataclass(slots=True)
class _Run:
    """Versions with the same rows, and the writes by which they differ from those before."""

    first: int
    last: int
    writes: list[_At] | None
    """None: something else came between."""


@dataclass(slots=True)
class _History:
    version: int = 0
    runs: list[_Run] = field(default_factory=list)
    pending: dict[int, int] = field(default_factory=dict)
    """Offsets of accepted transactions by their positions."""
    has_writes: bool = False


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that isn't in a version as the log's writes left it."""

    version: int
    sequence: int
    """The position of the last write of that row."""
    text: str


class RowHistories:
    """Follows which writes of rows each version of each table has."""

    def __init__(self) -> None:
        self._tables: dict[str, _History] = {}

    def take(self, decided: Decided) -> None:
        """Take the next outcome."""
        record, outcome = decided.submitted.record, decided.outcome
        if not is_commit(outcome) or not isinstance(record, Transaction):
            return
        applied = {one.table for one in record.operations if isinstance(one, ApplyRows)}
        for operation, result in zip(record.operations, outcome.results, strict=False):
            table = self._tables.setdefault(result.incarnation, _History())
            if isinstance(operation, WriteRows):
                table.pending[outcome.sequence] = decided.submitted.offset
            elif isinstance(operation, ApplyRows):
                self._apply(table, operation)
            elif result.version:
                self._commit(table, result, by_rows=result.table in applied)

    def _apply(self, table: _History, operation: ApplyRows) -> None:
        writes = [
            _At(one.sequence, one.operation, table.pending.get(one.sequence, -1))
            for one in operation.writes
            if not one.refused
        ]
        for sequence in [s for s in table.pending if s <= operation.through]:
            del table.pending[sequence]
        table.runs.append(_Run(table.version, table.version, writes))
        table.has_writes = True

    def _commit(self, table: _History, result: OperationResult, *, by_rows: bool) -> None:
        table.version = result.version
        if by_rows and table.runs:
            table.runs[-1].first = table.runs[-1].last = result.version
        elif result.operation in KEPT_AS_THEY_ARE and table.runs:
            table.runs[-1].last = result.version
        else:
            table.runs, table.has_writes = [_Run(result.version, result.version, None)], False

    def compare(
        self, info: TableInfo, tail: Tail, on_rows: Callable[[int], None] = lambda rows: None
    ) -> RowDifference | None:
        """Return the first row of a table that isn't what its writes come to.

        None too if nothing can be compared: no version before the writes can be read any more, or
        the rows of writes are gone. `on_rows` is called with how many rows were compared.
        """
        table = self._tables.get(info.incarnation)
        if table is None or not table.has_writes or info.has_blobs:
            return None
        try:
            return _compare(table, info, tail, on_rows)
        except (OSError, ValueError) as error:  # pylance's, of a file that isn't there
            said = without_build_paths(str(error))
            text = f"files of {info.name}'s rows cannot be read: {said}"
            return RowDifference(table.version, 0, text)


def _compare(
    table: _History, info: TableInfo, tail: Tail, on_rows: Callable[[int], None]
) -> RowDifference | None:
    rebuilding = _Rebuilding(info, tail)
    for run in table.runs:
        rebuilding.advance(run)
    if not rebuilding.is_new_to(table.version):
        return None
    if rebuilding.is_equal(table.version, on_rows):
        return None
    again = _Rebuilding(info, tail)
    for run in table.runs:
        again.advance(run)
        if again.is_new_to(run.last) and not again.is_equal(run.last):
            return again.difference(run)
    return rebuilding.difference(table.runs[-1])


class _Rebuilding:
    """One table, from a version that can be read on."""

    def __init__(self, info: TableInfo, tail: Tail) -> None:
        self._info, self._tail = info, tail
        there = versions_with_files(info.location)
        self._readable = {v for v in there if not is_in(v, info.deleted)}
        self._rows: pa.Table | None = None
        self._base = 0
        self._waiting: list[tuple[_At, Write]] = []
        self._on: tuple[str, ...] = ()
        self._last_of: dict[bytes, int] = {}
        """The position of the last write of a key."""

    def advance(self, run: _Run) -> None:
        """Continue to a run's versions; where writes can't be read, start over at one of them."""
        if self._rows is not None and not (run.writes is not None and self._take(run.writes)):
            self._rows, self._waiting = None, []
        if self._rows is None:
            found = next((v for v in range(run.first, run.last + 1) if v in self._readable), 0)
            dataset = open_dataset(self._info.location, found) if found else None
            if dataset is not None and dataset.count_rows() <= ROWS_MAX:
                self._rows, self._base = dataset.to_table(), found
                names = self._rows.schema.names
                if names != self._info.schema.names:
                    self._rows = None

    def is_new_to(self, version: int) -> bool:
        """Return True if there is something to compare a version with."""
        return self._rows is not None and self._base < version and version in self._readable

    def is_equal(self, version: int, on_rows: Callable[[int], None] = lambda rows: None) -> bool:
        """Return True if a version has the rebuilt rows."""
        self._flush()
        assert self._rows is not None
        theirs = content_of(open_dataset(self._info.location, version))
        on_rows(theirs[0])
        return theirs == content_of(self._rows)

    def difference(self, run: _Run) -> RowDifference:
        """Say of one row that differs what it is and who wrote it last."""
        self._flush()
        assert self._rows is not None
        found = open_dataset(self._info.location, run.last).to_table()
        on = self._on or self._info.primary_key
        own, theirs = _by_key(self._info, on, self._rows), _by_key(self._info, on, found)
        where = f"{self._info.name}, version {run.last}"
        last = run.writes[-1].sequence if run.writes else 0
        none = (None, 0)
        differing = (k for k in (*own, *theirs) if own.get(k, none)[0] != theirs.get(k, none)[0])
        key = next(differing, None)
        if key is None:
            count = f"{found.num_rows:,} rows, and the log's writes make {self._rows.num_rows:,}"
            return RowDifference(run.last, last, f"{where}, has {count}: some are there twice")
        rows, at = (self._rows, own[key]) if key in own else (found, theirs[key])
        shown = str(rows.select(list(on)).slice(at[1], 1).to_pylist()[0]) if on else "some row"
        sequence = self._last_of.get(key, last)
        what = "lacks it" if key not in theirs else "has it otherwise" if key in own else "has it"
        text = (
            f"{shown[:_SHOWN_CHARACTERS]} of {where}, isn't as the log's writes left it, the last "
            f"at position {sequence}: the table {what}"
        )
        return RowDifference(run.last, sequence, text)

    def _take(self, writes: Sequence[_At]) -> bool:
        """Take a run's writes; return False if one can't be read."""
        known = self._tail.read({one.offset for one in writes if one.offset >= 0})
        if any(one.offset not in known for one in writes):
            return False
        for one, payload in self._with_rows(writes, known):
            operation = known[one.offset].operations[one.operation]
            assert isinstance(operation, WriteRows)
            try:
                write = read_write(self._info, operation, payload)
            except RowsUnusable:
                return False
            if operation.on and self._on not in {(), operation.on}:
                self._flush()
                self._last_of = {}
            self._on = operation.on or self._on
            self._waiting.append((one, write))
            if len(self._waiting) >= WRITES_AT_ONCE:
                self._flush()
        return True

    def _with_rows(
        self, writes: Sequence[_At], known: Mapping[int, Transaction]
    ) -> Iterator[tuple[_At, bytes | None]]:
        for offset, group in groupby(writes, lambda one: one.offset):
            own = list(group)
            rows = rows_of(known[offset], [one.operation for one in own], self._info.location)
            yield from ((one, payload) for one, (_, payload) in zip(own, rows, strict=True))

    def _flush(self) -> None:
        """Apply the writes that wait."""
        if not self._waiting or self._rows is None:
            return
        count = self._rows.num_rows
        numbers = pa.array(range(count), pa.uint64())
        base = self._rows.append_column(ROW_ADDRESS, numbers).append_column(ROW_ID, numbers)
        merged = Group(self._info, base).apply([write for _, write in self._waiting])
        gone = pc.is_in(numbers, merged.gone.combine_chunks())
        kept = self._rows.filter(pc.invert(gone))
        self._rows = pa.concat_tables([kept, merged.rows.cast(kept.schema)])
        on = self._on or self._info.primary_key
        for at, write in self._waiting:
            has_key = bool(on) and all(name in write.rows.schema.names for name in on)
            keys = hashes_of(self._info, on, write.rows) if has_key else []
            self._last_of.update(dict.fromkeys(keys, at.sequence))
        self._waiting = []


def content_of(rows: pa.Table | lance.LanceDataset) -> tuple[int, int]:
    """Return how many rows there are, and a digest of them in any order."""
    count, digests = 0, []
    for batch in rows.to_batches():
        count += batch.num_rows
        digests.append(rows_digest(batch))
    return count, joined_digests(digests)


def info_of(table: Table) -> TableInfo | None:
    """Describe a table as the log has it; None if it has no version."""
    if table.manifest is None:
        return None
    message = table.manifest.header.message
    return TableInfo(
        table_id=table.table_id,
        incarnation=table.incarnation,
        location=bound(table.location),
        version=table.version,
        readable_version=table.version,
        policy=table.policy,
        primary_key=table.primary_key,
        properties=dict(table.properties),
        stable_row_ids=False,
        fields=tuple(one.SerializeToString() for one in message.fields),
        schema_metadata=tuple(sorted(message.schema_metadata.items())),
        deleted=table.deleted,
    )


def _by_key(info: TableInfo, on: Sequence[str], rows: pa.Table) -> dict[bytes, tuple[int, int]]:
    """Return the hash of each row and its number, by its key; without one, by the hash itself."""
    whole = rows.combine_chunks().to_batches()
    hashes = [int(one) for batch in whole for one in row_hashes(batch)]
    if not on:
        return {one.to_bytes(8): (one, number) for number, one in enumerate(hashes)}
    valid = [number for number, ok in enumerate(_valid(rows, on)) if ok]
    keys = hashes_of(info, on, rows)
    return {key: (hashes[number], number) for key, number in zip(keys, valid, strict=True)}


def _valid(rows: pa.Table, on: Sequence[str]) -> Iterator[bool]:
    columns = [pc.is_valid(rows.column(name)).to_pylist() for name in on]
    return map(all, zip(*columns, strict=True))
