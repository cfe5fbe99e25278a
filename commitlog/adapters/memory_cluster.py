"""What logs in memory share: topics, a clock, and the faults that an append may meet.

Records are kept as bytes. What becomes of an append is for the `on_append` hook to say: deliver,
refuse, lose on the way, deliver without telling, or hold back until `release` (what a paused
leader's records do). Compaction, truncation and retention are calls.
"""

from __future__ import annotations

import threading
import time
import uuid
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from commitlog.errors import CommitLogError, Unavailable, WrongLog
from commitlog.ports import DeliveryFailed, LogIdentity, Move


class Fate(Enum):
    """What becomes of an append."""

    DELIVER = "deliver"
    REFUSE = "refuse"
    """Not appended, and the callback says so."""
    LOSE = "lose"
    """Not appended; the callback doesn't know."""
    APPEND_UNTOLD = "append_untold"
    """Appended; the callback doesn't know."""
    HOLD = "hold"
    """Neither, until `MemoryCluster.release`."""


@dataclass(frozen=True, slots=True)
class AppendCall:
    """An append as the hook sees it."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    writer: int
    """A number per writer, so that a hook can single out one leader."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A record in a partition."""

    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Partition:
    """Records in order; offsets may have gaps after a compaction."""

    records: list[Stored] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def index_of(self, offset: int) -> int:
        """Return the position in the list of the first record at or after an offset."""
        return bisect_left(self.records, offset, key=lambda record: record.offset)

    def time_of(self, offset: int) -> int:
        """Return since when a record is there, in ms; 0 if it isn't any more."""
        found = self.records[self.index_of(offset) :][:1]
        return found[0].time_ms if found and found[0].offset == offset else 0


@dataclass(slots=True)
class Topic:
    """A topic with its own id, which a topic made again under its name doesn't have."""

    partitions: list[Partition]
    settings: dict[str, str]
    topic_id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(slots=True)
class Sent:
    """An append on its way, and whom to tell."""

    append: AppendCall
    delivered: Callable[[int, Exception | None], None]
    is_given_up: bool = False


class MemoryCluster:
    """What several logs share: topics, a clock, faults. Thread-safe."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.cluster_id = uuid.uuid4().hex
        self.now_ms = now_ms
        self.on_append: Callable[[AppendCall], Fate] = lambda _append: Fate.DELIVER
        self.is_reachable = True
        """While False, reads give nothing, questions are refused, appends are lost."""
        self.topics: dict[str, Topic] = {}
        self.changed = threading.Condition(threading.RLock())
        self._held: deque[Sent] = deque()
        self._writers = 0

    def next_writer(self) -> int:
        """Return a number that no other writer has."""
        with self.changed:
            self._writers += 1
            return self._writers

    def partition(self, topic: str, partition: int) -> Partition:
        """Return a partition; WrongLog if there is none, Unavailable while unreachable."""
        if not self.is_reachable:
            raise Unavailable(f"reading {topic} in memory: no answer. Retry")
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            raise WrongLog(
                f"{topic}[{partition}] in memory: the topic or partition does not exist. Create "
                "the log with `create`"
            )
        return found.partitions[partition]

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> int:
        """Append a record without asking the hook, as any program could; return its offset."""
        with self.changed:
            target = self.partition(topic, partition)
            newest = target.records[-1].time_ms if target.records else 0
            target.records.append(Stored(target.end, max(newest, self.now_ms()), key, value))
            target.end += 1
            self.changed.notify_all()
            return target.end - 1

    def send(self, sent: Sent) -> None:
        """Do with an append what the hook says."""
        with self.changed:
            fate = self.on_append(sent.append) if self.is_reachable else Fate.LOSE
            if fate is Fate.HOLD:
                self._held.append(sent)
                return
            self._settle(sent, fate)

    def release(self, count: int | None = None) -> int:
        """Deliver what was held back, oldest first; return how many records."""
        with self.changed:
            released = min(len(self._held), len(self._held) if count is None else count)
            for _ in range(released):
                self._settle(self._held.popleft(), Fate.DELIVER)
            return released

    def _settle(self, sent: Sent, fate: Fate) -> None:
        offset, error = -1, None
        append = sent.append
        if fate in {Fate.DELIVER, Fate.APPEND_UNTOLD}:
            try:
                offset = self.append(append.topic, append.partition, append.key, append.value)
            except CommitLogError as reason:
                error = DeliveryFailed(f"{reason}; it may be in the log", appended=None)
        if fate is Fate.REFUSE:
            error = DeliveryFailed(
                f"{append.topic} refused the record; it was not written", appended=False
            )
        elif fate in {Fate.LOSE, Fate.APPEND_UNTOLD}:
            error = DeliveryFailed(f"{append.topic} did not acknowledge the record", appended=None)
        if not sent.is_given_up:
            sent.delivered(-1 if error else offset, error)

    def compact(self, topic: str) -> None:
        """Keep the last record of each key, and no tombstones, as the cleaner ends up doing."""
        with self.changed:
            for partition in self.topics[topic].partitions:
                last = {record.key: record.offset for record in partition.records}
                partition.records = [
                    record
                    for record in partition.records
                    if last[record.key] == record.offset and record.value is not None
                ]

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """Lose the tail of a partition, as a cluster without fsync can."""
        with self.changed:
            target = self.partition(topic, partition)
            target.records = [record for record in target.records if record.offset < end]
            target.end = min(target.end, end)

    def delete_before(self, topic: str, partition: int, start: int) -> None:
        """Lose the beginning of a partition, as retention does."""
        with self.changed:
            target = self.partition(topic, partition)
            target.records = [record for record in target.records if record.offset >= start]
            target.start = max(target.start, start)


class Unconnected:
    """What a reader of memory has to do where others save work."""

    def pause(self) -> None:
        """Do nothing: nothing is fetched ahead here."""

    def rest(self) -> None:
        """Do nothing: there is no connection."""


class NeverMoved(Protocol):
    """What a log that nobody moves answers about that; see `commitlog.ports.Log`."""

    def identity(self) -> LogIdentity:
        """Return the cluster's and the topics' ids."""

    def home(self) -> str:
        """Return the id of its topic."""
        return self.identity().outcomes_topic_id

    def moves(self) -> tuple[Move, ...]:
        """Return nothing: it was never moved."""
        return ()

    def check_here(self, timeout_seconds: float = 30.0) -> None:
        """Do nothing: it was never moved."""
        del timeout_seconds
