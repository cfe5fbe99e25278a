"""One term of a partition's leader: prefetch, decide, write, append, and tell after Kafka has it.

The order of effects for one transaction:

1. files that the decision made (merged deletion vectors, large recordings) are written; their
   paths follow from the transaction, so doing it again writes the same bytes to the same place;
2. the machine applies the outcome, ahead of the log, so that the next one can be decided on it;
3. the outcome is appended: from here the commit exists, if Kafka takes it;
4. Kafka acknowledges it, and all before it, at contiguous offsets: only now is anybody told, and
   only now does the materializer see it.

Anything else ends the term: a delivery error, an offset that was skipped (somebody else wrote),
another valid leader. What was decided and not acknowledged is forgotten and decided again, by
whoever leads next, from the log.

A transaction that waits for pylance, or for a store that fails, holds up its own tables and ids;
all others pass.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from commitlog.codecs.avro import seal_outcome
from commitlog.core.decisions import BuildWanted, Decision, Found, Need, Wanted
from commitlog.core.replica import Replica
from commitlog.errors import CommitLogError, Fenced
from commitlog.model.records import ProtocolVersion, Submitted
from commitlog.ports import OutcomesWriter
from commitlog.protocol import session_in_key
from consumers.events import Event
from consumers.follower import Follower

IN_FLIGHT_MAX = 5_000
"""Outcomes that Kafka hasn't acknowledged; more are not decided before some are."""
RECORDS_PER_POLL = 500
IDLE_POLL_SECONDS = 0.1
BUSY_POLL_SECONDS = 0.005
IDLE_CHECK_SECONDS = 1.0
RETRY_SECONDS_MAX = 5.0

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """Looks at what a decision needs outside the log."""

    def observe(self, wanted: Wanted) -> Found:
        """Fetch bytes or existence; raise OSError when the store fails."""

    def build(self, wanted: BuildWanted) -> Future[Found]:
        """Let pylance build a manifest in a side worker."""

    def write(self, decision: Decision) -> None:
        """Put the decision's files; raise OSError when the store fails."""


@dataclass(slots=True)
class _Parked:
    """A transaction that cannot be decided yet."""

    submitted: Submitted
    keys: frozenset[object]
    observed: dict[Wanted, Found] = field(default_factory=dict)
    failures: int = 0
    retry_at: float = 0.0
    builds: dict[BuildWanted, Future[Found]] = field(default_factory=dict)
    active: bool = False
    """Whether it waits for a build or a retry itself, not only for another transaction."""

    def is_due(self, now: float) -> bool:
        if self.builds:
            return all(build.done() for build in self.builds.values())
        return now >= self.retry_at


class Leader:
    """One term, from a valid LeaderStarted to its end."""

    def __init__(
        self,
        follower: Follower,
        writer: OutcomesWriter,
        observer: Observer,
        *,
        epoch: int,
        node: str,
        on_acknowledged: Callable[[list[Event]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Lead from where `follower` stands; it must have read its own LeaderStarted just now."""
        self._follower = follower
        follower.pause_outcomes()
        self._machine = follower.machine
        self._replica: Replica = follower.replica
        self._writer = writer
        self._observer = observer
        self._epoch = epoch
        self._node = node
        self._on_acknowledged = on_acknowledged
        self._clock = clock
        self._backlog: list[Submitted] = list(self._replica.undecided.values())
        self._check_at = clock()
        self._next_offset = self._replica.outcomes_position
        self._in_flight: deque[Event] = deque()
        self._acknowledged: list[Event] = []
        self._room = threading.Condition()
        self._failure: Exception | None = None
        self._ended = threading.Event()
        self._parked: list[_Parked] = []
        self._held: Counter[object] = Counter()
        self._control: deque[Callable[[], None]] = deque()

    @property
    def node(self) -> str:
        """The address that this term's outcomes carry."""
        return self._node

    @property
    def undecided_count(self) -> int:
        """How many transactions were read and not decided."""
        return len(self._replica.undecided)

    def waiting(self) -> Counter[str]:
        """Return how many transactions of each session have no outcome in Kafka; any thread."""
        while True:
            try:
                waiting = list(self._replica.undecided.values())
                waiting += [event.submitted for event in self._in_flight]
            except RuntimeError:  # decided or acknowledged while one looked
                continue
            return Counter(session_in_key(submitted.key) for submitted in waiting)

    @property
    def oldest_undecided(self) -> int:
        """The offset of the transaction that has waited longest, -1 if none waits; any thread."""
        while True:
            try:
                return next(iter(self._replica.undecided), -1)
            except RuntimeError:  # decided while one looked
                continue

    def has_newest_rules(self, end: int) -> bool:
        """Return True if no record before offset `end` can change the rules; any thread."""
        while self._replica.transactions_position >= end:
            try:
                waiting = list(self._replica.undecided.values())
            except RuntimeError:  # decided while one looked
                continue
            return not any(isinstance(one.record, ProtocolVersion) for one in waiting)
        return False

    @property
    def failure(self) -> Exception | None:
        """What ended the term; None while it lasts."""
        return self._failure

    @property
    def is_idle(self) -> bool:
        """Whether everything that was decided is acknowledged and passed on."""
        return not self._in_flight and not self._acknowledged

    def call(self, work: Callable[[], None]) -> None:
        """Run `work` between two decisions, on the deciding thread."""
        self._control.append(work)

    def run(
        self, stop: threading.Event, on_pause: Callable[[], bool], pause_seconds: float
    ) -> Exception | None:
        """Lead until `stop` or the term's end; return what ended it.

        Every `pause_seconds` the outcomes in flight are awaited and `on_pause` is called on the
        deciding thread, with everything acknowledged (a checkpoint); it returns whether it did
        anything.
        """
        acknowledging = threading.Thread(target=self._acknowledge, name="acknowledge", daemon=True)
        acknowledging.start()
        pause_at = self._clock() + pause_seconds
        try:
            while self._failure is None and not stop.is_set():
                busy = bool(self._parked or self._control)
                self.step_decide(BUSY_POLL_SECONDS if busy else IDLE_POLL_SECONDS)
                if self._clock() >= pause_at and self._await_acknowledged():
                    on_pause()
                    pause_at = self._clock() + pause_seconds
        except Exception as error:
            self._end(error)
        finally:
            if self._failure is None:
                self._await_acknowledged()
            self._ended.set()
            acknowledging.join(10)
            self.close()
        return self._failure

    def close(self) -> None:
        """Give up what is in flight."""
        self._writer.close()

    def step_decide(self, timeout_seconds: float) -> None:
        """Decide what there is, waiting for something at most so long; a failure ends the term."""
        try:
            records, self._backlog = self._backlog, []
            if not records:
                records = self._follower.transactions.poll(
                    records_max=RECORDS_PER_POLL, timeout_seconds=timeout_seconds
                )
                for submitted in records:
                    self._replica.receive_submitted(submitted)
                # Read again after a restart, some are decided already.
                undecided = self._replica.undecided
                records = [one for one in records if one.offset in undecided]
            self._decide_all(records)
            self._resume_parked()
            while self._control:
                self._control.popleft()()
            if not records and self._clock() >= self._check_at:
                self._check_at = self._clock() + IDLE_CHECK_SECONDS
                self._check_alone()
        except Exception as error:
            self._end(error)

    def step_acknowledge(self, timeout_seconds: float) -> None:
        """Run delivery callbacks and pass on what is acknowledged, as one group."""
        self._writer.poll(timeout_seconds)
        if not self._acknowledged:
            return
        with self._room:
            group, self._acknowledged = self._acknowledged, []
            self._replica.outcomes_position = self._next_offset
            self._room.notify_all()
        try:
            self._on_acknowledged(group)
        except Exception as error:
            self._end(error)

    def _decide_all(self, records: Iterable[Submitted]) -> None:
        for submitted in records:
            if self._failure is not None:
                return
            self._take(_Parked(submitted, self._machine.held_by(submitted)))

    def _take(self, item: _Parked) -> None:
        if self._held and any(self._held[key] for key in item.keys):
            self._park(item, active=False)
        else:
            self._attempt(item)

    def _attempt(self, item: _Parked) -> None:
        """Decide a transaction, or park it with what it waits for."""
        submitted, observed = item.submitted, item.observed
        try:
            self._observe(self._machine.prefetch(submitted), observed)
            decision = self._machine.decide(submitted, observed)
            while isinstance(decision, Need):
                self._observe(decision.wanted, observed)
                builds = [w for w in decision.wanted if isinstance(w, BuildWanted)]
                if builds:
                    item.builds = {wanted: self._observer.build(wanted) for wanted in builds}
                    self._park(item, active=True)
                    return
                decision = self._machine.decide(submitted, observed)
            self._observer.write(decision)
        except OSError as error:
            self._defer(item, error)
            return
        self._append(submitted, decision)

    def _observe(self, wanted: Iterable[Wanted], observed: dict[Wanted, Found]) -> None:
        for one in wanted:
            if one not in observed and not isinstance(one, BuildWanted):
                observed[one] = self._observer.observe(one)

    def _defer(self, item: _Parked, error: OSError) -> None:
        """The store fails: try this one again later; its tables wait, others don't."""
        seconds = min(RETRY_SECONDS_MAX, 0.05 * 2 ** min(item.failures, 10))
        item.failures += 1
        item.retry_at = self._clock() + seconds
        item.observed = {}
        logger.warning(
            "transaction %s waits for its store (%s); trying again in %.2f s",
            item.submitted.record.transaction_id,
            error,
            seconds,
        )
        self._park(item, active=True)

    def _park(self, item: _Parked, *, active: bool) -> None:
        item.active = active
        self._held.update(item.keys)
        self._parked.append(item)

    def _resume_parked(self) -> None:
        now = self._clock()
        if not any(item.active and item.is_due(now) for item in self._parked):
            return
        parked, self._parked = self._parked, []
        self._held.clear()
        for item in parked:
            blocked = any(self._held[key] for key in item.keys)
            if blocked or (item.active and not item.is_due(now)):
                self._park(item, active=item.active)
                continue
            builds, item.builds = item.builds, {}
            try:
                item.observed.update({wanted: build.result() for wanted, build in builds.items()})
            except OSError as error:
                self._defer(item, error)
            else:
                self._attempt(item)

    def _append(self, submitted: Submitted, decision: Decision) -> None:
        chain = self._replica.chain
        outcome, record = seal_outcome(
            decision.outcome, previous_hash=chain.hash, epoch=self._epoch, node=self._node
        )
        changes = self._machine.apply(submitted, outcome, changes=decision.changes)
        void = chain.admit(outcome)
        assert not void, void
        self._replica.decide(submitted)
        if len(self._in_flight) >= IN_FLIGHT_MAX:
            with self._room:
                while len(self._in_flight) >= IN_FLIGHT_MAX and self._failure is None:
                    self._room.wait(0.1)
        self._in_flight.append(Event(submitted, outcome, record, changes))
        if self._failure is None:
            delivered = partial(self._delivered, outcome.sequence)
            self._writer.append(f"{self._epoch}/{outcome.sequence}", record, delivered)

    def _delivered(self, sequence: int, offset: int, error: Exception | None) -> None:
        """Take one acknowledgement, on the acknowledging thread."""
        if self._failure is not None:
            return
        first = self._in_flight[0].outcome.sequence if self._in_flight else 0
        if error is not None:
            self._end(Fenced(f"an outcome was not acknowledged: {error}"))
        elif not first:
            self._end(Fenced(f"outcome {sequence} was acknowledged twice"))
        elif sequence != first:
            # Offsets alone don't show this: what is missing took none.
            self._end(Fenced(f"outcome {sequence} was acknowledged, and {first} before it wasn't"))
        elif offset != self._next_offset:
            self._end(
                Fenced(
                    f"an outcome landed at offset {offset} instead of {self._next_offset}: "
                    "somebody else writes, or one was lost"
                )
            )
        else:
            event = self._in_flight[0]
            event.offset = offset
            self._next_offset = offset + 1
            self._replica.outcome_offset = offset
            self._acknowledged.append(event)
            self._in_flight.popleft()

    def _acknowledge(self) -> None:
        while not self._ended.is_set():
            self.step_acknowledge(0.05)

    def _await_acknowledged(self, timeout_seconds: float = 30.0) -> bool:
        """Wait until nothing is in flight; return whether that came."""
        deadline = time.monotonic() + timeout_seconds
        with self._room:
            while self._in_flight or self._acknowledged:
                if self._failure is not None or time.monotonic() > deadline:
                    return False
                self._room.wait(0.01)
        return self._failure is None

    def _check_alone(self) -> None:
        """With nothing in flight, the topic must end where our last outcome stands."""
        if self._in_flight:
            return
        end = self._follower.end_offset()
        if not self._in_flight and end > self._next_offset:
            raise Fenced(
                f"the outcomes topic ends at {end} and ours at {self._next_offset}: "
                "another process writes"
            )

    def _end(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            level = logging.WARNING if isinstance(error, CommitLogError) else logging.ERROR
            logger.log(level, "term %d ends: %s", self._epoch, error, exc_info=level > 30)
            self._writer.purge()
            with self._room:
                self._room.notify_all()
