"""Reading and appending through Kafka's clients: one partition each way, in order.

A reader assigns its partition itself and starts where it is told; there is no consumer group and
no stored offset. A writer's callbacks run on the thread that polls it.

`consume(n, timeout)` of the client waits for n records until the timeout, which costs a lone
record the whole of it; so a reader polls for one, then takes what else is there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from commitlog.adapters.kafka_settings import (
    ClientSettings,
    ends_reading,
    error_of,
    is_passing,
    logger,
)
from commitlog.adapters.log_records import check_size, encode_to_append
from commitlog.errors import CommitLogError, Overloaded, RecordTooLarge, Unavailable
from commitlog.model.records import ProtocolVersion, Transaction
from commitlog.ports import DeliveryFailed, OnDelivery
from commitlog.protocol import transaction_key

Record = TypeVar("Record")
Decode = Callable[[int, int, int, bytes | None, bytes | None], Record | None]
"""From partition, offset, time, key and value; None for what is no record of the log."""

CLOSE_TIMEOUT_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 2.0
MISSING_SECONDS = 2.0
TOMBSTONES_AT_ONCE = 10_000


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
        with self._lock:
            if self._consumer is None:
                self._consumer = new_consumer(self._settings)
            consumer = self._consumer
        doing = f"asking for the end of {topic}[{partition}]"
        deadline = time.monotonic() + timeout_seconds
        consumer.poll(0)  # hands out what the client had to say since the last question
        while True:
            remaining = max(0.01, deadline - time.monotonic())
            try:
                found = consumer.get_watermark_offsets(
                    TopicPartition(topic, partition), timeout=remaining, cached=False
                )
            except KafkaException as error:
                is_over = time.monotonic() > deadline or not is_passing(error)
                if is_over or not self._has(consumer, topic, partition, remaining):
                    raise self._settings.translate(error, doing) from error
                time.sleep(0.02)
                continue
            if found is None:
                raise Unavailable(
                    f"{doing} at {self._settings.address}: no answer within {timeout_seconds} s."
                    " Check that the cluster runs, then retry"
                )
            low, high = found
            return low, high

    def _has(self, consumer: Consumer, topic: str, partition: int, timeout_seconds: float) -> bool:
        """Ask whether a partition exists; the client says it doesn't while it knows no broker."""
        try:
            found = consumer.list_topics(topic, timeout_seconds).topics[topic]
        except KafkaException as error:
            raise self._settings.translate(error, f"looking for topic {topic}") from error
        return found.error is None and partition in found.partitions

    def close(self) -> None:
        """Let go of the connection."""
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
        patient: bool = False,
    ) -> None:
        """Start fetching."""
        self._settings = settings
        self._watermarks = watermarks
        self._topic = topic
        self._partition = partition
        self._decode = decode
        self._position = offset
        self._failure: CommitLogError | None = None
        self._missing_since = 0.0
        self._is_paused = False
        self._consumer: Consumer | None = new_consumer(settings, self._note, patient=patient)
        self._consumer.assign([TopicPartition(topic, partition, offset)])

    def poll(self, *, records_max: int = 500, timeout_seconds: float = 0.1) -> list[Record]:
        """Return what is there as soon as anything is."""
        if self._failure is not None:
            raise self._failure
        consumer = self._open()
        if self._is_paused:
            self._is_paused = False
            consumer.resume([TopicPartition(self._topic, self._partition)])
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

    def _note(self, error: KafkaError) -> None:
        # A missing topic is told to this callback, not in place of a record. A broker that was
        # started a moment ago may say it of any topic: it must be told again a while later.
        if ends_reading(error):
            now = time.monotonic()
            self._missing_since = self._missing_since or now
            if now - self._missing_since >= MISSING_SECONDS:
                self._fail(error)

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
                self._missing_since = 0.0
            elif ends_reading(error):
                # What came before it is returned first; the next poll raises.
                self._fail(error)
                break
            else:
                logger.debug("reading %s: %s", self._topic, error.name())
        return records

    def position(self) -> int:
        """Return the next offset to be read."""
        # The client also passes what holds no record for us: another program's control markers.
        asked = self._open().position([TopicPartition(self._topic, self._partition)])
        return max(self._position, asked[0].offset)

    def pause(self) -> None:
        """Fetch nothing more until the next `poll`."""
        self._open().pause([TopicPartition(self._topic, self._partition)])
        self._is_paused = True

    def end_offset(self, timeout_seconds: float = 10) -> int:
        """Ask the log where it ends now."""
        return self._watermarks.ask(self._topic, self._partition, timeout_seconds)[1]

    def close(self) -> None:
        """Let go of the connection."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _open(self) -> Consumer:
        if self._consumer is None:
            raise RuntimeError("the reader is closed")
        return self._consumer


class _Writer:
    """A producer whose callbacks get an offset or a `DeliveryFailed`."""

    def __init__(self, settings: ClientSettings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._producer = new_producer(settings)
        with contextlib.suppress(KafkaException):
            # A first record that comes before any broker is connected waits half a second for
            # its producer id; unreachable now may be reachable at the first append.
            self._producer.cluster_id(CONNECT_TIMEOUT_SECONDS)

    def _produce(
        self, partition: int, key: bytes, value: bytes | None, on_delivery: OnDelivery | None
    ) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if on_delivery is None:
                return
            if error is None:
                offset = message.offset()
                assert offset is not None
                on_delivery(offset, None)
            else:
                on_delivery(-1, self._settings.delivery_failed(error, self._topic))

        try:
            self._producer.produce(
                self._topic, value, key, partition=partition, on_delivery=delivered
            )
        except BufferError as error:
            raise Overloaded(
                f"too many records are on their way to {self._topic}; this one was not sent", 0.1
            ) from error
        except KafkaException as error:
            raise self._not_sent(error) from error

    def _not_sent(self, error: KafkaException) -> CommitLogError:
        code = error_of(error).code()
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            return RecordTooLarge(self._settings.clean(error_of(error).str()), field="record")
        if code == KafkaError._FATAL:
            return DeliveryFailed(
                f"this writer to {self._topic} has failed for good; open another one",
                appended=False,
            )
        return self._settings.translate(error, f"appending to {self._topic}")

    def poll(self, timeout_seconds: float) -> int:
        """Run callbacks; return how many ran, waiting for the first one."""
        return self._producer.poll(timeout_seconds)

    def flush(self, timeout_seconds: float) -> int:
        """Wait until nothing is on its way; return how much still is."""
        return self._producer.flush(timeout_seconds)

    def purge(self) -> None:
        """Give up what is on its way; its callbacks get an error at the next poll."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def close(self) -> None:
        """Give up what is on its way, run its callbacks, and let go."""
        self.purge()
        self._producer.flush(CLOSE_TIMEOUT_SECONDS)


class KafkaTransactionsWriter(_Writer):
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
        key = transaction_key(transaction.transaction_id, session)
        self._produce(partition, key, value, on_delivery)

    def tombstone(self, partition: int, keys: Sequence[bytes], timeout_seconds: float) -> None:
        """Append a null value under each key; return when Kafka has them all."""
        failures: list[Exception] = []

        def delivered(offset: int, error: Exception | None) -> None:
            del offset
            if error is not None:
                failures.append(error)

        for start in range(0, len(keys), TOMBSTONES_AT_ONCE):
            for key in keys[start : start + TOMBSTONES_AT_ONCE]:
                self._produce(partition, key, None, delivered)
            if self.flush(timeout_seconds) or failures:
                why = failures[0] if failures else f"no acknowledgement in {timeout_seconds} s"
                raise Unavailable(f"not all tombstones were appended ({why}); run it again")


class KafkaOutcomesWriter(_Writer):
    """Appends to one partition of the outcomes topic, in order."""

    def __init__(self, settings: ClientSettings, topic: str, partition: int) -> None:
        """Connect a producer of its own, so that a purge gives up this term's records only."""
        super().__init__(settings, topic)
        self._partition = partition

    def append(self, key: str, value: bytes, on_delivery: OnDelivery) -> None:
        """Send an outcome on its way."""
        check_size(f"outcome {key}", value)
        self._produce(self._partition, key.encode(), value, on_delivery)


def new_consumer(
    settings: ClientSettings,
    on_error: Callable[[KafkaError], None] = lambda _error: None,
    *,
    patient: bool = False,
) -> Consumer:
    """Return a consumer that is assigned nothing yet; the callback runs when it is polled."""
    return _new(Consumer, settings, settings.consumer(patient=patient), on_error)


def new_producer(settings: ClientSettings) -> Producer:
    """Return a producer."""
    return _new(Producer, settings, settings.producer(), lambda _error: None)


Client = TypeVar("Client")


def _new(
    kind: Callable[[dict[str, Any]], Client],
    settings: ClientSettings,
    values: dict[str, Any],
    on_error: Callable[[KafkaError], None],
) -> Client:
    def log_and_tell(error: KafkaError) -> None:
        logger.debug("%s: %s: %s", settings.address, error.name(), settings.clean(error.str()))
        on_error(error)

    try:
        return kind({**values, "error_cb": log_and_tell})
    except KafkaException as error:
        raise settings.translate(error, "setting up Kafka's client") from None
