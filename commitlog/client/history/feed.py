"""The change feed: each decided transaction once and in order, from any position on.

It reads the topics and checks the chain, as every reader does: records of a paused leader are not
events, and an event that was returned is final. Each event has a resume token, which says how far
each partition was read: a subscription that resumes from it misses no event and repeats none.

A position is looked up near its place, and the leader confirms it; only if the leader can't is the
log read from its beginning.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain

from commitlog.adapters.reading import read_on
from commitlog.client.history.feed_events import FeedEvent, Selection, Start, token_of, token_starts
from commitlog.client.leader.arguments import checks_arguments
from commitlog.client.leader.moved import Silence
from commitlog.client.leader.runtime import Runtime
from commitlog.client.leader.transactions_by_offset import TransactionsByOffset
from commitlog.client.leader.valid_outcomes import ValidOutcomes
from commitlog.codecs.avro import decode_outcome_record
from commitlog.core.log.chain import BEGINNING, ChainPlace
from commitlog.errors import CommitLogError, InvalidRequest, LogClosed, Unavailable
from commitlog.messages import DecidedRecords
from commitlog.model.records import Answered, Outcome, Submitted
from commitlog.ports import PATIENT_SECONDS, Log

From = int | str | Mapping[int, int] | None
"""Where a feed begins: a sequence (of a log with one partition), sequences by partition, a resume
token, "beginning", or "now" (None too)."""

SLICE_SECONDS = 0.2
"""How long a poll waits at once: how late it may notice that it is to end."""
NEARBY_RECORDS_MAX = 5_000
"""A position's record is so near to its place unless terms and void records abound."""
NEWEST_RECORDS = 50


@checks_arguments
class Subscription:
    """An endless sequence of events; for one thread, or one task, at a time.

    Use `for event in subscription`, `async for`, or `poll` to limit the wait. Ends when it is
    closed, or after `idle_seconds` without an event, counted once it has caught up with the log.
    """

    def __init__(
        self,
        log: Log,
        starts: Sequence[Start],
        selection: Selection,
        idle_seconds: float | None,
        is_closed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin at a start for each partition; `is_closed` says that the client was closed."""
        self._is_closed = is_closed
        self._log_id = log.genesis(0).log_id
        self._name = log.name
        self._select = selection
        self._idle_seconds = idle_seconds
        self._feeds = [PartitionFeed(log, number, start) for number, start in enumerate(starts)]
        self._turns = deque(self._feeds)
        self._closed = threading.Event()
        self._in_use = threading.Lock()
        self._silence = Silence(log)

    @property
    def token(self) -> str:
        """The resume token after all events that were returned or left out."""
        return token_of(self._log_id, [feed.reached for feed in self._feeds])

    def poll(self, timeout_seconds: float = 1.0, events_max: int = 500) -> list[FeedEvent]:
        """Return the next events as soon as there are any; empty if none came in time.

        Raises CorruptLog (the log contradicts itself), LogMoved, LogClosed after the client's close
        or Unavailable after its own.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._in_use:
            while True:
                if self._is_closed():
                    raise LogClosed
                if self._closed.is_set():
                    raise Unavailable("the subscription was closed; subscribe again")
                left = max(deadline - time.monotonic(), 0.0)
                wait = min(left, SLICE_SECONDS) / len(self._feeds)
                events: list[FeedEvent] = []
                # Another one goes first each time: a busy partition holds no other up.
                self._turns.rotate(-1)
                for feed in self._turns:
                    if room := max(0, events_max - len(events)):
                        events += self._events(feed, 0 if events else wait, room)
                self._silence.note(heard=bool(events))
                if events or not left:
                    return events

    def close(self) -> None:
        """Close the subscription, from any thread; a waiting poll ends soon."""
        self._closed.set()
        with self._in_use:
            for feed in self._feeds:
                feed.close()

    def __iter__(self) -> Iterator[FeedEvent]:
        """Yield each event, waiting for the next."""
        idle = _Idle(self._feeds, self._idle_seconds)
        while not self._closed.is_set():
            events = self._poll_until_closed()
            yield from events
            if idle.is_over_after(events):
                return

    async def __aiter__(self) -> AsyncIterator[FeedEvent]:
        """Yield each event without blocking the event loop."""
        import asyncio

        idle = _Idle(self._feeds, self._idle_seconds)
        while not self._closed.is_set():
            events = await asyncio.to_thread(self._poll_until_closed)
            for event in events:
                yield event
            if await asyncio.to_thread(idle.is_over_after, events):
                return

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _poll_until_closed(self) -> list[FeedEvent]:
        try:
            return self.poll(SLICE_SECONDS)
        except Unavailable:
            if self._closed.is_set():
                return []
            raise

    def _events(self, feed: PartitionFeed, wait: float, events_max: int) -> list[FeedEvent]:
        events = []
        for outcome, submitted in feed.poll(wait, self._select, events_max):
            events.append(
                FeedEvent(
                    partition=feed.partition,
                    submitted=submitted,
                    outcome=outcome,
                    log=self._name,
                    log_id=self._log_id,
                    token=self.token,
                )
            )
        return events


class _Idle:
    """Ends a feed without new events, once it has read the whole log."""

    def __init__(self, feeds: Sequence[PartitionFeed], seconds: float | None) -> None:
        self._feeds = feeds
        self._seconds = seconds
        self._ends: list[int] | None = None
        self._since = time.monotonic()

    def is_over_after(self, events: Sequence[FeedEvent]) -> bool:
        """Return True if a poll that brought these was the last one."""
        if self._seconds is None:
            return False
        if events:
            self._ends = None
            return False
        if self._ends is None:
            self._ends = [feed.end_offset() for feed in self._feeds]
            self._since = time.monotonic()
        if not all(feed.is_at(end) for feed, end in zip(self._feeds, self._ends, strict=True)):
            self._since = time.monotonic()
            return False
        return time.monotonic() - self._since >= self._seconds


class PartitionFeed:
    """One partition's outcomes, each with its transaction."""

    def __init__(self, log: Log, partition: int, start: Start) -> None:
        """Open the readers at a start."""
        self.partition = partition
        self.told = start.place
        """The offset after the last outcome that was returned, or left out."""
        self._after = start.told
        self._outcomes = ValidOutcomes(log, partition, start.place, patient=PATIENT_SECONDS)
        self._transactions = TransactionsByOffset(log, partition, patient=PATIENT_SECONDS)
        self._waiting: deque[tuple[Outcome, ChainPlace]] = deque()

    def poll(
        self,
        timeout_seconds: float,
        selection: Selection,
        events_max: int,
        until: int | None = None,
    ) -> Iterator[tuple[Outcome, Submitted]]:
        """Yield the selected outcomes up to a sequence; `told` moves along."""
        if not self._waiting:
            for valid in self._outcomes.poll(timeout_seconds):
                self._waiting.append((valid.outcome, valid.place))
        yielded = 0
        while self._waiting and yielded < events_max:
            outcome, place = self._waiting[0]
            if until is not None and outcome.sequence > until:
                return
            found = None
            if outcome.sequence > self._after and selection.may_take(outcome):
                found = self._transactions.of(outcome)
            self._waiting.popleft()
            self.told = place
            if found is not None and selection.takes(outcome, found):
                yielded += 1
                yield outcome, found

    def read_to(
        self, sequence: int, deadline: float, selection: Selection
    ) -> Iterator[tuple[Outcome, Submitted]]:
        """Yield what is selected up to a sequence that the log has, and close the readers.

        Raises Unavailable if it isn't reached by the deadline.
        """
        try:
            while self.told.sequence < sequence:
                yield from self.poll(SLICE_SECONDS, selection, sequence, sequence)
                if time.monotonic() > deadline and self.told.sequence < sequence:
                    raise Unavailable(
                        f"partition {self.partition} was read up to {self.told.sequence} of"
                        f" {sequence} when time ran out; ask again with a longer timeout"
                    )
        finally:
            self.close()

    @property
    def reached(self) -> Start:
        """Where a feed continues that returns what this one hasn't."""
        return Start(self.told, max(self._after, self.told.sequence))

    def end_offset(self) -> int:
        """Return where the outcomes topic ends now."""
        return self._outcomes.end_offset()

    def is_at(self, end: int) -> bool:
        """Return True if everything before an offset was returned, or left out."""
        return not self._waiting and self._outcomes.is_at(end)

    def close(self) -> None:
        """Close the readers."""
        self._outcomes.close()
        self._transactions.close()


def starts(runtime: Runtime, from_position: From) -> list[Start]:
    """Return where each partition's feed begins.

    Raises InvalidRequest if the position is not one of this log.
    """
    partitions = range(runtime.partitions)
    if from_position is None or from_position == "now":
        return [_newest(runtime, partition) for partition in partitions]
    if from_position == "beginning":
        return [Start(BEGINNING, 0) for _ in partitions]
    if isinstance(from_position, str):
        return token_starts(from_position, runtime.genesis.log_id, runtime.partitions)
    wanted = sequences(from_position, runtime.partitions)
    return [_start_at(runtime, partition, wanted[partition]) for partition in partitions]


def sequences(position: int | Mapping[int, int], partitions: int) -> dict[int, int]:
    """Return a sequence for each partition; refuse what doesn't say which."""
    if isinstance(position, bool) or not isinstance(position, int | Mapping):
        raise _wrong(
            position, "is not a sequence, a mapping of partitions to sequences, or a token"
        )
    if isinstance(position, int):
        if partitions > 1:
            why = f"does not name a partition, and this log has {partitions}"
            raise _wrong(position, why, "a mapping {partition: sequence}")
        position = {0: position}
    known = set(range(partitions))
    if set(position) != known or any(sequence < 0 for sequence in position.values()):
        raise _wrong(position, f"needs a sequence, 0 or more, for each of {sorted(known)}")
    return dict(position)


def _wrong(
    position: object, why: str, takes: str = "a sequence, a mapping {partition: sequence}"
) -> InvalidRequest:
    return InvalidRequest(
        f"the position {position!r} {why}",
        field="position",
        value=position,
        advice=f"Give {takes}, or a resume token",
    )


def _newest(runtime: Runtime, partition: int) -> Start:
    newest = runtime.log.last_outcome_records(partition, NEWEST_RECORDS)
    # The last outcome, where it came first: copies of it, and of others, may stand behind it.
    newest.sort(key=lambda one: (-getattr(one.record, "sequence", 0), one.offset))
    place = _vouched(runtime, partition, newest)
    if place is None:
        told = int(runtime.request(partition, "status")["sequence"])
        return Start(BEGINNING, told)
    return Start(place, place.sequence)


def _start_at(runtime: Runtime, partition: int, sequence: int) -> Start:
    if sequence == 0:
        return Start(BEGINNING, 0)
    head = int(runtime.request(partition, "status")["sequence"])
    if sequence > head:
        check_not_behind(runtime, partition, sequence, head)
        raise _wrong(sequence, f"is beyond the end: partition {partition} has {head} outcomes")
    place = _vouched(runtime, partition, _nearby(runtime.log, partition, sequence))
    return Start(place or BEGINNING, sequence)


def check_not_behind(runtime: Runtime, partition: int, sequence: int, head: int) -> None:
    """Raise Unavailable if the log seems to have a sequence that its leader doesn't know of.

    One that was deposed and hasn't noticed yet says what it knew.
    """
    log = runtime.log
    newest = log.last_outcome_records(partition, NEWEST_RECORDS)
    # Behind the outcome that is looked for may stand many void records of a deposed leader.
    for one in chain(newest, _at_or_after(log, partition, sequence)):
        if isinstance(one.record, Outcome) and one.record.sequence >= sequence:
            raise Unavailable(
                f"the leader of partition {partition} knows {head} outcomes and the log has more:"
                " another one is about to lead; ask again"
            )


def _at_or_after(log: Log, partition: int, sequence: int) -> Iterator[Answered]:
    """Yield the records that say they have a sequence or a later one.

    Before it there are as many outcomes, a Genesis, terms and void records, so it is at or after
    the offset of the same number.
    """
    with closing(log.read_outcomes(partition, sequence)) as reader:
        end = min(reader.end_offset(), sequence + NEARBY_RECORDS_MAX)
        for answered in read_on(reader, end):
            if isinstance(answered.record, Outcome) and answered.record.sequence >= sequence:
                yield answered


def _nearby(log: Log, partition: int, sequence: int) -> Iterator[Answered]:
    """Yield the records that say they have a sequence."""
    for answered in _at_or_after(log, partition, sequence):
        assert isinstance(answered.record, Outcome)
        if answered.record.sequence > sequence:
            return
        yield answered


def _vouched(runtime: Runtime, partition: int, records: Iterable[Answered]) -> ChainPlace | None:
    """Return the place behind the first outcome that the leader knows as valid."""
    for answered in records:
        outcome = answered.record
        if not isinstance(outcome, Outcome):
            continue
        try:
            known = runtime.request(partition, "transaction", transaction_id=outcome.transaction_id)
        except CommitLogError:
            return None
        if known is None:
            continue
        valid = decode_outcome_record(DecidedRecords.from_json(known).outcome)
        # A deposed leader may have decided the same, to the hash: what it appended late is void.
        known_as = (valid.epoch, valid.hash) if isinstance(valid, Outcome) else None
        if known_as == (outcome.epoch, outcome.hash):
            return ChainPlace(outcome.sequence, answered.offset + 1, outcome.epoch, outcome.hash)
    return None
