"""Makes a log's topics again from copied records, with the offsets and the times that they had.

Offsets are named in outcomes and times are decided by, so both must come out as they were. Where a
copy has no record, a tombstone takes the offset: readers of transactions pass over those.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConfigResource,
    NewTopic,
    ResourceType,
)

from commitlog.adapters.kafka_io import answer_of, meaning, new_admin, new_producer, set_topics
from commitlog.adapters.kafka_moved import LIMIT
from commitlog.adapters.kafka_settings import ClientSettings, error_of, is_passing
from commitlog.errors import CorruptLog, Unavailable, WrongLog
from commitlog.ports import RawRecord
from commitlog.protocol import (
    OUTCOMES_SETTINGS,
    TRANSACTIONS_SETTINGS,
    outcomes_topic,
    settings_at_creation,
    transactions_topic,
)

TIMESTAMPS = "message.timestamp.type"
DELIVERY_SECONDS = 120.0
WINDOW = 5_000


class RestoredTopics:
    """The topics of a log that is put back."""

    def __init__(
        self,
        settings: ClientSettings,
        log: str,
        partitions: int,
        factor: int,
        *,
        goes_on: bool = False,
    ) -> None:
        """Make the topics, so that they take times as they come.

        They must not exist yet, unless this `goes_on` with ones that were not finished.
        """
        self._settings = settings
        self._names = (transactions_topic(log), outcomes_topic(log))
        self._admin = new_admin(settings)
        self._found: set[str] = set()
        asked = []
        for name, base in zip(self._names, (TRANSACTIONS_SETTINGS, OUTCOMES_SETTINGS), strict=True):
            config = {**settings_at_creation(base, factor), TIMESTAMPS: "CreateTime"}
            asked.append(
                NewTopic(name, num_partitions=partitions, replication_factor=factor, config=config)
            )
        for name, future in self._admin.create_topics(asked, request_timeout=30).items():
            try:
                answer_of(future, DELIVERY_SECONDS)
            except KafkaException as error:
                if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise meaning(self._admin, settings, error, f"creating topic {name}") from error
                if goes_on:
                    self._found.add(name)
                    continue
                raise WrongLog(
                    f"topic {name} could not be created: {error.args[0].str()}. Restore to a "
                    "cluster that has no log of this name"
                ) from error

    def is_new(self, *, is_transactions: bool) -> bool:
        """Return True if a topic was made here; brokers may not all know of it yet."""
        return self._names[0 if is_transactions else 1] not in self._found

    def put(
        self, partition: int, records: Iterable[RawRecord], *, is_transactions: bool, start: int = 0
    ) -> int:
        """Append records at the offsets that they had; return the offset after the last one.

        `start` is the topic's end before.

        Raises:
            Unavailable: another run has finished the topics, or Kafka doesn't take the records.
            CorruptLog: a record has landed elsewhere.
        """
        topic = self._names[0] if is_transactions else self._names[1]
        self.expect_unfinished()
        # Without a limit on what waits, memory would hold the whole log.
        producer = new_producer(self._settings, **{"linger.ms": 5})
        failures: list[str] = []
        closed: list[str] = []
        landed = start

        def delivered(error: KafkaError | None, message: object) -> None:
            nonlocal landed
            if error is not None:
                is_closed = landed == start and error.code() == KafkaError.MSG_SIZE_TOO_LARGE
                (closed if is_closed else failures).append(str(error))
                return
            offset: int = message.offset()  # type: ignore[attr-defined]
            if offset != landed:
                failures.append(
                    f"a record landed at {offset}, not at {landed}, since something else writes"
                    " there, too: end that, delete the log's topics there, and run this again"
                )
            landed += 1

        sent, deadline = start, time.monotonic() + DELIVERY_SECONDS
        for raw in _without_gaps(records, start):
            self._send(producer, topic, partition, raw, delivered)
            sent += 1
            while sent - landed > (WINDOW if landed > start else 0) and not failures:
                producer.poll(0.1)
                if closed and time.monotonic() > deadline:
                    failures.append(closed.pop())
                elif closed:
                    # Alone so far: its broker hasn't heard yet that the topic is open again.
                    closed.clear()
                    time.sleep(0.05)
                    self._send(producer, topic, partition, raw, delivered)
            if failures:
                self.expect_unfinished()
                raise CorruptLog(f"{topic} could not be restored: {failures[0]}")
        left = producer.flush(DELIVERY_SECONDS)
        if left or failures:
            reason = failures[0] if failures else f"{left} records were not acknowledged in time"
            raise Unavailable(f"{topic} could not be restored: {reason}. Run the restore again")
        return sent

    @staticmethod
    def _send(
        producer: Producer, topic: str, partition: int, raw: RawRecord, delivered: object
    ) -> None:
        while True:
            try:
                producer.produce(
                    topic,
                    partition=partition,
                    key=raw.key,
                    value=raw.value,
                    timestamp=raw.append_time_ms,
                    on_delivery=delivered,  # type: ignore[arg-type]
                )
                return
            except BufferError:
                producer.poll(0.1)

    def is_finished(self) -> bool:
        """Return True if both topics take the broker's time, as those of a log in use do."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in self._names]
        deadline = time.monotonic() + DELIVERY_SECONDS
        while True:
            described = self._admin.describe_configs(resources, request_timeout=30)
            try:
                found = [answer_of(described[r], DELIVERY_SECONDS)[TIMESTAMPS] for r in resources]
                return all(one.value == "LogAppendTime" for one in found)
            except KafkaException as error:
                # A broker may not have heard yet of topics that were made a moment ago.
                if not is_passing(error) or time.monotonic() > deadline:
                    raise self._settings.translate(error, "reading the topics' settings") from error
                time.sleep(0.05)

    def expect_unfinished(self) -> None:
        """Raise Unavailable if another run has finished the topics, so that a log uses them."""
        if self.is_finished():
            raise Unavailable(
                f"another run has filled {self._names[0]} and {self._names[1]}, and the log is in"
                " use there now: nothing is left to do here"
            )

    def finish(self) -> None:
        """Have the topics take the broker's time from now on, as a running log needs it.

        Raises Unavailable if brokers don't say so within `DELIVERY_SECONDS`: they hear of a change
        a moment after it was acknowledged.
        """
        set_topics(self._admin, self._names, {TIMESTAMPS: "LogAppendTime"})
        deadline = time.monotonic() + DELIVERY_SECONDS
        while not self.is_finished():
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{self._names[0]} and {self._names[1]} don't have the setting"
                    f" {TIMESTAMPS}=LogAppendTime on all brokers after {DELIVERY_SECONDS:g} s. Run"
                    " the restore again"
                )
            time.sleep(0.05)

    def reopen(self) -> None:
        """Have topics that the log left take records again, with the times that these had."""
        size = TRANSACTIONS_SETTINGS[LIMIT]
        set_topics(self._admin, self._names, {LIMIT: size, TIMESTAMPS: "CreateTime"})


def _without_gaps(records: Iterable[RawRecord], start: int) -> Iterator[RawRecord]:
    """Yield records, and tombstones at the offsets that have none."""
    due = start
    for raw in records:
        while due < raw.offset:
            yield _filler(due, raw.append_time_ms)
            due += 1
        if raw.offset != due:
            raise CorruptLog(f"the copy has offset {raw.offset} where {due} is expected")
        yield raw
        due += 1


def _filler(offset: int, append_time_ms: int) -> RawRecord:
    return RawRecord(offset, append_time_ms, f"restored/{offset}".encode(), None)
