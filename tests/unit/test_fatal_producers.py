"""A producer that cannot recover is replaced, and a record that waits to be resent is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException

from commitlog.adapters import kafka_writers
from commitlog.adapters.kafka_settings import ClientSettings
from commitlog.adapters.kafka_writers import KafkaOutcomesWriter, KafkaTransactionsWriter
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import Fate
from commitlog.client.leader import sending
from commitlog.client.leader.runtime import Runtime, RuntimeSettings
from commitlog.errors import Unavailable
from commitlog.model.records import ProtocolVersion, Transaction
from commitlog.ports import DeliveryFailed, OnDelivery, TransactionsWriter
from tests.contract.worlds import transaction
from tests.waiting import wait_until

SETTINGS = ClientSettings("127.0.0.1:1", {})


class _Message:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_LOG_APPEND_TIME, 1


class _Producer:
    """Takes records until it is told that it cannot recover; nothing is appended after that."""

    made: list[_Producer]

    def __init__(self, settings: ClientSettings, **values: Any) -> None:
        self.failed = False
        self.sent: list[Callable[[Any, Any], None]] = []
        self.batches: list[list[bytes]] = []
        self.made.append(self)

    def cluster_id(self, timeout: float) -> str:
        return "cluster"

    def produce(self, topic: str, value: bytes, key: bytes, **how: Any) -> None:
        if self.failed:
            raise KafkaException(KafkaError(KafkaError._FATAL, "out of sequence", True))
        self.sent.append(how["on_delivery"])

    def produce_batch(self, topic: str, messages: list[dict[str, Any]], **how: Any) -> None:
        if self.failed:
            raise KafkaException(KafkaError(KafkaError._FATAL, "out of sequence", True))
        self.batches.append([message["value"] for message in messages])
        self.sent += [message["callback"] for message in messages]

    def poll(self, timeout: float) -> int:
        sent, self.sent = self.sent, []
        for number, on_delivery in enumerate(sent):
            if self.failed:
                on_delivery(KafkaError(KafkaError._PURGE_INFLIGHT), _Message(-1))
            else:
                on_delivery(None, _Message(number))
        return len(sent)

    def flush(self, timeout: float) -> int:
        self.poll(timeout)
        return 0

    def purge(self, **how: bool) -> None:
        pass


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> list[_Producer]:
    """Return the producers made so far."""
    _Producer.made = []
    monkeypatch.setattr(kafka_writers, "new_producer", _Producer)
    return _Producer.made


def test_a_fatal_error_replaces_the_producer(producers: list[_Producer]) -> None:
    writer = KafkaTransactionsWriter(SETTINGS, "commitlog.transactions")
    told: list[tuple[str, int, Exception | None]] = []

    def telling(name: str) -> OnDelivery:
        return lambda offset, error: told.append((name, offset, error))

    writer.append(transaction(), partition=0, on_delivery=telling("a"))
    producers[0].failed = True
    writer.append(transaction(), partition=0, on_delivery=telling("b"))
    writer.poll(0)
    by_name = {name: error for name, _, error in told}
    assert isinstance(by_name["a"], DeliveryFailed), "what was on its way is told of"
    assert by_name["a"].appended is None
    assert by_name["b"] is None, "the record went by another producer"
    assert len(producers) == 2


def test_what_a_failed_producer_gives_up_says_why(
    producers: list[_Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = KafkaTransactionsWriter(SETTINGS, "commitlog.transactions")
    told: list[Exception | None] = []
    writer.append(transaction(), partition=0, on_delivery=lambda _, error: told.append(error))
    producers[0].failed = True
    refused = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "may not write", True)

    def fails(timeout: float) -> int:
        raise KafkaException(refused)

    with monkeypatch.context() as patch:
        patch.setattr(producers[0], "poll", fails)
        assert writer.poll(0) == 0
        patch.setattr(producers[0], "flush", fails)
        with pytest.raises(Unavailable, match="cannot recover"):
            writer.flush(1)
    writer.poll(0)
    assert "may not write" in str(told[0])


def test_a_term_gets_no_second_producer(producers: list[_Producer]) -> None:
    writer = KafkaOutcomesWriter(SETTINGS, "commitlog.outcomes", 0)
    producers[0].failed = True
    told: list[Exception | None] = []
    writer.append("1/1", b"outcome", lambda offset, error: told.append(error))
    writer.poll(0)
    assert isinstance(told[0], DeliveryFailed)
    assert "cannot recover" in str(told[0])
    assert len(producers) == 1


def test_what_was_appended_between_two_polls_is_one_request(producers: list[_Producer]) -> None:
    writer = KafkaOutcomesWriter(SETTINGS, "commitlog.outcomes", 0)
    told: list[int] = []

    def tell(offset: int, error: Exception | None) -> None:
        told.append(offset)
        if len(told) == 1:
            writer.append("1/4", b"4", tell)

    for number in (b"1", b"2", b"3"):
        writer.append(f"1/{number.decode()}", number, tell)
    assert producers[0].batches == []
    writer.poll(0)
    assert producers[0].batches == [[b"1", b"2", b"3"]], "a group goes as a whole"
    assert told == [0, 1, 2]
    writer.poll(0)
    assert producers[0].batches[1:] == [[b"4"]], "what came meanwhile goes with the next one"


def test_behind_an_outcome_that_failed_nothing_is_sent(producers: list[_Producer]) -> None:
    writer = KafkaOutcomesWriter(SETTINGS, "commitlog.outcomes", 0)
    told: list[tuple[bytes, Exception | None]] = []

    def append(name: bytes) -> None:
        writer.append(f"1/{name.decode()}", name, lambda _, error: told.append((name, error)))

    append(b"1")
    producers[0].poll = lambda timeout: 0  # type: ignore[method-assign]
    writer.poll(0)
    append(b"2")
    producers[0].sent[0](KafkaError(KafkaError._PURGE_INFLIGHT), _Message(-1))
    writer.poll(0)
    assert [name for name, error in told if isinstance(error, DeliveryFailed)] == [b"1", b"2"]
    assert producers[0].batches == [[b"1"]]


class _Group:
    """A writer whose large groups are gathered, and what became of them."""

    def __init__(self, producers: list[_Producer], *, count: int = 6) -> None:
        self.writer = KafkaOutcomesWriter(SETTINGS, "commitlog.outcomes", 0)
        self.told: list[Exception | None] = []
        self.append(count)  # only now a second producer is opened, which has to connect first
        self.writer.poll(0)
        self.told.clear()
        self.append(count)
        [self.small, *larger] = producers
        [self.large] = larger or [self.small]

    def append(self, count: int) -> None:
        for number in range(count):
            self.writer.append(f"1/{number}", b"", lambda _, error: self.told.append(error))


def test_large_groups_are_gathered_until_somebody_waits_for_them(
    producers: list[_Producer],
) -> None:
    made, flushed = _Group(producers), list[float]()
    assert [len(producers), len(made.small.batches), len(made.large.batches)] == [2, 1, 0]
    answer = made.large.poll
    made.large.poll = lambda timeout: 0  # type: ignore[method-assign]

    def flush(timeout: float) -> int:
        flushed.append(timeout)
        answer(timeout)
        return 0

    made.large.flush = flush  # type: ignore[method-assign]
    assert (made.writer.poll(0), flushed) == (0, []), "others may have something to do meanwhile"
    assert (made.writer.poll(0.5), flushed, made.told) == (6, [0.5], [None] * 6)
    assert (made.writer.poll(0.5), flushed) == (0, [0.5]), "only what was gathered is hurried"
    made.append(5)
    assert made.writer.poll(0.5) == 5
    assert [len(batch) for batch in made.small.batches] == [6, 5], "at once, as before"
    made.writer.close()


def test_a_second_producer_is_used_once_it_is_connected(
    producers: list[_Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Producer, "cluster_id", lambda self, timeout: None)
    made = _Group(producers)
    assert made.writer.poll(0) == 6
    assert [len(made.small.batches), len(made.large.batches)] == [2, 0]
    monkeypatch.undo()
    made.append(6)
    made.writer.poll(0)
    assert [len(made.small.batches), len(made.large.batches)] == [2, 1]


@pytest.mark.parametrize(
    "raised", [KafkaException(KafkaError(KafkaError._FATAL, "why", True)), SystemError("forgot")]
)
def test_a_producer_that_forgets_its_callbacks_is_believed_to_have_failed(
    producers: list[_Producer], raised: Exception
) -> None:
    made = _Group(producers)

    def fails(timeout: float) -> int:
        raise raised

    made.large.poll = lambda timeout: 0  # type: ignore[method-assign]
    made.large.flush = fails  # type: ignore[method-assign]
    made.writer.poll(0.5)
    made.writer.poll(0)
    assert len(made.told) == 6
    assert all(isinstance(one, DeliveryFailed) and one.appended is None for one in made.told)
    late = made.large.sent[0]
    late(None, _Message(0))
    assert len(made.told) == 6, "what was told of as failed isn't told of again"


class _Refusing:
    """A writer that takes no record for a while, as one that cannot recover."""

    def __init__(self, writer: TransactionsWriter, refusals: int) -> None:
        self._writer, self.refusals = writer, refusals

    def append(
        self,
        record: Transaction | ProtocolVersion,
        *,
        partition: int,
        on_delivery: OnDelivery | None = None,
        session: str = "",
    ) -> None:
        if self.refusals:
            self.refusals -= 1
            raise DeliveryFailed("this writer has cannot recover", appended=False)
        self._writer.append(record, partition=partition, on_delivery=on_delivery, session=session)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


@pytest.mark.slow
def test_a_resend_that_cannot_be_sent_is_sent_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "DELIVERY_SECONDS", 0.01)
    log = MemoryLog()
    log.create()
    fates = [Fate.LOSE]
    log.cluster.on_append = lambda append: fates.pop() if fates else Fate.DELIVER
    writer = _Refusing(log.transactions_writer(), refusals=0)
    monkeypatch.setattr(log, "transactions_writer", lambda: writer)
    runtime = Runtime(log, RuntimeSettings(), lambda outcome: False)
    try:
        ticket = runtime.submit(transaction(), id_is_new=True)
        writer.refusals = 3
        wait_until(lambda: ticket.offset >= 0, "an appended record")
        assert writer.refusals == 0
    finally:
        runtime.close(1)
