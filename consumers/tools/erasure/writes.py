"""Which writes of rows hold rows that are to be erased."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from commitlog.adapters.lance_datasets import rows_where
from commitlog.client.accepted.row_reading import unpacked_rows
from commitlog.client.accepted.row_tail import rows_of
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.rows import hashes_of
from commitlog.core.log.replica import Decided, Replica
from commitlog.model.operations import WriteRows
from commitlog.model.records import Transaction
from commitlog.model.table import TableId
from commitlog.ports import Log
from consumers.runtime.progress import OnProgress, untold
from consumers.tools.erasure.acts import Position
from consumers.tools.verify.walk import Walk

BATCH_ROWS = 50_000
_NUMBER = "__commitlog_write"

_OfWrite = tuple[Position, pa.Table]


class HeldWrite(NamedTuple):
    """A write of rows to the table, and where its rows are."""

    at: Position
    offset: int
    key: bytes
    """Of its record."""
    path: str
    """Of its file below the table; empty: its rows are in its record."""
    payload: bytes | None
    """None: its rows are gone."""


@dataclass(slots=True)
class HeldRows:
    """What holds rows that are to be erased."""

    writes: set[Position] = field(default_factory=set)
    keys: set[bytes] = field(default_factory=set)
    """Hashes of their keys, where the table has a key."""
    unreadable: int = 0
    """Writes whose rows aren't an Arrow stream; what they hold is unknown."""


def decided_in(log: Log, partition: int, on_progress: OnProgress = untold) -> Iterator[Decided]:
    """Yield all decided transactions; raise CorruptLog if the log can't be followed."""
    with closing(Walk(log, partition, Replica())) as walk:
        yield from walk.decided(on_progress)
        walk.check()


class TableWrites:
    """Reads what was written to one table, under all names that it had, refused or not."""

    def __init__(
        self, log: Log, partition: int, info: TableInfo, others: Set[str] = frozenset()
    ) -> None:
        """Read a partition; `others` are the incarnations of tables that may have such a name."""
        self._others = others
        self._log, self._partition, self._info = log, partition, info

    def read(self, on_progress: OnProgress = untold) -> Iterator[HeldWrite]:
        """Yield them in the order of the log."""
        names: set[TableId] = {self._info.table_id}
        for decided in decided_in(self._log, self._partition, on_progress):
            record, outcome = decided.submitted.record, decided.outcome
            own = [r.table for r in outcome.results if r.incarnation == self._info.incarnation]
            names.update(own)
            if not isinstance(record, Transaction) or record.payload_hash != outcome.payload_hash:
                continue  # or rules that knew no rows refused it, by the hash of all of it
            foreign = {n for n, r in enumerate(outcome.results) if r.incarnation in self._others}
            written = {
                number: operation.path
                for number, operation in enumerate(record.operations)
                if isinstance(operation, WriteRows)
                and operation.table in names
                and number not in foreign
            }
            for number, rows in rows_of(record, written, self._info.location):
                at = Position(outcome.sequence, number)
                submitted = decided.submitted
                yield HeldWrite(at, submitted.offset, submitted.key, written[number], rows)

    def find(self, where: str, keys: set[bytes], on_progress: OnProgress) -> HeldRows:
        """Return the writes with rows for which `where` holds, or which have one of these keys.

        Rows whose key has such a row anywhere count too: a write of some columns only, or of an
        earlier time, may not have what `where` asks for. So the log is read twice.
        """
        found = HeldRows(keys=set(keys))
        gathered: dict[pa.Schema, list[_OfWrite]] = {}
        for write in self.read(on_progress):
            rows = self._rows(write, found)
            if rows is None:
                continue
            batch = gathered.setdefault(rows.schema, [])
            batch.append((write.at, rows))
            if sum(one.num_rows for _, one in batch) >= BATCH_ROWS:
                self._match(gathered.pop(rows.schema), where, found)
        for batch in gathered.values():
            self._match(batch, where, found)
        if found.keys:
            for write in self.read(on_progress):
                rows = self._rows(write, HeldRows())
                if rows is not None and not found.keys.isdisjoint(self._keys(rows)):
                    found.writes.add(write.at)
        return found

    def _rows(self, write: HeldWrite, found: HeldRows) -> pa.Table | None:
        if write.payload is None:
            return None
        try:
            return unpacked_rows(write.payload)
        except (pa.ArrowException, OSError, ValueError):
            found.unreadable += 1
            return None

    def _match(
        self, batch: Sequence[tuple[Position, pa.Table]], where: str, found: HeldRows
    ) -> None:
        tables = [
            rows.append_column(_NUMBER, pa.array([number] * rows.num_rows, pa.int64()))
            for number, (_, rows) in enumerate(batch)
        ]
        whole = pa.concat_tables(tables)
        # What a write lacks is null here, as it is in a row that the write inserts.
        there = set(whole.schema.names)
        for missing in (f for f in self._info.schema if f.name not in there):
            empty = pa.nulls(whole.num_rows, missing.type)
            whole = whole.append_column(missing.with_nullable(True), empty)
        try:
            matching = rows_where(whole, where)
        except ValueError:
            found.unreadable += len(batch)  # its columns had other types then
            return
        found.writes.update(batch[number][0] for number in matching[_NUMBER].to_pylist())
        found.keys.update(self._keys(matching))

    def _keys(self, rows: pa.Table) -> list[bytes]:
        key = self._info.primary_key
        has_key = bool(key) and all(name in rows.schema.names for name in key)
        return hashes_of(self._info, key, rows) if has_key else []
