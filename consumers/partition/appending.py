"""Records that writers send through the socket: appended in groups, and not read again.

The leader appends records of many writers in one request. Kafka's acknowledgement tells each
record's offset and time, as a reader would see them. So the leader takes the record from there,
once it has all records before it. If an offset is missing, a writer appended its record itself: the
leader reads the topic from that offset on, and later acknowledged records wait. Each record is
taken once, in the order of the log, whether it is read or acknowledged first.

So the topic has to be read at the beginning of a term, while others append, and while none of our
records is on its way, since no acknowledgement would then show what others append.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf

from commitlog.codecs.avro import decode_log_record
from commitlog.core.log.replica import Replica
from commitlog.errors import (
    CommitLogError,
    CorruptLog,
    InvalidTransaction,
    Overloaded,
    Unavailable,
)
from commitlog.model.records import LogRecord, ProtocolVersion, Submitted, Transaction
from commitlog.model.table import TableId, format_table_id
from commitlog.ports import DeliveryFailed, RecordsWriter
from commitlog.protocol import session_in_key, transaction_key
from consumers.partition.brokers_clock import BrokersClock
from consumers.partition.files.events import RecordLanded, RecordSent, tables_of
from consumers.partition.returning import RETURN_SECONDS_MIN, Returning

READ_ON_SECONDS = 1.0
"""How long the topic is read after a record that another process appended: more may come."""
QUIET_SECONDS = 0.1
"""After so long without a record from the socket, the topic is read."""
PARTS, UNHURRIED, PACE_SECONDS, WRITERS_SECONDS = 2, 4, 0.01, 0.2
"""Each request costs Kafka's client and the broker. So the next group waits, for PACE_SECONDS at
most, until half (one of PARTS) of the busy writers, not counting UNHURRIED of them, have sent a
record: then one half waits for Kafka or files while the other half writes. A busy writer wrote more
than once within WRITERS_SECONDS; up to six of them never wait."""
UNDECIDED_MAX = 5_000
BYTES_MAX = 64 * 1024 * 1024
"""Limits on writers' records: how many may be undecided, how many bytes on their way. More are
refused for the moment. A table that has its equal share of the undecided records gets no more, so
one whose store is away leaves room for others."""
UNDECIDED_HARD_MAX = 3
"""So many times that may be undecided in all, since many tables may have less than their share."""
SHARES_SECONDS = 0.1
REST_SECONDS = 60.0
"""How long writers' records are refused after one that Kafka didn't acknowledge."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Own:
    """A record on its way to Kafka."""

    sent: RecordSent
    content: LogRecord
    began_at: float
    was_read: bool = False


class Appending:
    """Records that writers sent in a term and the leader hasn't taken yet. Owned by the loop."""

    def __init__(
        self,
        partition: int,
        writer: RecordsWriter | None,
        replica: Replica,
        *,
        post: Callable[[RecordLanded], None],
        clock: Callable[[], float],
    ) -> None:
        """Append by `writer`, whose acknowledgements are posted; `replica` knows what was taken.

        Without a writer nothing is appended for others.
        """
        self._partition, self._writer = partition, writer
        self._replica, self._post, self._clock = replica, post, clock
        self._own: dict[bytes, _Own] = {}
        self._on_their_way = 0
        """How many of them Kafka's client was told to send; the others wait for the next group."""
        self._next_at = 0.0
        self._heard: set[str] = set()
        self._busy: set[str] = set()
        """The sessions that sent a record since `_busy_since`, and those that sent several."""
        self._busy_since, self._busy_before = 0.0, 0
        self.away: Callable[[], int] = lambda: 0
        """Returns how many busy writers can't send now, since they wait for rows to be applied."""
        self.why_not: Callable[[LogRecord], CommitLogError | None] = lambda record: None
        """Says why a record isn't appended for now; None if it may be."""
        self._bytes = 0
        self._by_table: Counter[TableId] = Counter()
        self._counted_until = 0.0
        """How many records of each table are undecided, as counted a moment ago."""
        self._returning = Returning()
        self._landed: dict[int, Submitted] = {}
        """Acknowledged, behind records that were not read yet; by offset."""
        self._problem, self._rests_until = "", 0.0
        """Why nothing is appended for now, and until when; infinity: in this term."""
        self._read_until = clock() + READ_ON_SECONDS
        self.brokers = BrokersClock()
        self._heard_at = self._began_at = 0.0
        """When Kafka acknowledged something, and since when something is on its way."""

    @property
    def is_open(self) -> bool:
        """Whether records are appended for others."""
        return self._writer is not None and self._clock() >= self._rests_until

    @property
    def is_waiting(self) -> bool:
        """Whether anything is on its way to Kafka."""
        return bool(self._own)

    @property
    def silence_seconds(self) -> float:
        """How long Kafka has acknowledged none of the records on their way."""
        return self._clock() - max(self._began_at, self._heard_at) if self._own else 0.0

    @property
    def held_until(self) -> float:
        """Until when a group waits for more records; 0 if none does."""
        if self._on_their_way or not self._own:
            return 0.0
        busy = max(self._busy_before, len(self._busy)) - self.away()
        return self._next_at if PARTS * len(self._own) < busy - UNHURRIED else 0.0

    @property
    def wants_reading(self) -> bool:
        """Whether the topic may hold what no acknowledgement will bring."""
        if self._landed:
            return True
        now = self._clock()
        return now < self._read_until or (not self._own and now >= self._heard_at + QUIET_SECONDS)

    @property
    def due_at(self) -> float:
        """When reading is wanted though nothing happens."""
        return self._heard_at + QUIET_SECONDS

    def count(self) -> Counter[str]:
        """Return how many records of each session are on their way."""
        found = Counter(own.sent.session for own in self._own.values())
        return found + Counter(session_in_key(one.key) for one in self._landed.values())

    def append(self, sent: RecordSent, undecided: int) -> None:
        """Append a record for a writer, or say why not; so many that were read are undecided."""
        undecided += len(self._own) + len(self._landed)
        problem = self._why_not(undecided)
        key = transaction_key(sent.transaction_id, sent.session)
        content = None if problem else decode_log_record(key, sent.record)
        if isinstance(content, ProtocolVersion):
            problem = InvalidTransaction(
                "a leader appends transactions alone for others",
                field="record",
                advice="Append a protocol version by yourself",
            )
        elif content is not None:
            if undecided >= UNDECIDED_MAX:
                problem = self._why_not_this(content)
            problem = problem or self.why_not(content)
        if isinstance(problem, Overloaded) and not problem.table:
            # A client gives up soon what it sends to a table whose files are behind.
            decided = self._replica.transactions_position - len(self._replica.undecided)
            principal = content.principal if isinstance(content, Transaction) else ""
            delay = self._returning.delay(sent.session, principal, decided, self._clock())
            problem.retry_after_seconds = delay
        if self._writer is None or content is None or problem is not None:
            sent.refuse(problem or Unavailable("records are not appended for others"), False)
            return
        now = self._clock()
        if not self._own:
            self._began_at = now
        self._own[key] = _Own(sent, content, now)
        (self._busy if sent.session in self._heard else self._heard).add(sent.session)
        self._bytes += len(sent.record)
        post = self._post
        self._writer.append(
            key,
            sent.record,
            lambda offset, time_ms, error: post(RecordLanded(key, offset, time_ms, error)),
        )

    def poll(self, timeout_seconds: float) -> None:
        """Send what waits and have acknowledgements posted, waiting for one at most so long."""
        if self._writer is None:
            return
        if not self._on_their_way and self._own:
            now = self._clock()
            if now < self.held_until:
                return
            self._on_their_way, self._next_at = len(self._own), now + PACE_SECONDS
            if now > self._busy_since + WRITERS_SECONDS:
                self._busy_since, self._busy_before = now, len(self._busy)
                self._busy.clear()
                self._heard.clear()
        self._writer.poll(timeout_seconds)

    def end(self, why: str) -> None:
        """Append nothing more."""
        self._problem, self._rests_until = why, inf

    def give_up(self, why: str) -> None:
        """Append nothing more, and give up what is on its way."""
        self.end(why)
        if self._writer is not None:
            self._writer.purge()

    def close(self) -> None:
        """Let go of the writer."""
        if self._writer is not None:
            self._writer.close()

    def landed(self, event: RecordLanded) -> Iterator[Submitted]:
        """Take an acknowledgement; yield what is to be taken now, in the order of the log."""
        own = self._own.pop(event.key, None)
        if own is None:
            return  # told twice
        self._bytes -= len(own.sent.record)
        self._on_their_way = max(0, self._on_their_way - 1)
        self._heard_at = self._clock()
        if event.error is None and event.append_time_ms > 0:
            self.brokers.acknowledged(event.append_time_ms, self._heard_at - own.began_at)
        if event.error is not None:
            self._fail(own.sent, event.error)
        elif event.offset < 0 or event.append_time_ms <= 0:
            self._read_until = self._heard_at + READ_ON_SECONDS
        elif event.offset >= self._replica.transactions_position:
            self._landed[event.offset] = Submitted(
                partition=self._partition,
                offset=event.offset,
                append_time_ms=event.append_time_ms,
                record=own.content,
                key=event.key,
            )
            yield from self._next()
        elif not own.was_read:
            raise CorruptLog(
                f"a transaction landed at offset {event.offset}, and the transactions topic was "
                f"read to {self._replica.transactions_position} before: it lost its tail, or was "
                "made again. Run `commitlog verify`"
            )

    def read(self, records: list[Submitted]) -> Iterator[Submitted]:
        """Yield the records that are next: read ones, and acknowledged ones that waited."""
        for one in records:
            if (own := self._own.get(one.key)) is not None:
                own.was_read = True
            # What was acknowledged meanwhile was taken then.
            if one.offset >= self._replica.transactions_position:
                if self._landed.pop(one.offset, None) is None and own is None:
                    self._read_until = self._clock() + READ_ON_SECONDS
                yield one
        yield from self._next()

    def _next(self) -> Iterator[Submitted]:
        while (one := self._landed.pop(self._replica.transactions_position, None)) is not None:
            yield one

    def _why_not(self, undecided: int) -> CommitLogError | None:
        if self._clock() < self._rests_until:
            return Unavailable(self._problem)
        if undecided >= UNDECIDED_HARD_MAX * UNDECIDED_MAX:
            return Overloaded("too many transactions are undecided", RETURN_SECONDS_MIN)
        if self._bytes >= BYTES_MAX:
            return Overloaded("too much is on its way to Kafka", RETURN_SECONDS_MIN)
        return None

    def _why_not_this(self, record: LogRecord) -> Overloaded | None:
        now, counts = self._clock(), self._by_table
        if now >= self._counted_until:
            self._counted_until = now + SHARES_SECONDS
            taken = (*self._replica.undecided.values(), *self._landed.values())
            waiting = [one.record for one in taken] + [own.content for own in self._own.values()]
            counts.clear()
            counts.update(table for one in waiting for table in _shares_of(one))
        for table in _shares_of(record):
            if counts[table] * len(counts) >= UNDECIDED_MAX:
                which = f"{counts[table]:,} of them of {format_table_id(table)}" if table else ""
                text = f"too many transactions are undecided, {which or 'of no table'}"
                return Overloaded(f"{text}; see the committer's log", RETURN_SECONDS_MIN)
        return None

    def _fail(self, sent: RecordSent, error: Exception) -> None:
        now = self._clock()
        if now >= self._rests_until:
            told = f"for {REST_SECONDS:.0f} s, writers append by themselves, which costs more"
            logger.warning("%s: %s", told, error)
            self._problem = f"records are not appended for others just now: {error}"
            self._rests_until = now + REST_SECONDS
        failed = error if isinstance(error, CommitLogError) else Unavailable(str(error))
        is_sure = isinstance(error, DeliveryFailed) and error.appended is False
        sent.refuse(failed, False if is_sure else None)


def _shares_of(record: LogRecord) -> Iterable[TableId]:
    """Return the tables whose shares a record counts for; a nameless one if it has no table."""
    return (tables_of(record) if isinstance(record, Transaction) else ()) or ((),)
