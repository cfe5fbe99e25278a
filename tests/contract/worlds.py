"""The two clusters that the contract is tested on, behind one face."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster, Partition, Topic
from commitlog.model.operations import LanceCommit
from commitlog.model.records import Submitted, Transaction
from commitlog.ports import Log, Reader
from commitlog.protocol import (
    OUTCOMES_SETTINGS,
    TRANSACTIONS_SETTINGS,
    settings_at_creation,
)
from tests.waiting import WAIT_SECONDS

Record = TypeVar("Record")


class World(Protocol):
    """A cluster, and what any program could do to it."""

    log_name: str

    def connect(self, log_name: str = "", **settings: Any) -> Log:
        """Return a new connection, as another process would have."""

    def append_raw(self, topic: str, partition: int, key: bytes, value: bytes | None) -> int:
        """Append bytes as any program could; return their offset."""

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the beginning of a partition."""

    def make_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        """Make one of the log's topics, with one partition and some settings of its own."""

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists."""


def _with_own(topic: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return a topic's settings as the log makes it, and in their place its own."""
    is_transactions = topic.endswith(".transactions")
    base = TRANSACTIONS_SETTINGS if is_transactions else OUTCOMES_SETTINGS
    return {**settings_at_creation(base, 1), **settings}


class MemoryWorld:
    """A cluster in memory."""

    def __init__(self) -> None:
        """Begin empty."""
        self.cluster = MemoryCluster()
        self.log_name = "commitlog"

    def connect(self, log_name: str = "", **settings: Any) -> Log:
        """Return another log object on the same cluster."""
        del settings
        return MemoryLog(self.cluster, log_name or self.log_name)

    def append_raw(self, topic: str, partition: int, key: bytes, value: bytes | None) -> int:
        """Append bytes."""
        return self.cluster.append(topic, partition, key, value)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the beginning of a partition."""
        self.cluster.delete_before(topic, partition, offset)

    def make_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        """Make a topic."""
        self.cluster.topics[topic] = Topic([Partition()], _with_own(topic, settings))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        del self.cluster.topics[topic]

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists."""
        return topic in self.cluster.topics


class KafkaWorld:
    """A real broker; each test has a log name of its own."""

    def __init__(self, bootstrap_servers: str) -> None:
        """Connect clients of other programs."""
        self.bootstrap_servers = bootstrap_servers
        self.log_name = f"log-{uuid.uuid4().hex[:10]}"
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        self._opened: list[KafkaLog] = []

    def connect(self, log_name: str = "", **settings: Any) -> KafkaLog:
        """Return a new connection."""
        name = log_name or self.log_name
        log = KafkaLog.connect(self.bootstrap_servers, name, settings, timeout_seconds=20)
        self._opened.append(log)
        return log

    def append_raw(self, topic: str, partition: int, key: bytes, value: bytes | None) -> int:
        """Append with a plain producer."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers})
        found: list[tuple[Any, int | None]] = []
        producer.produce(
            topic,
            value,
            key,
            partition=partition,
            on_delivery=lambda error, message: found.append((error, message.offset())),
        )
        producer.flush(120)
        error, offset = found[0]
        assert error is None, error
        assert offset is not None
        return offset

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete records as retention would."""
        for future in self.admin.delete_records(
            [TopicPartition(topic, partition, offset)]
        ).values():
            future.result(120)

    def make_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        """Make a topic."""
        made = NewTopic(topic, 1, 1, config=_with_own(topic, settings))
        self.admin.create_topics([made])[topic].result(120)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([topic])[topic].result(120)

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists."""
        return topic in self.admin.list_topics(timeout=120).topics

    def close(self) -> None:
        """Let go of the connections."""
        for log in self._opened:
            log.close()
        del self.admin  # It has no other end.


def transaction(message: bytes = b"", transaction_id: str = "") -> Transaction:
    """Return a small transaction."""
    return Transaction(
        transaction_id or str(uuid.uuid4()), (LanceCommit(("ns", "t"), "Append", 0, message),)
    )


def read_to_end(reader: Reader[Record], timeout_seconds: float = WAIT_SECONDS) -> list[Record]:
    """Read up to where the log ends now."""
    end = reader.end_offset()
    deadline = time.monotonic() + timeout_seconds
    records: list[Record] = []
    while reader.position() < end:
        assert time.monotonic() < deadline, f"read to {reader.position()} of {end} in time"
        records += reader.poll(timeout_seconds=0.2)
    return records


def append_all(log: Log, transactions: list[Transaction], partition: int = 0) -> list[int]:
    """Append in order and wait for all; return the offsets."""
    writer = log.transactions_writer()
    offsets: list[int] = []
    errors: list[Exception] = []

    def delivered(offset: int, error: Exception | None) -> None:
        offsets.append(offset)
        if error:
            errors.append(error)

    for each in transactions:
        writer.append(each, partition=partition, on_delivery=delivered)
    assert writer.flush(120) == 0
    writer.close()
    assert errors == []
    return offsets


def transactions_of(log: Log, partition: int = 0, offset: int = 0) -> list[Submitted]:
    """Read a whole partition."""
    reader = log.read_transactions(partition, offset)
    try:
        return read_to_end(reader)
    finally:
        reader.close()
