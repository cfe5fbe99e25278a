"""The rows that were accepted and not applied, read from the transactions topic."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from commitlog.adapters.reading import read_on
from commitlog.adapters.storage import store_for
from commitlog.codecs.avro import decode_log_record
from commitlog.codecs.payloads import inline_rows
from commitlog.model.operations import WriteRows
from commitlog.model.records import Submitted, Transaction
from commitlog.model.table import TableId
from commitlog.ports import Log, Reader

LATE_SECONDS = 0.005
"""How long a fetch waits for the next one: at once, each append of anybody's would end a fetch."""


class AcceptedWrite(NamedTuple):
    """An accepted write, by its position."""

    sequence: int
    position: int
    """Which of its transaction's operations it is."""
    operation: WriteRows
    payload: bytes | None
    """None: they are in no record and in no file."""
    principal: str
    is_stale: bool = False
    """A column of it was dropped since, though a new one may have its id."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits to be applied to one table, as a leader describes it."""

    table: TableId
    incarnation: str
    applied: int
    pending: tuple[tuple[int, int, tuple[int, ...]], ...]
    """Positions, each with its transaction's offset and the operations in it."""
    stale: frozenset[tuple[int, int]] = frozenset()
    """Positions and operations of those with a column that was dropped since."""
    awaited: int = 0
    """How many clients wait for what comes of their writes."""
    records: tuple[tuple[int, str, str], ...] = ()
    """Transactions that the leader handed over: offset, key and record, in base64."""

    @classmethod
    def of(cls, body: Any) -> Waiting:
        """Read a leader's description."""
        return cls(
            tuple(body["table"]),
            body["incarnation"],
            body["applied"],
            tuple((sequence, offset, tuple(ops)) for sequence, offset, ops in body["pending"]),
            frozenset((sequence, index) for sequence, index in body.get("stale", ())),
            body.get("awaited", 0),
            tuple(map(tuple, body.get("records", ()))),
        )


class Tail:
    """Reads transactions by offset, each once as long as they are asked for in order."""

    def __init__(self, log: Log, partition: int) -> None:
        self._log, self._partition = log, partition
        self._reader: Reader[Submitted] | None = None
        self._known: dict[int, Transaction] = {}
        self._held: dict[str, set[int]] = {}
        """By incarnation: the offsets of what waits."""

    @property
    def next_offset(self) -> int:
        """From where on transactions aren't known."""
        return max(self._known, default=-1) + 1

    def known(self, waiting: Sequence[Waiting], busy: Collection[str]) -> dict[int, Transaction]:
        """Return the transactions that wait; of tables that are `busy`, the ones before too."""
        self._take(waiting)
        held = {name: self._held.get(name, set()) for name in busy}
        for one in waiting:
            offsets = {offset for _, offset, _ in one.pending}
            held[one.incarnation] = offsets | held.get(one.incarnation, set())
        self._held = held
        return self.read(set().union(*held.values()))

    def _take(self, waiting: Sequence[Waiting]) -> None:
        """Take what the leader handed over; if that is all there is, nothing is read by itself."""
        for offset, key, value in (record for one in waiting for record in one.records):
            record = decode_log_record(key.encode(), base64.b64decode(value))
            if isinstance(record, Transaction):
                self._known[offset] = record
        if all(offset in self._known for one in waiting for _, offset, _ in one.pending):
            self.close()

    def read(self, offsets: Iterable[int]) -> dict[int, Transaction]:
        """Return the transactions at these offsets; forget all others but those after them."""
        wanted = set(offsets)
        last = max(wanted, default=-1)
        self._known = {at: one for at, one in self._known.items() if at in wanted or at > last}
        if missing := wanted.difference(self._known):
            self._read(missing)
        return {offset: self._known[offset] for offset in wanted if offset in self._known}

    def close(self) -> None:
        """End the reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _read(self, missing: set[int]) -> None:
        if self._reader is None or self._reader.position() > min(missing):
            self.close()
            self._reader = self._log.read_transactions(
                self._partition, min(missing), patient=LATE_SECONDS
            )
        last = max(missing)
        for submitted in read_on(self._reader, last + 1):
            # What comes after the last one was appended and isn't decided yet: it is next.
            is_due = submitted.offset in missing or submitted.offset > last
            if is_due and isinstance(submitted.record, Transaction):
                self._known[submitted.offset] = submitted.record


def accepted(waiting: Waiting, known: dict[int, Transaction], location: str) -> list[AcceptedWrite]:
    """Return the writes that wait, in their order; those of an unread transaction end the list."""
    found: list[AcceptedWrite] = []
    for sequence, offset, indices in waiting.pending:
        transaction = known.get(offset)
        if transaction is None:
            break
        for index, payload in rows_of(transaction, indices, location):
            operation = transaction.operations[index]
            assert isinstance(operation, WriteRows)
            is_stale = (sequence, index) in waiting.stale
            principal = transaction.principal
            found.append(AcceptedWrite(sequence, index, operation, payload, principal, is_stale))
    return found


def rows_of(
    transaction: Transaction, indices: Iterable[int], location: str
) -> Iterator[tuple[int, bytes | None]]:
    """Yield the rows of some writes, from the record or their files; None: they are gone."""
    inline = inline_rows(transaction)
    for index in indices:
        operation = transaction.operations[index]
        path = operation.path if isinstance(operation, WriteRows) else ""
        yield index, _from_file(location, path) if path else inline.get(index)


def _from_file(location: str, path: str) -> bytes | None:
    try:
        return store_for(location).read(path)
    except FileNotFoundError:
        return None
