"""The outcomes of late by transaction id, and the writers that wait for one.

What a leader's socket answers from memory, and when."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from commitlog import wire
from commitlog.model.records import Outcome, Status
from commitlog.wire import Watch
from consumers.partition.readable import keep
from consumers.socket.connections import WriterConnection

REMEMBERED_MAX = 50_000
REMEMBERED_BYTES_MAX = 64 * 1024 * 1024
"""Outcomes that are answered from memory, and their records' bytes; older ones are looked up in the
log."""
ANSWERS_PER_ID_MAX = 8


@dataclass(slots=True)
class Answer:
    """A decided transaction: what its watchers get."""

    outcome: Outcome
    offset: int
    record: bytes
    readable: bool

    def frame(self) -> bytes:
        return wire.outcome_frame(self.readable, self.offset, self.record)

    def satisfies(self, watch: Watch) -> bool:
        outcome = self.outcome
        return (
            outcome.attempt >= watch.attempt
            and (self.readable or not watch.readable)
            and watch.payload_hash in (b"", outcome.payload_hash)
        )


class Remembered:
    """The newest outcomes of a term. Not thread-safe."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, list[Answer]] = OrderedDict()
        self._bytes = 0
        self.none_through = 0
        """Up to this sequence outcomes have to be looked up elsewhere."""

    def begin(self, sequence: int) -> None:
        """Forget everything: a term begins after outcome `sequence`."""
        self._by_id.clear()
        self._bytes = 0
        self.none_through = sequence

    def of(self, transaction_id: str) -> list[Answer]:
        """Return the answers for an id, a commit first."""
        return self._by_id.get(transaction_id, [])

    def add(self, answer: Answer) -> None:
        """Keep what was decided for an id: mostly one answer, more for retries and reused ids."""
        transaction_id = answer.outcome.transaction_id
        known = self._by_id.get(transaction_id)
        if known is None:
            self._by_id[transaction_id] = [answer]
            self._bytes += len(answer.record)
        else:
            self._add_to(known, answer)
        while len(self._by_id) > REMEMBERED_MAX or self._bytes > REMEMBERED_BYTES_MAX:
            _, forgotten = self._by_id.popitem(last=False)
            self._bytes -= _bytes_of(forgotten)
            # An id that was retried holds an outcome later than those of its neighbours.
            newest = max(one.outcome.sequence for one in forgotten)
            self.none_through = max(self.none_through, newest)

    def _add_to(self, known: list[Answer], answer: Answer) -> None:
        # A request that names no content gets the commit, if there is one.
        others = [a for a in known if a.outcome.sequence != answer.outcome.sequence]
        others.append(answer)
        others.sort(key=lambda a: a.outcome.status is not Status.COMMITTED)
        before = _bytes_of(known)
        known[:] = others[:ANSWERS_PER_ID_MAX]
        self._bytes += _bytes_of(known) - before


def _bytes_of(answers: list[Answer]) -> int:
    return sum(len(answer.record) for answer in answers)


class Watches:
    """The watches of all writers."""

    def __init__(self) -> None:
        self._watchers: dict[str, list[tuple[WriterConnection, Watch]]] = {}
        self.committed_wanted = 0
        """How many don't wait for files."""

    def clear(self) -> None:
        """Forget all."""
        self._watchers.clear()
        self.committed_wanted = 0

    def add(self, connection: WriterConnection, watch: Watch) -> None:
        """Keep a watch until it is satisfied."""
        self.committed_wanted += not watch.readable
        connection.watches.add(watch.transaction_id)
        self._watchers.setdefault(watch.transaction_id, []).append((connection, watch))

    def satisfied(self, answer: Answer) -> list[WriterConnection]:
        """Take the watches that an answer satisfies away; return whom to send it to."""
        transaction_id = answer.outcome.transaction_id
        waiting = self._watchers.get(transaction_id)
        if waiting is None:
            return []
        left = [(c, w) for c, w in waiting if not answer.satisfies(w)]
        due = []
        for connection, watch in waiting:
            if answer.satisfies(watch):
                due.append(connection)
                connection.watches.discard(transaction_id)
                self.committed_wanted -= not watch.readable
        for connection, _ in left:
            connection.watches.add(transaction_id)
        keep(self._watchers, transaction_id, left)
        return due

    def left(self, connection: WriterConnection) -> None:
        """Forget a writer's watches."""
        for transaction_id in connection.watches:
            waiting = self._watchers.get(transaction_id, [])
            gone = [watch for who, watch in waiting if who is connection]
            self.committed_wanted -= sum(not watch.readable for watch in gone)
            keep(
                self._watchers, transaction_id, [one for one in waiting if one[0] is not connection]
            )
