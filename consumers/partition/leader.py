"""One term of a partition's leader: prefetch, decide, write, append, and answer once Kafka has it.

The order of effects for one transaction:

1. files that the decision made (merged deletion vectors, large recordings) are written; their
   paths follow from the transaction, so doing it again writes the same bytes to the same place;
2. the machine applies the outcome, ahead of the log, so that the next one can be decided on it;
3. the outcome is appended: from here the commit exists, if Kafka takes it;
4. Kafka acknowledges it, and all before it, at contiguous offsets: only now are writers
   answered, and only now does the materializer see it.

Anything else ends the term: a delivery error, an offset that holds a foreign record (the
archive may append), another valid leader. Decisions without an acknowledgement are forgotten; the
next leader decides these transactions again from the log.

A transaction that waits for pylance, or for a failing store, delays only its own tables and ids.

Everything here happens on the loop's thread, by events: records that were read, acknowledgements,
finished builds. Nothing waits.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from math import inf

from commitlog.codecs.avro import seal_outcome
from commitlog.core.decisions import ENDS, Decision
from commitlog.core.log.replica import Replica
from commitlog.errors import CommitLogError, Fenced
from commitlog.model.records import ProtocolVersion, Submitted
from commitlog.ports import OutcomesWriter, RecordsWriter
from commitlog.protocol import outcome_key, session_in_key
from consumers.partition.appending import Appending
from consumers.partition.deciding import Deciding
from consumers.partition.files.events import (
    Delivered,
    Ended,
    EndSeen,
    Event,
    Read,
    RecordLanded,
    RecordSent,
)
from consumers.partition.follower import Follower
from consumers.partition.lanes import Lanes
from consumers.partition.mailbox import Mailbox
from consumers.partition.meters import Meters
from consumers.partition.observer import StoreObserver
from consumers.partition.others import OnlyRetained, Others
from consumers.partition.readable import Readable

IN_FLIGHT_MAX = 5_000
"""How many outcomes may lack Kafka's acknowledgement; no more are decided until some have it."""
RECORDS_PER_POLL = 500
PAUSE_SECONDS_MAX = 1.0
"""How long a pause waits for outcomes in flight and for files; the next one may find none."""

logger = logging.getLogger(__name__)


class Leader:
    """One term, from a valid LeaderStarted to its end."""

    def __init__(
        self,
        follower: Follower,
        writer: OutcomesWriter,
        records_writer: RecordsWriter | None,
        observer: StoreObserver,
        *,
        epoch: int,
        node: str,
        mailbox: Mailbox,
        lanes: Lanes,
        readable: Readable,
        on_acknowledged: Callable[[list[Event]], None],
        on_pause: Callable[[], bool],
        may_pause: Callable[[], bool],
        pause_seconds: float,
        only_retained: OnlyRetained,
        meters: Meters | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Lead from where `follower` stands; it must have read its own LeaderStarted just now.

        Every `pause_seconds` the outcomes in flight are awaited and `on_pause` is called, with
        everything acknowledged (a checkpoint), while that `may_pause`; it returns whether it did
        anything.
        """
        follower.rest_outcomes()
        self._machine = follower.machine
        self._replica: Replica = follower.replica
        self.writer = writer
        """Polling it posts the acknowledgements."""
        self.appending = Appending(
            follower.partition, records_writer, self._replica, post=mailbox.post, clock=clock
        )
        """What writers sent."""
        self._epoch, self.node = epoch, node  # the address that the term's outcomes carry
        self._mailbox = mailbox
        self._on_acknowledged = on_acknowledged
        self._on_pause, self._may_pause = on_pause, may_pause
        self._pause_seconds = pause_seconds
        self._clock = clock
        self._meters = meters or Meters()
        self._read_at: dict[int, float] = {}
        """When each undecided transaction of this term was read, by offset."""
        self._next_offset = self._replica.outcomes_position
        self._read_to = 0
        """To where the transactions topic was read, as far as its reader said."""
        self._in_flight: deque[Event] = deque()
        self._acknowledged: list[Event] = []
        self._heard_at = 0.0
        self.failure: Exception | None = None
        """What ended the term; None while it lasts."""
        self._others = Others(lanes, only_retained, go_on=self._go_on_at, fail=self._end)
        self._deciding = Deciding(
            self._machine,
            observer,
            lanes,
            readable,
            undecided=self._replica.undecided.values(),
            outside=mailbox.outside,
            append=self._append,
            may_decide=self._has_room,
            fail=self._end,
            end_offset=follower.end_offset,
            led_to=lambda: self._next_offset,
            clock=clock,
        )
        self._pause_at = clock() + pause_seconds
        self._paused_since: float | None = None
        self._is_ending = False

    @property
    def undecided_count(self) -> int:
        """How many transactions were read and not decided."""
        return len(self._replica.undecided)

    @property
    def in_flight_count(self) -> int:
        """How many outcomes Kafka hasn't acknowledged."""
        return len(self._in_flight)

    def waiting(self) -> Counter[str]:
        """Return how many transactions of each session have no outcome in Kafka."""
        waiting = list(self._replica.undecided.values())
        waiting += [event.submitted for event in self._in_flight]
        found = Counter(session_in_key(submitted.key) for submitted in waiting)
        return found + self.appending.count()

    @property
    def oldest_undecided(self) -> int:
        """The offset of the transaction that has waited longest, -1 if none waits."""
        return next(iter(self._replica.undecided), -1)

    def has_newest_rules(self, end: int) -> bool:
        """Return True if no record before offset `end` can change the rules."""
        waiting = self._replica.undecided.values()
        return max(self._read_to, self._replica.transactions_position) >= end and not any(
            isinstance(one.record, ProtocolVersion) for one in waiting
        )

    @property
    def silence_seconds(self) -> float:
        """How long Kafka has acknowledged none of the outcomes, or transactions, on their way."""
        outcomes = self._clock() - self._heard_at if self._in_flight else 0.0
        return max(outcomes, self.appending.silence_seconds)

    @property
    def is_idle(self) -> bool:
        """Whether every decision is acknowledged and passed on."""
        return not self._in_flight and not self._acknowledged

    @property
    def wants_more(self) -> bool:
        """Whether it can decide more than was read."""
        return self._paused_since is None and len(self._deciding.backlog) < RECORDS_PER_POLL

    @property
    def due_at(self) -> float:
        """When something is due without any event."""
        pause_at = self._pause_at
        if self._paused_since is not None:
            # What it waits for are events.
            pause_at = inf if self._is_ending else self._paused_since + PAUSE_SECONDS_MAX
        return min(self._deciding.due_at, pause_at, self.appending.held_until or inf)

    @property
    def awaits_kafka(self) -> bool:
        """Whether an acknowledgement is due."""
        sent = self.appending.is_waiting and not self.appending.held_until
        return bool(self._in_flight) or sent

    def poll(self, timeout_seconds: float = 0.0) -> None:
        """Send waiting records and post acknowledgements; wait at most this long for one."""
        self.writer.poll(timeout_seconds if self._in_flight else 0.0)
        if self.appending.is_waiting:
            self.appending.poll(0.0 if self._in_flight else timeout_seconds)

    def finish(self) -> None:
        """Decide nothing more; outcomes in flight still complete."""
        self._is_ending = True
        self._paused_since = self._clock()
        self.appending.end("this committer ends its term; ask the next one")

    def close(self) -> None:
        """Give up the outcomes in flight."""
        self.writer.close()
        self.appending.close()

    def hear(self, event: object) -> None:
        """Take an event; `step` handles what follows from it."""
        if isinstance(event, RecordSent):
            self.appending.append(event, len(self._replica.undecided))
        elif isinstance(event, RecordLanded):
            self._receive(self.appending.landed(event))
        elif isinstance(event, Read):
            self._receive(self.appending.read(event.records))
        elif isinstance(event, Delivered):
            self._delivered(event.sequence, event.offset, event.error)
        elif isinstance(event, EndSeen):
            self._read_to = event.transactions_position
            self._check_alone(event.offset)
        elif isinstance(event, Ended):
            self._end(event.error)

    def _receive(self, records: Iterable[Submitted]) -> None:
        """Take the next records of the log."""
        undecided, now = self._replica.undecided, self._clock()
        for one in records:
            self._replica.receive_submitted(one)
            # Read again after a restart, some are decided already.
            if one.offset in undecided:
                self._deciding.backlog.append(one)
                self._read_at[one.offset] = now

    def step(self) -> None:
        """Decide new records, and pass on acknowledged outcomes; a failure ends the term."""
        try:
            self._pass_on()
            if self.failure is None:
                self._deciding.wake_late()
                if self._paused_since is None:
                    self._deciding.step()
                self._deciding.flush_looks()
            if self.failure is None:
                self._pause_when_due()
        except Exception as error:
            self._end(error)

    def _has_room(self) -> bool:
        return self.failure is None and len(self._in_flight) < IN_FLIGHT_MAX

    def _pass_on(self) -> None:
        """Pass on the acknowledged outcomes, as one group."""
        if self._acknowledged:
            group, self._acknowledged = self._acknowledged, []
            self._replica.outcomes_position = self._next_offset
            self._meters.acknowledged(group, self._clock())
            self._on_acknowledged(group)

    def _pause_when_due(self) -> None:
        now = self._clock()
        if self._is_ending or now < self._pause_at:
            return
        may_pause = self._may_pause()
        if self._paused_since is None:
            if not may_pause:
                # A wait in vain would delay all writers.
                self._pause_at = now + PAUSE_SECONDS_MAX
                return
            self._paused_since = now
        is_over = not may_pause or (self.is_idle and self._on_pause())
        if is_over or now > self._paused_since + PAUSE_SECONDS_MAX:
            self._paused_since = None
            self._pause_at = now + self._pause_seconds

    def _append(self, submitted: Submitted, decision: Decision) -> None:
        chain = self._replica.chain
        outcome, record = seal_outcome(
            decision.outcome, previous_hash=chain.hash, epoch=self._epoch, node=self.node
        )
        changes = self._machine.apply(submitted, outcome, changes=decision.changes)
        for change in changes:
            if change.kind in ENDS:
                self._deciding.forget(change.location)
        void = chain.admit(outcome)
        assert not void, void
        self._replica.decide(submitted)
        now = self._clock()
        read_at = self._read_at.pop(submitted.offset, now)
        if not self._in_flight:
            self._heard_at = now
        event = Event(submitted, outcome, record, changes, read_at=read_at, decided_at=now)
        self._in_flight.append(event)
        if self.failure is None:
            sequence, post = outcome.sequence, self._mailbox.post
            self.writer.append(
                outcome_key(self._epoch, sequence),
                record,
                lambda offset, error: post(Delivered(sequence, offset, error)),
            )

    def _delivered(self, sequence: int, offset: int, error: Exception | None) -> None:
        """Take one acknowledgement."""
        if self.failure is not None:
            return
        if self._others.is_looking:
            self._others.held.append((sequence, offset, error))
            return
        first = self._in_flight[0].outcome.sequence if self._in_flight else 0
        if error is not None:
            self._end(Fenced(f"an outcome was not acknowledged: {error}"))
        elif not first:
            self._end(Fenced(f"outcome {sequence} was acknowledged twice"))
        elif sequence != first:
            # Offsets alone don't show this: what is missing took none.
            self._end(
                Fenced(
                    f"outcome {sequence} was acknowledged, but the earlier outcome {first} was not"
                )
            )
        elif offset > self._next_offset:
            self._others.held.append((sequence, offset, error))
            self._others.look(self._next_offset, offset)
        elif offset != self._next_offset:
            self._end(
                Fenced(
                    f"an outcome landed at offset {offset} instead of {self._next_offset}: "
                    "another process writes to the topic, or an outcome was lost"
                )
            )
        else:
            event = self._in_flight[0]
            event.offset = offset
            self._heard_at = self._clock()
            self._next_offset = offset + 1
            self._replica.outcome_offset = offset
            self._acknowledged.append(event)
            self._in_flight.popleft()

    def _check_alone(self, end: int) -> None:
        """With nothing in flight, the topic must end where our last outcome stands."""
        is_settled = not self._in_flight and not self._others.is_looking
        if is_settled and end > self._next_offset and self.failure is None:
            self._others.look(self._next_offset, end)

    def _go_on_at(self, offset: int) -> None:
        """Continue after records that others appended, with the acknowledgements since."""
        if self.failure is None:
            self._next_offset = offset
            held, self._others.held = self._others.held, []
            for each in held:
                self._delivered(*each)

    def _end(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error if isinstance(error, Exception) else RuntimeError(repr(error))
            level = logging.WARNING if isinstance(error, CommitLogError) else logging.ERROR
            logger.log(level, "term %d ends: %s", self._epoch, error, exc_info=level > 30)
            self.writer.purge()
            self.appending.give_up("this committer's term is over; ask the next leader")
