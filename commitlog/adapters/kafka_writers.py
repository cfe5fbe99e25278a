"""Appending through Kafka's client, in order. Callbacks run on the thread that polls."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from commitlog.adapters.kafka_io import new_producer
from commitlog.adapters.kafka_settings import ClientSettings, error_of, logger
from commitlog.adapters.log_records import check_outcome_size, encode_to_append
from commitlog.errors import CommitLogError, Overloaded, RecordTooLarge, Unavailable
from commitlog.model.records import ProtocolVersion, Transaction
from commitlog.ports import DeliveryFailed, OnDelivery, OnLanded
from commitlog.protocol import transaction_key

CLOSE_TIMEOUT_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 2.0
TOMBSTONES_AT_ONCE = 10_000
GATHER_MS = 1
"""Longer than it takes to hand a group over."""
UNGATHERED_MAX = 5
"""How many records an idempotent producer sends before it needs an acknowledgement."""

_Message = dict[str, Any]
"""As the client's `produce_batch` has it."""


class _Closed:
    """A closed writer's producer: it is empty, and takes nothing."""

    def poll(self, _: float) -> int:
        return 0

    def flush(self, _: float) -> int:
        return 0

    def purge(self, **_: bool) -> None:
        pass

    def cluster_id(self, _: float) -> str:
        return ""

    def produce(self, *_: Any, **__: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._DESTROY))

    produce_batch = produce


class _Writer:
    """A producer whose callbacks get an offset or a `DeliveryFailed`."""

    def __init__(self, settings: ClientSettings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._why_failed: KafkaError | None = None
        """Why a producer of this writer failed permanently."""
        producer = new_producer(settings)
        self._producer: Producer | _Closed = producer
        with contextlib.suppress(KafkaException):
            # A first record that comes before any broker is connected waits half a second for
            # its producer id; unreachable now may be reachable at the first append.
            producer.cluster_id(CONNECT_TIMEOUT_SECONDS)

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
                on_delivery(-1, self._not_delivered(error))

        try:
            self._producer.produce(
                self._topic, value, key, partition=partition, on_delivery=delivered
            )
        except BufferError as error:
            raise Overloaded(
                f"too many records are in flight to {self._topic}; this one was not sent", 0.1
            ) from error
        except KafkaException as error:
            raise self._not_sent(error) from error

    def _not_delivered(self, error: KafkaError) -> DeliveryFailed:
        return self._settings.delivery_failed(error, self._topic, self._why_failed)

    def _not_sent(self, error: KafkaException) -> CommitLogError:
        code = error_of(error).code()
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            return RecordTooLarge(self._settings.clean(error_of(error).str()), field="record")
        if code == KafkaError._FATAL:
            return DeliveryFailed(
                f"this writer to {self._topic} has failed and cannot recover; open another one",
                appended=False,
            )
        return self._settings.translate(error, f"appending to {self._topic}")

    def poll(self, timeout_seconds: float) -> int:
        """Run callbacks; return how many ran, waiting for the first one."""
        try:
            return self._producer.poll(timeout_seconds)
        except KafkaException as error:
            # Raised once, instead of callbacks; records then fail one by one, without the reason.
            self._why_failed = error_of(error)
            return 0

    def flush(self, timeout_seconds: float) -> int:
        """Wait until nothing is on its way; return how much still is.

        Raises:
            Unavailable: the producer failed permanently; which records it had sent is unknown.
        """
        self.poll(0)
        try:
            return self._producer.flush(timeout_seconds)
        except (KafkaException, SystemError) as error:
            # The client means to raise why, and forgets; it forgets the callbacks, too.
            raise Unavailable(
                f"this writer to {self._topic} failed and cannot recover: records in flight may "
                "not be in the log. Check that these credentials may write to the topic "
                "(`commitlog acl`)"
            ) from error

    def purge(self) -> None:
        """Give up what is on its way; its callbacks get an error at the next poll."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def close(self) -> None:
        """Give up what is on its way, run its callbacks, and close."""
        self.purge()
        with contextlib.suppress(Unavailable):
            self.flush(CLOSE_TIMEOUT_SECONDS)
        # A producer ends once nobody has it. Its own `close` could end it under a thread that
        # polls; and who still has the writer would keep its threads and connections.
        self._producer = _Closed()


class KafkaTransactionsWriter(_Writer):
    """Appends to the transactions topic; threads may share it.

    A producer that failed permanently is replaced: an id commits once, however often its record
    was sent, so nothing depends on the failed one's order.
    """

    def __init__(self, settings: ClientSettings, topic: str) -> None:
        super().__init__(settings, topic)
        self._replacing = threading.Lock()

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
        producer = self._producer
        try:
            self._produce(partition, key, value, on_delivery)
        except DeliveryFailed:
            self._replace(producer)
            self._produce(partition, key, value, on_delivery)

    def _replace(self, failed: Producer | _Closed) -> None:
        """Open another producer, and tell what became of the failed one's records."""
        with self._replacing:
            if self._producer is not failed:
                return
            self._producer = new_producer(self._settings)
        logger.warning("the producer to %s failed and was replaced", self._topic)
        failed.purge(in_queue=True, in_flight=True, blocking=False)
        with contextlib.suppress(KafkaException, SystemError):
            failed.flush(CLOSE_TIMEOUT_SECONDS)

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


class _GroupsWriter(_Writer):
    """Appends to one partition of a topic, in order, in groups that `poll` sends.

    Records appended between two polls are a group, and one request; records appended while a
    group is on its way go together with the next one. A request for each record would cost the
    broker and this process more than the wait.

    librdkafka sends a group's first records while it takes the others. Then it waits in a busy
    loop until they are acknowledged, since an idempotent producer has at most five records on
    their way. So larger groups go through a second producer, which gathers for a moment; `poll`
    ends that.
    """

    def __init__(self, settings: ClientSettings, topic: str, partition: int) -> None:
        """Connect a producer of its own, so that a purge gives up this term's records only."""
        super().__init__(settings, topic)
        self._partition = partition
        self._other: Producer | _Closed | None = None
        """The producer that isn't used now; None until a large group comes."""
        self._gathers, self._is_connected = False, False
        """Whether the one that is used gathers, and whether that one was ever connected."""
        self._numbers = itertools.count()
        self._on_their_way: dict[int, OnLanded] = {}
        self._is_gathering = False
        """Whether it may still wait for more of the group."""
        self._waiting: list[tuple[bytes, bytes, OnLanded]] = []
        self._failed: list[tuple[OnLanded, Exception]] = []

    def _take(self, key: bytes, value: bytes, on_landed: OnLanded) -> None:
        self._waiting.append((key, value, on_landed))

    def poll(self, timeout_seconds: float) -> int:
        """Send what waits and run callbacks; return how many ran, waiting for the first one."""
        self._send()
        count = self._run_failed()
        if self._is_gathering and timeout_seconds and not count:
            return self._hurry(timeout_seconds)
        return count + super().poll(0 if count else timeout_seconds)

    def flush(self, timeout_seconds: float) -> int:
        """Wait until nothing waits or is on its way; return how much still does."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._send()
            left = super().flush(max(0.0, deadline - time.monotonic()))
            if left or not self._waiting:
                return left + len(self._waiting)

    def purge(self) -> None:
        """Give up what is on its way or waits; its callbacks get an error at the next poll."""
        self._give_up_waiting()
        super().purge()

    def close(self) -> None:
        """Give up what is on its way, run its callbacks, and close."""
        super().close()
        self._other = _Closed()
        self.poll(0)

    def _choose_producer(self, count: int) -> None:
        """Use the producer for groups of this size, if it is connected; nothing is on its way."""
        is_large = count > UNGATHERED_MAX
        if self._other is None:
            if is_large:
                self._other = new_producer(self._settings, **{"linger.ms": GATHER_MS})
            return
        if is_large == self._gathers:
            return
        if not self._is_connected:
            with contextlib.suppress(KafkaException):
                self._is_connected = bool(self._other.cluster_id(0))
        if self._is_connected:
            self._producer, self._other = self._other, self._producer
            self._gathers = is_large

    def _send(self) -> None:
        """Send what waits, if nothing is on its way."""
        if self._on_their_way or not self._waiting:
            return
        self._choose_producer(len(self._waiting))
        group, self._waiting, self._is_gathering = self._waiting, [], self._gathers
        numbers = list(itertools.islice(self._numbers, len(group)))
        messages: list[_Message] = [
            {"key": key, "value": value, "callback": partial(self._landed, number)}
            for number, (key, value, _) in zip(numbers, group, strict=True)
        ]
        problem: CommitLogError | None = None
        try:
            self._producer.produce_batch(self._topic, messages, partition=self._partition)
        except BufferError as error:
            problem = Overloaded(f"too many records are in flight to {self._topic}: {error}", 0.1)
        except KafkaException as error:
            problem = self._not_sent(error)
        for number, message, (_, _, on_landed) in zip(numbers, messages, group, strict=True):
            refused = message.get("_error")
            if problem is not None:
                self._failed.append((on_landed, problem))
            elif refused is not None:
                self._failed.append((on_landed, self._not_delivered(refused)))
            else:
                self._on_their_way[number] = on_landed

    def _hurry(self, timeout_seconds: float) -> int:
        """Have it gather no more; run callbacks until all did, for at most so long."""
        self._is_gathering = False
        before = len(self._on_their_way)
        try:
            self._producer.flush(timeout_seconds)
        except (KafkaException, SystemError) as error:
            # It failed for good, and may have forgotten callbacks.
            if isinstance(error, KafkaException):
                self._why_failed = error_of(error)
            self._give_up_sent()
        return before - len(self._on_their_way)

    def _landed(self, number: int, error: KafkaError | None, message: Message) -> None:
        on_landed = self._on_their_way.pop(number, None)
        if on_landed is None:
            return  # given up
        if error is not None:
            on_landed(-1, 0, self._not_delivered(error))
            # In order, or not at all.
            self._give_up_waiting()
            return
        offset, (kind, time_ms) = message.offset(), message.timestamp()
        assert offset is not None
        # Of what was sent again and had arrived before, the broker may not remember where and when.
        on_landed(offset, time_ms if kind == TIMESTAMP_LOG_APPEND_TIME else 0, None)

    def _run_failed(self) -> int:
        failed, self._failed = self._failed, []
        if failed:
            self._give_up_waiting()
        for on_landed, error in failed:
            on_landed(-1, 0, error)
        return len(failed)

    def _give_up_sent(self) -> None:
        error = self._not_delivered(KafkaError(KafkaError._PURGE_INFLIGHT))
        self._failed += [(on_landed, error) for on_landed in self._on_their_way.values()]
        self._on_their_way.clear()

    def _give_up_waiting(self) -> None:
        error = DeliveryFailed(f"{self._topic}: closed before an acknowledgement", appended=None)
        self._failed += [(on_landed, error) for _, _, on_landed in self._waiting]
        self._waiting.clear()


class KafkaOutcomesWriter(_GroupsWriter):
    """Appends a term's outcomes."""

    def append(self, key: str, value: bytes, on_delivery: OnDelivery) -> None:
        """Take an outcome for the next group."""
        check_outcome_size(key, value)
        self._take(key.encode(), value, lambda offset, _, error: on_delivery(offset, error))


class KafkaRecordsWriter(_GroupsWriter):
    """Appends what writers sent to a leader during its term."""

    def append(self, key: bytes, value: bytes, on_landed: OnLanded) -> None:
        """Take a record for the next group."""
        self._take(key, value, on_landed)
