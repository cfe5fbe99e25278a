"""A log on a Kafka cluster.

Connecting asks the cluster who it is and nothing else; `create` makes topics and first records.
Every topic is created by name with its settings, never by use. What exists is checked, not
changed: a topic with settings that would lose records is refused.

Not to be carried over a fork: Kafka's client has threads of its own. Connect in each process.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from commitlog.adapters.disk import or_no_files
from commitlog.adapters.kafka_administration import Administration
from commitlog.adapters.kafka_io import KafkaReader, Watermarks
from commitlog.adapters.kafka_moved import Moves, identity_in
from commitlog.adapters.kafka_settings import ClientSettings, check_timeout
from commitlog.adapters.kafka_writers import (
    KafkaOutcomesWriter,
    KafkaRecordsWriter,
    KafkaTransactionsWriter,
)
from commitlog.adapters.log_records import to_answered, to_raw, to_submitted
from commitlog.adapters.log_start import (
    begin_log,
    check_shape,
    expect_beginning,
    expect_genesis,
    expect_partitions,
    expect_same_log,
    expect_unchanged,
)
from commitlog.errors import TopicSettings, Unavailable, WrongLog
from commitlog.model.records import Answered, Genesis, Submitted
from commitlog.ports import LogIdentity, Move, RawRecord
from commitlog.protocol import (
    LOG_NAME_DEFAULT,
    OUTCOMES_SETTINGS,
    TRANSACTIONS_SETTINGS,
    check_log_name,
    outcomes_topic,
    settings_at_creation,
    settings_problems,
    transactions_topic,
)

REPLICATION_WANTED = 3
TIMEOUT_SECONDS = 30.0
SETTLING_SECONDS = 10.0
_BASES = (TRANSACTIONS_SETTINGS, OUTCOMES_SETTINGS)


@dataclass(frozen=True, slots=True)
class TopicCopies:
    """How often the cluster keeps a topic: the least of its partitions."""

    topic: str
    copies: int
    in_step: int
    """Copies that have everything that was acknowledged."""
    needed: int
    """How many must have a record before it is acknowledged."""


class KafkaLog:
    """A log by its name on a cluster; see `commitlog.ports.Log`. Thread-safe."""

    def __init__(self, settings: ClientSettings, log: str, timeout_seconds: float) -> None:
        """Set up without asking the cluster anything; use `connect`."""
        self.name = check_log_name(log)
        self.timeout_seconds = timeout_seconds
        self._settings = settings
        self.trouble = settings.trouble
        self._topics = (transactions_topic(log), outcomes_topic(log))
        self._admin = Administration(settings)
        self._moves = Moves(settings, log, self._admin)
        self._identities: dict[LogIdentity, LogIdentity] = {}
        self._watermarks = Watermarks(settings)
        self._settles_until = 0.0
        """So long brokers may not know the topics that this object made."""
        self._genesis: dict[int, Genesis] = {}
        self._home = ""

    @classmethod
    def connect(
        cls,
        bootstrap_servers: str,
        log: str = LOG_NAME_DEFAULT,
        settings: Mapping[str, Any] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> KafkaLog:
        """Reach the cluster; the log itself need not exist yet.

        Raises:
            Unavailable: no broker answers there in time, or it refuses the credentials.
            InvalidSettings: an address, timeout or setting that can't be, or is not to be changed.
        """
        check_timeout(timeout_seconds)
        return cls.reach(ClientSettings(bootstrap_servers, settings or {}), log, timeout_seconds)

    @classmethod
    def reach(cls, settings: ClientSettings, log: str, timeout_seconds: float) -> KafkaLog:
        """Do as `connect`, with settings whose `trouble` tells meanwhile why it takes long."""
        connected = cls(settings, log, timeout_seconds)
        try:
            connected.cluster_id()
        except BaseException:
            connected.close()
            raise
        return connected

    def __repr__(self) -> str:
        return f"KafkaLog({self._settings.address!r}, log={self.name!r})"

    def create(
        self,
        *,
        partitions: int = 1,
        domains: Mapping[str, int] | None = None,
        tables_root: str = "",
        replication_factor: int | None = None,
    ) -> Genesis:
        """Make topics and first records where they are missing; return partition 0's Genesis."""
        check_shape(partitions, domains)
        factor = replication_factor or self.replication_factor()
        where = f"log {self.name!r} at {self._settings.address}"
        self._settles_until = time.monotonic() + min(SETTLING_SECONDS, self.timeout_seconds)
        for topic, base in zip(self._topics, _BASES, strict=True):
            self._create_topic(topic, partitions, factor, settings_at_creation(base, factor))
            # A start that was killed may have made only the first one: the other must be like it.
            [made] = self._describe_topics((topic,))
            expect_partitions(len(made.partitions), partitions, where)
        self._wait_until_known(partitions)
        self.check_settings()
        begin_log(self, self._end_of, partitions, domains, tables_root, self.timeout_seconds)
        return expect_same_log(self.genesis(0), domains)

    def genesis(self, partition: int = 0) -> Genesis:
        """Return what a partition begins with, checked against the cluster's own id."""
        if partition in self._genesis:
            return self._genesis[partition]
        # Both from one look at what happened to the log, which costs a client's start a reader.
        events = self._moves.check_here()
        here = self.identity_here()
        self._identities[here], self._home = identity_in(events, here), here.outcomes_topic_id
        return self._genesis.setdefault(partition, self.beginning(partition))

    def beginning(self, partition: int) -> Genesis:
        """Return what a partition begins with, even if the log was moved away."""
        low, high = self._watermarks.ask(self._topics[1], partition, self.timeout_seconds)
        first = self._read(self.read_outcomes(partition, low), low + 1) if low < high else []
        where = f"{self._topics[1]}[{partition}] at {self._settings.address}"
        return expect_genesis(first, where, self.name, partition, self.identity().cluster_id)

    def partitions(self) -> int:
        """Return the number of partitions; WrongLog if the topics differ in it or are missing."""
        counts = [len(topic.partitions) for topic in self._describe_topics()]
        if counts[0] != counts[1]:
            raise WrongLog(
                f"{self._topics[0]} has {counts[0]} partitions and {self._topics[1]} {counts[1]}: "
                "they must have the same number. Create the log again under another name"
            )
        return counts[0]

    def identity(self) -> LogIdentity:
        """Return the ids of the cluster and the topics that the log was made with."""
        here = self.identity_here()
        if here not in self._identities:
            self._identities[here] = self._moves.identity(here)
        return self._identities[here]

    def home(self) -> str:
        """Return the id of the topic that its leaders append to; asked once."""
        self._home = self._home or self.identity_here().outcomes_topic_id
        return self._home

    def moves(self) -> tuple[Move, ...]:
        """Return the moves that brought the log to this cluster, oldest first."""
        return self._moves.moves(self.identity_here())

    def check_here(self, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Raise LogMoved if the log was moved, WrongLog if it is gone and another has its name."""
        self._moves.check_here(timeout_seconds)
        here = self.identity_here().outcomes_topic_id if self._home else ""
        if here != self._home:
            for partition, genesis in tuple(self._genesis.items()):
                expect_unchanged(genesis, self.beginning(partition), self._settings.address)
            self._home = here

    def identity_here(self) -> LogIdentity:
        """Ask the cluster for its and the topics' ids."""
        transactions, outcomes = self._describe_topics()
        return LogIdentity(
            cluster_id=self.cluster_id(),
            transactions_topic_id=str(transactions.topic_id),
            outcomes_topic_id=str(outcomes.topic_id),
            log=self.name,
        )

    def cluster_id(self) -> str:
        """Ask the cluster for its id."""
        return str(self._metadata().cluster_id)

    def copies(self) -> tuple[TopicCopies, ...]:
        """Count on the cluster how many copies each topic has, and how many are in step."""
        configs = self._describe_configs()
        return tuple(
            TopicCopies(
                topic.name,
                copies=min((len(part.replicas) for part in topic.partitions), default=0),
                in_step=min((len(part.isr) for part in topic.partitions), default=0),
                needed=int(settings.get("min.insync.replicas") or 1),
            )
            for topic, settings in zip(self._describe_topics(), configs, strict=True)
        )

    def check_settings(self) -> None:
        """Raise TopicSettings if the topics lost records, or could lose or refuse them."""
        topics = self._describe_topics()
        factors = [min((len(p.replicas) for p in t.partitions), default=1) for t in topics]
        problems: list[str] = []
        configs = self._describe_configs()
        for name, base, actual, factor in zip(self._topics, _BASES, configs, factors, strict=True):
            problems += settings_problems(name, base, actual, factor)
        if problems:
            self.check_here()
            advice = "Correct them (kafka-configs), then start again"
            if "is CreateTime" in problems[0]:
                advice = f"If a restore or move did not finish, run it again. Otherwise: {advice}"
            raise TopicSettings(
                f"topics at {self._settings.address} are set so that records could be lost or"
                f" refused: {'; '.join(problems)}. {advice}"
            )
        for partition in range(len(topics[1].partitions)):
            start, _ = self._watermarks.ask(self._topics[1], partition, self.timeout_seconds)
            expect_beginning(start, f"{self._topics[1]}[{partition}] at {self._settings.address}")

    def read_transactions(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> KafkaReader[Submitted]:
        """Read the transactions topic from an offset on."""
        which = (self._topics[0], partition, offset, to_submitted)
        return KafkaReader(self._settings, self._watermarks, *which, patient=patient)

    def read_outcomes(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> KafkaReader[Answered]:
        """Read the outcomes topic from an offset on."""
        which = (self._topics[1], partition, offset, to_answered)
        return KafkaReader(self._settings, self._watermarks, *which, patient=patient)

    def read_raw(
        self, partition: int, offset: int = 0, *, is_transactions: bool
    ) -> KafkaReader[RawRecord]:
        """Read one of the two topics from an offset on, as bytes."""
        topic = self._topics[0] if is_transactions else self._topics[1]
        return KafkaReader(self._settings, self._watermarks, topic, partition, offset, to_raw)

    def tombstone(self, partition: int, keys: Sequence[bytes]) -> None:
        """Name transactions that compaction may remove; Unavailable if not all were appended."""
        with closing(self.transactions_writer()) as writer:
            writer.tombstone(partition, keys, self.timeout_seconds)

    def transactions_writer(self) -> KafkaTransactionsWriter:
        """Return a writer that threads may share."""
        return KafkaTransactionsWriter(self._settings, self._topics[0])

    def outcomes_writer(self, partition: int) -> KafkaOutcomesWriter:
        """Return a writer for one term of one leader."""
        return KafkaOutcomesWriter(self._settings, self._topics[1], partition)

    def records_writer(self, partition: int) -> KafkaRecordsWriter | None:
        """Return what appends writers' records; None where each one has rights of its own."""
        if self._settings.has_credentials:
            return None
        return KafkaRecordsWriter(self._settings, self._topics[0], partition)

    def last_outcome_records(self, partition: int, count: int = 1) -> list[Answered]:
        """Return the newest records of a partition, oldest first."""
        low, high = self._watermarks.ask(self._topics[1], partition, self.timeout_seconds)
        back = count
        while True:
            start = max(low, high - back)
            records = self._read(self.read_outcomes(partition, start), high) if low < high else []
            # Offsets may have gaps where another program left control markers.
            if len(records) >= count or start == low:
                return records[-count:]
            back *= 8

    def close(self) -> None:
        """Close the connections made so far."""
        self._watermarks.close()
        self._admin.close()

    def _read(self, reader: KafkaReader[Answered], end: int) -> list[Answered]:
        """Read up to an offset that is known to be there, and close the reader."""
        deadline = time.monotonic() + self.timeout_seconds
        records: list[Answered] = []
        with closing(reader):
            while reader.position() < end:
                records += reader.poll(timeout_seconds=0.1)
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"{self._settings.address} did not deliver {self._topics[1]} up to offset"
                        f" {end} within {self.timeout_seconds} s."
                        f" {or_no_files('Check the cluster, then retry')}"
                    )
        return [record for record in records if record.offset < end]

    def _end_of(self, is_transactions: bool, partition: int) -> int:
        topic = self._topics[0] if is_transactions else self._topics[1]
        return self._watermarks.end(topic, partition, self.timeout_seconds)

    def _create_topic(
        self, topic: str, partitions: int, factor: int, config: dict[str, str]
    ) -> None:
        asked = NewTopic(topic, num_partitions=partitions, replication_factor=factor, config=config)
        try:
            self._admin.answers(
                lambda admin, seconds: admin.create_topics([asked], request_timeout=seconds),
                "creating topic",
                self.timeout_seconds,
                allowed=(KafkaError.TOPIC_ALREADY_EXISTS,),
            )
        except WrongLog as error:
            raise Unavailable(str(error)) from error

    def _settled(self, describe: Callable[[], list[Any]]) -> list[Any]:
        """Ask again while brokers learn of topics that were just made, one after the other."""
        while True:
            try:
                return describe()
            except WrongLog:
                if time.monotonic() > self._settles_until:
                    raise
                time.sleep(0.05)

    def _describe_topics(self, topics: Sequence[str] = ()) -> list[Any]:
        return self._settled(partial(self._topics_here, topics or self._topics))

    def _describe_configs(self) -> list[dict[str, Any]]:
        return self._settled(self._configs_here)

    def _topics_here(self, topics: Sequence[str]) -> list[Any]:
        wanted = TopicCollection(list(topics))
        found = self._admin.answers(
            lambda admin, seconds: admin.describe_topics(wanted, request_timeout=seconds),
            "looking for topic",
            self.timeout_seconds,
        )
        return [found[topic] for topic in topics]

    def _configs_here(self) -> list[dict[str, Any]]:
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in self._topics]

        def ask(admin: AdminClient, seconds: float) -> dict[str, concurrent.futures.Future[Any]]:
            described = admin.describe_configs(resources, request_timeout=seconds)
            return {resource.name: described[resource] for resource in resources}

        found = self._admin.answers(ask, "reading the settings of", self.timeout_seconds)
        return [
            {name: entry.value for name, entry in found[topic].items()} for topic in self._topics
        ]

    def _wait_until_known(self, partitions: int) -> None:
        """Wait for brokers to learn of new topics, which they do one after the other."""
        self._settled(
            lambda: [
                self._end_of(is_transactions, partition)
                for partition in range(min(partitions, self.partitions()))
                for is_transactions in (True, False)
            ]
        )

    def replication_factor(self) -> int:
        """Return how many copies a topic that is made now gets."""
        brokers = len(self._metadata().brokers)
        return REPLICATION_WANTED if brokers >= REPLICATION_WANTED else 1

    def _metadata(self) -> ClusterMetadata:
        return self._admin.metadata(
            self._topics[0], "reading the cluster's id", self.timeout_seconds
        )
