"""Kafka's clients, and reading one partition in order.

A reader assigns its partition itself and starts where it is told; there is no consumer group and
no stored offset.

`consume(n, timeout)` of the client waits for n records until the timeout, which costs a lone
record the whole of it; so a reader polls for one, then takes what else is there.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from commitlog.adapters.kafka_forks import (
    ForkTolerantAdminClient,
    ForkTolerantConsumer,
    ForkTolerantProducer,
)
from commitlog.adapters.kafka_settings import ClientSettings, ends_reading, is_passing, logger
from commitlog.errors import CommitLogError, Unavailable

Record = TypeVar("Record")
T = TypeVar("T")
Decode = Callable[[int, int, int, bytes | None, bytes | None], Record | None]
"""From partition, offset, time, key and value; None for what is no record of the log."""

_Question = Callable[[Consumer, str, int, float], T | None]
"""To a client, about a topic's partition, for at most so many seconds; None if no answer came."""
WRONG_SECONDS, ASK_SECONDS = 2.0, 1.0
ALTER_SECONDS = 30.0


def _first_and_end(
    consumer: Consumer, topic: str, partition: int, seconds: float
) -> tuple[int, int] | None:
    place = TopicPartition(topic, partition)
    found: tuple[int, int] | None = consumer.get_watermark_offsets(place, seconds, cached=False)
    return found


def _end(consumer: Consumer, topic: str, partition: int, seconds: float) -> int:
    [found] = consumer.offsets_for_times([TopicPartition(topic, partition, OFFSET_END)], seconds)
    if found.error is not None:
        raise KafkaException(found.error)
    return int(found.offset)


class Watermarks:
    """Asks where partitions begin and end, on a connection of its own.

    On a reader's connection the question would wait behind the fetch that waits for new records.
    """

    def __init__(self, settings: ClientSettings) -> None:
        """Connect at the first question."""
        self._settings = settings
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None

    def ask(self, topic: str, partition: int, timeout_seconds: float) -> tuple[int, int]:
        """Return (first offset, end offset)."""
        return self._answered(_first_and_end, topic, partition, timeout_seconds)

    def end(self, topic: str, partition: int, timeout_seconds: float) -> int:
        """Return the end offset, for half the requests."""
        return self._answered(_end, topic, partition, timeout_seconds)

    def _answered(
        self, question: _Question[T], topic: str, partition: int, timeout_seconds: float
    ) -> T:
        with self._lock:
            if self._consumer is None:
                self._consumer = new_consumer(self._settings)
            consumer = self._consumer
        doing = f"asking for the end of {topic}[{partition}]"
        where = f"{doing} at {self._settings.address}"
        deadline = time.monotonic() + timeout_seconds
        consumer.poll(0)  # hands out what the client had to say since the last question
        while True:
            remaining = max(0.01, deadline - time.monotonic())
            try:
                found = question(consumer, topic, partition, remaining)
            except KafkaException as error:
                if not is_passing(error) or not self._has(consumer, topic, partition, remaining):
                    raise self._settings.translate(error, doing) from error
                if time.monotonic() <= deadline:
                    time.sleep(0.02)
                    continue
                found = None
            if found is None:
                consumer.poll(0)
                raise self._settings.silent(where, f"no answer within {timeout_seconds} s")
            return found

    def _has(self, consumer: Consumer, topic: str, partition: int, timeout_seconds: float) -> bool:
        """Ask whether a partition exists; the client says it doesn't while it knows no broker."""
        try:
            found = consumer.list_topics(topic, timeout_seconds).topics[topic]
        except KafkaException as error:
            consumer.poll(0)
            raise self._settings.translate(error, f"looking for topic {topic}") from error
        if found.error is None:
            return partition in found.partitions
        if not is_passing(found.error):
            raise self._settings.translate(found.error, f"looking for topic {topic}")
        # A broker that just woke up knows no leader, and says so.
        return bool(found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


class KafkaReader(Generic[Record]):
    """Reads one partition from an offset on."""

    def __init__(
        self,
        settings: ClientSettings,
        watermarks: Watermarks,
        topic: str,
        partition: int,
        offset: int,
        decode: Decode[Record],
        *,
        patient: float = 0.0,
    ) -> None:
        self._settings = settings
        self._watermarks = watermarks
        self._topic = topic
        self._partition = partition
        self._decode = decode
        self._position = offset
        self._failure: CommitLogError | None = None
        self._denied_since = self._refused_since = 0.0
        self._is_paused = self._is_closed = False
        self._patient = patient
        self._consumer: Consumer | None = self._connect()

    def poll(self, *, records_max: int = 500, timeout_seconds: float = 0.1) -> list[Record]:
        """Return what is there as soon as anything is."""
        if self._failure is not None:
            raise self._failure
        consumer = self._open()
        self._resume()
        self._ask_again()
        deadline = time.monotonic() + timeout_seconds
        message = consumer.poll(timeout_seconds)
        while message is not None:
            messages = [message]
            if records_max > 1:
                messages += consumer.consume(records_max - 1, 0)
            if records := self._decoded(messages):
                return records
            # Tombstones, which are no records, may come by the thousand.
            remaining = deadline - time.monotonic()
            if self._failure is not None or remaining <= 0:
                break
            message = consumer.poll(remaining)
        if self._failure is not None:
            raise self._failure
        return []

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._open().resume([TopicPartition(self._topic, self._partition)])

    def _note(self, error: KafkaError) -> None:
        # What ends the reading is told to this callback, not in place of a record. A broker that
        # just started may say it, too: it must be told again a while later, or the broker is asked.
        if not ends_reading(error):
            return
        now = time.monotonic()
        if is_passing(error):
            self._denied_since = self._denied_since or now
            return
        self._refused_since = self._refused_since or now
        if now - self._refused_since >= WRONG_SECONDS:
            self._fail(error)

    def _ask_again(self) -> None:
        """Ask whether there is no such topic, a while after a broker denied it.

        The client says so once, or every 30 seconds, and never that it was wrong.
        """
        if not self._denied_since or time.monotonic() - self._denied_since < WRONG_SECONDS:
            return
        self._denied_since = 0.0
        try:
            self._watermarks.end(self._topic, self._partition, ASK_SECONDS)
        except Unavailable:
            self._denied_since = time.monotonic()
        except CommitLogError as error:
            self._failure = error
            raise

    def _fail(self, error: KafkaError) -> None:
        doing = f"reading {self._topic}[{self._partition}] from offset {self._position}"
        self._failure = self._settings.translate(error, doing)

    def _decoded(self, messages: list[Message]) -> list[Record]:
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                offset = message.offset()
                assert offset is not None
                time_ms = message.timestamp()[1]
                decoded = self._decode(
                    self._partition, offset, time_ms, message.key(), message.value()
                )
                if decoded is not None:
                    records.append(decoded)
                self._position = offset + 1
                self._denied_since = self._refused_since = 0.0
            elif ends_reading(error):
                # What came before it is returned first; the next poll raises.
                self._fail(error)
                break
            else:
                logger.debug("reading %s: %s", self._topic, error.name())
        return records

    def position(self) -> int:
        """Return the next offset to be read."""
        if self._is_resting:
            return self._position
        # The client also passes what holds no record for us: another program's control markers.
        asked = self._open().position([TopicPartition(self._topic, self._partition)])
        return max(self._position, asked[0].offset)

    def pause(self) -> None:
        """Fetch nothing more until the next `poll`."""
        self._open().pause([TopicPartition(self._topic, self._partition)])
        self._is_paused = True

    def rest(self) -> None:
        """Let go of the connection until the next `poll`."""
        if not self._is_resting:
            self._position = self.position()
            self._disconnect()

    def seek(self, offset: int) -> None:
        """Continue from another offset; what was fetched is given up."""
        consumer = self._open()
        if self._is_paused:
            # The client forgets no pause over a new assignment. It reads on what it resumes, and a
            # request that waits at the log's end keeps the next one waiting: so it gets nothing.
            consumer.unassign()
            self._resume()
        self._position = offset
        consumer.assign([TopicPartition(self._topic, self._partition, offset)])

    def end_offset(self, timeout_seconds: float = 10) -> int:
        """Ask the log where it ends now."""
        return self._watermarks.end(self._topic, self._partition, timeout_seconds)

    def close(self) -> None:
        """Close the connection."""
        self._is_closed = True
        self._disconnect()

    @property
    def _is_resting(self) -> bool:
        return self._consumer is None and not self._is_closed

    def _open(self) -> Consumer:
        if self._is_closed:
            raise RuntimeError("the reader is closed")
        if self._consumer is None:
            self._is_paused = False
            self._consumer = self._connect()
        return self._consumer

    def _connect(self) -> Consumer:
        consumer = new_consumer(self._settings, self._note, patient=self._patient)
        consumer.assign([TopicPartition(self._topic, self._partition, self._position)])
        return consumer

    def _disconnect(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def _ignore(error: KafkaError) -> None:
    del error


def new_consumer(
    settings: ClientSettings,
    on_error: Callable[[KafkaError], None] = _ignore,
    *,
    patient: float = 0.0,
) -> Consumer:
    """Return a consumer that is assigned nothing yet; the callback runs when it is polled."""
    return _new(ForkTolerantConsumer, settings, settings.consumer(patient=patient), on_error)


def new_producer(settings: ClientSettings, **values: Any) -> Producer:
    """Return a producer, with values for settings that one use needs differently."""
    return _new(ForkTolerantProducer, settings, {**settings.producer(), **values}, _ignore)


def new_admin(settings: ClientSettings) -> AdminClient:
    """Return a client for administration."""
    return _new(ForkTolerantAdminClient, settings, settings.admin(), _ignore)


def meaning(
    admin: AdminClient, settings: ClientSettings, error: KafkaException | KafkaError, doing: str
) -> CommitLogError:
    """Return what the error of an admin client's request means, by what it heard meanwhile, too."""
    admin.poll(0)
    return settings.translate(error, doing)


Client = TypeVar("Client")


def _new(
    kind: Callable[[dict[str, Any]], Client],
    settings: ClientSettings,
    values: dict[str, Any],
    on_error: Callable[[KafkaError], None],
) -> Client:
    def log_and_tell(error: KafkaError) -> None:
        logger.debug("%s: %s: %s", settings.address, error.name(), settings.clean(error.str()))
        settings.hear(error)
        on_error(error)

    try:
        return kind({**values, "error_cb": log_and_tell})
    except KafkaException as error:
        raise settings.translate(error, "setting up Kafka's client") from None


def answer_of(future: concurrent.futures.Future[Any], timeout_seconds: float) -> Any:
    """Return what the cluster answered, or raise its error.

    Not the future's own: raised, that is in a circle with the frames that it went through, and
    keeps their clients connected until the garbage collector comes.
    """
    error = future.exception(timeout_seconds)
    if isinstance(error, KafkaException):
        raise KafkaException(*error.args)
    return future.result()


def set_topics(
    admin: AdminClient, names: Sequence[str], settings: Mapping[str, str | None]
) -> None:
    """Set the same for all of these topics, each topic at once; None: as the cluster has it."""
    act = AlterConfigOpType
    entries = [
        ConfigEntry(name, value, incremental_operation=act.DELETE if value is None else act.SET)
        for name, value in settings.items()
    ]
    resources = [
        ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries) for name in names
    ]
    for future in admin.incremental_alter_configs(
        resources, request_timeout=ALTER_SECONDS
    ).values():
        answer_of(future, ALTER_SECONDS)
