"""A log in memory: the same behaviour as on Kafka, in one process, with faults on request.

Records go through the same codec as on Kafka. Several `MemoryLog`s on one `MemoryCluster` are
several processes on one cluster; the cluster's hook decides what becomes of each append.

Product code, not a test's helper: simulations run the whole program on it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from commitlog.adapters.log_records import (
    check_outcome_size,
    encode_to_append,
    to_answered,
    to_raw,
    to_submitted,
)
from commitlog.adapters.log_start import (
    begin_log,
    check_shape,
    expect_beginning,
    expect_genesis,
    expect_partitions,
    expect_same_log,
)
from commitlog.adapters.memory_cluster import (
    AppendCall,
    MemoryCluster,
    NeverMoved,
    Partition,
    Sent,
    Stored,
    Topic,
    Unconnected,
)
from commitlog.errors import CorruptLog, TopicSettings, WrongLog
from commitlog.model.records import Answered, Genesis, ProtocolVersion, Submitted, Transaction
from commitlog.ports import DeliveryFailed, LogIdentity, OnDelivery, OnLanded, RawRecord
from commitlog.protocol import (
    LOG_NAME_DEFAULT,
    OUTCOMES_SETTINGS,
    TRANSACTIONS_SETTINGS,
    check_log_name,
    outcomes_topic,
    settings_at_creation,
    settings_problems,
    transaction_key,
    transactions_topic,
)

Record = TypeVar("Record")
Decode = Callable[[int, int, int, bytes | None, bytes | None], Record | None]


class MemoryReader(Unconnected, Generic[Record]):
    """Reads one partition from an offset on."""

    def __init__(
        self,
        cluster: MemoryCluster,
        topic: str,
        partition: int,
        offset: int,
        decode: Decode[Record],
    ) -> None:
        """Start at an offset, which is checked when reading."""
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._decode = decode
        self._position = offset
        self._is_closed = False

    def poll(self, *, records_max: int = 500, timeout_seconds: float = 0.1) -> list[Record]:
        """Return what is there as soon as anything is."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            with self._cluster.changed:
                while not (stored := self._next(records_max)):
                    remaining = deadline - time.monotonic()
                    if remaining <= 0 or not self._cluster.changed.wait(remaining):
                        return []
            if records := self._decoded(stored):
                return records

    def _decoded(self, stored: list[Stored]) -> list[Record]:
        decoded = (
            self._decode(self._partition, record.offset, record.time_ms, record.key, record.value)
            for record in stored
        )
        return [record for record in decoded if record is not None]

    def _next(self, records_max: int) -> list[Stored]:
        if self._is_closed:
            raise RuntimeError("the reader is closed")
        if not self._cluster.is_reachable:
            return []
        target = self._cluster.partition(self._topic, self._partition)
        if not target.start <= self._position <= target.end:
            raise CorruptLog(
                f"reading {self._topic}[{self._partition}] in memory: offset {self._position} is"
                f" outside of {target.start} to {target.end}. Run `commitlog verify`"
            )
        first = target.index_of(self._position)
        stored = target.records[first : first + records_max]
        if first + len(stored) == len(target.records):
            self._position = target.end
        else:
            self._position = stored[-1].offset + 1
        return stored

    def position(self) -> int:
        """Return the next offset to be read."""
        return self._position

    def end_offset(self, timeout_seconds: float = 10) -> int:
        """Return where the log ends now."""
        del timeout_seconds
        with self._cluster.changed:
            return self._cluster.partition(self._topic, self._partition).end

    def seek(self, offset: int) -> None:
        """Continue from another offset."""
        self._position = offset

    def close(self) -> None:
        """Read no more."""
        self._is_closed = True


class _Writer:
    """Sends through the cluster's hook; callbacks run where it is polled."""

    def __init__(self, cluster: MemoryCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._number = cluster.next_writer()
        self._ready: deque[Callable[[], None]] = deque()
        self._on_its_way: dict[int, tuple[Sent, OnDelivery | None]] = {}
        self._sent = 0

    def _send(
        self, partition: int, key: bytes, value: bytes, on_delivery: OnDelivery | None
    ) -> None:
        with self._cluster.changed:
            number = self._sent = self._sent + 1

            def delivered(offset: int, error: Exception | None) -> None:
                del self._on_its_way[number]
                self._answer(on_delivery, offset, error)

            append = AppendCall(
                topic=self._topic, partition=partition, key=key, value=value, writer=self._number
            )
            sent = Sent(append, delivered)
            self._on_its_way[number] = (sent, on_delivery)
            self._cluster.send(sent)

    def _answer(self, on_delivery: OnDelivery | None, offset: int, error: Exception | None) -> None:
        self._ready.append(lambda: on_delivery(offset, error) if on_delivery else None)
        self._cluster.changed.notify_all()

    def poll(self, timeout_seconds: float) -> int:
        """Run callbacks; return how many ran, waiting for the first one."""
        with self._cluster.changed:
            if not self._ready and timeout_seconds > 0:
                self._cluster.changed.wait_for(lambda: self._ready, timeout_seconds)
            ready = list(self._ready)
            self._ready.clear()
        for answer in ready:
            answer()
        return len(ready)

    def flush(self, timeout_seconds: float) -> int:
        """Wait until nothing is on its way; return how much still is."""
        deadline = time.monotonic() + timeout_seconds
        while self._on_its_way or self._ready:
            remaining = deadline - time.monotonic()
            self.poll(max(0.0, remaining))
            if remaining <= 0:
                break
        return len(self._on_its_way) + len(self._ready)

    def purge(self) -> None:
        """Give up what is held back; it may still appear when it is released."""
        with self._cluster.changed:
            given_up, self._on_its_way = self._on_its_way, {}
            for sent, on_delivery in given_up.values():
                sent.is_given_up = True
                error = DeliveryFailed(
                    f"{self._topic}: closed before an acknowledgement; it may be in the log",
                    appended=None,
                )
                self._answer(on_delivery, -1, error)

    def close(self) -> None:
        """Give up what is on its way and run its callbacks."""
        self.purge()
        self.flush(1.0)


class MemoryTransactionsWriter(_Writer):
    """Appends to the transactions topic; threads may share it."""

    def append(
        self,
        transaction: Transaction | ProtocolVersion,
        *,
        partition: int,
        on_delivery: OnDelivery | None = None,
        session: str = "",
    ) -> None:
        """Send a transaction on its way, under a key that no other append has."""
        value = encode_to_append(transaction)
        self._send(
            partition, transaction_key(transaction.transaction_id, session), value, on_delivery
        )


class MemoryOutcomesWriter(_Writer):
    """Appends to one partition of the outcomes topic, in order."""

    def __init__(self, cluster: MemoryCluster, topic: str, partition: int) -> None:
        super().__init__(cluster, topic)
        self._partition = partition

    def append(self, key: str, value: bytes, on_delivery: OnDelivery) -> None:
        """Send an outcome on its way."""
        check_outcome_size(key, value)
        self._send(self._partition, key.encode(), value, on_delivery)


class MemoryRecordsWriter(_Writer):
    """Appends what writers sent to a leader, in order."""

    def __init__(self, cluster: MemoryCluster, topic: str, partition: int) -> None:
        super().__init__(cluster, topic)
        self._partition = partition

    def append(self, key: bytes, value: bytes, on_landed: OnLanded) -> None:
        """Send a record on its way."""

        def delivered(offset: int, error: Exception | None) -> None:
            on_landed(offset, self._time_of(offset) if offset >= 0 else 0, error)

        self._send(self._partition, key, value, delivered)

    def _time_of(self, offset: int) -> int:
        with self._cluster.changed:
            return self._cluster.partition(self._topic, self._partition).time_of(offset)


class MemoryLog(NeverMoved):
    """A log on a `MemoryCluster`; see `commitlog.ports.Log`. Thread-safe."""

    def __init__(self, cluster: MemoryCluster | None = None, log: str = LOG_NAME_DEFAULT) -> None:
        """Name a log; `create` makes it."""
        self.cluster = cluster or MemoryCluster()
        self.name = check_log_name(log)
        self._topics = (transactions_topic(log), outcomes_topic(log))

    def create(
        self,
        *,
        partitions: int = 1,
        domains: Mapping[str, int] | None = None,
        tables_root: str = "",
        replication_factor: int | None = None,
    ) -> Genesis:
        """Make what is missing of the log; return what partition 0 begins with."""
        check_shape(partitions, domains)
        factor = replication_factor or 1
        bases = (TRANSACTIONS_SETTINGS, OUTCOMES_SETTINGS)
        with self.cluster.changed:
            for topic, base in zip(self._topics, bases, strict=True):
                empty = [Partition() for _ in range(partitions)]
                made = Topic(empty, settings_at_creation(base, factor))
                self.cluster.topics.setdefault(topic, made)
        expect_partitions(self.partitions(), partitions, f"log {self.name!r}")
        self.check_settings()
        begin_log(self, self._end_of, partitions, domains, tables_root, 1.0)
        return expect_same_log(self.genesis(0), domains)

    def genesis(self, partition: int = 0) -> Genesis:
        """Return what a partition begins with."""
        with self.cluster.changed:
            target = self.cluster.partition(self._topics[1], partition)
            first = [self._answered(partition, record) for record in target.records[:1]]
        where = f"{self._topics[1]}[{partition}] in memory"
        return expect_genesis(first, where, self.name, partition, self.cluster.cluster_id)

    def partitions(self) -> int:
        """Return the number of partitions."""
        counts = [len(topic.partitions) for topic in self._found()]
        if counts[0] != counts[1]:
            raise WrongLog(f"the topics of log {self.name!r} have {counts} partitions")
        return counts[0]

    def identity(self) -> LogIdentity:
        """Return the cluster's and the topics' ids."""
        transactions, outcomes = self._found()
        return LogIdentity(
            self.cluster.cluster_id, transactions.topic_id, outcomes.topic_id, self.name
        )

    def check_settings(self) -> None:
        """Raise TopicSettings if the topics lost records, or could lose or refuse them."""
        problems: list[str] = []
        bases = (TRANSACTIONS_SETTINGS, OUTCOMES_SETTINGS)
        for name, base, topic in zip(self._topics, bases, self._found(), strict=True):
            problems += settings_problems(name, base, topic.settings, 1)
        if problems:
            raise TopicSettings(
                f"topics in memory are set so that records could be lost or refused:"
                f" {'; '.join(problems)}. Correct them, then start again"
            )
        for number, partition in enumerate(self._found()[1].partitions):
            expect_beginning(partition.start, f"{self._topics[1]}[{number}] in memory")

    def read_transactions(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> MemoryReader[Submitted]:
        """Read the transactions topic from an offset on."""
        return MemoryReader(self.cluster, self._topics[0], partition, offset, to_submitted)

    def read_outcomes(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> MemoryReader[Answered]:
        """Read the outcomes topic from an offset on."""
        return MemoryReader(self.cluster, self._topics[1], partition, offset, to_answered)

    def read_raw(
        self, partition: int, offset: int = 0, *, is_transactions: bool
    ) -> MemoryReader[RawRecord]:
        """Read one of the two topics from an offset on, as bytes."""
        topic = self._topics[0] if is_transactions else self._topics[1]
        return MemoryReader(self.cluster, topic, partition, offset, to_raw)

    def tombstone(self, partition: int, keys: Sequence[bytes]) -> None:
        """Name transactions that compaction may remove."""
        for key in keys:
            self.cluster.append(self._topics[0], partition, key, None)

    def transactions_writer(self) -> MemoryTransactionsWriter:
        """Return a writer that threads may share."""
        return MemoryTransactionsWriter(self.cluster, self._topics[0])

    def outcomes_writer(self, partition: int) -> MemoryOutcomesWriter:
        """Return a writer for one term of one leader."""
        return MemoryOutcomesWriter(self.cluster, self._topics[1], partition)

    def records_writer(self, partition: int) -> MemoryRecordsWriter:
        """Return what appends writers' records during one term of one leader."""
        return MemoryRecordsWriter(self.cluster, self._topics[0], partition)

    def last_outcome_records(self, partition: int, count: int = 1) -> list[Answered]:
        """Return the newest records of a partition, oldest first."""
        with self.cluster.changed:
            records = self.cluster.partition(self._topics[1], partition).records[-count:]
        return [self._answered(partition, record) for record in records]

    def close(self) -> None:
        """Do nothing: memory holds no connection."""

    def _found(self) -> tuple[Topic, Topic]:
        for topic in self._topics:
            self.cluster.partition(topic, 0)
        transactions, outcomes = (self.cluster.topics[topic] for topic in self._topics)
        return transactions, outcomes

    def _end_of(self, is_transactions: bool, partition: int) -> int:
        topic = self._topics[0] if is_transactions else self._topics[1]
        return self.cluster.partition(topic, partition).end

    def _answered(self, partition: int, record: Stored) -> Answered:
        return to_answered(partition, record.offset, record.time_ms, record.key, record.value)
