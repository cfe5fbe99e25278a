"""Does a client of Kafka end with the call that made it, though the cluster refused?"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from commitlog.adapters import kafka_acls, kafka_cleaning, kafka_io
from commitlog.adapters.kafka_acls import allow, rights_of
from commitlog.adapters.kafka_cleaning import cleaned_at_once
from commitlog.adapters.kafka_settings import ClientSettings
from commitlog.adapters.kafka_writers import (
    KafkaOutcomesWriter,
    KafkaRecordsWriter,
    KafkaTransactionsWriter,
)
from commitlog.errors import CommitLogError, Unavailable
from tests.contract.worlds import transaction
from tests.leaks import CLIENT, running
from tests.waiting import wait_until

SERVERS = "127.0.0.1:9"
REFUSING = {"test.mock.num.brokers": 1, "socket.timeout.ms": 300}
"""A cluster within librdkafka, which answers no question of administration."""


def _allow() -> None:
    allow(rights_of("index", "commitlog"), ["User:a"], SERVERS, REFUSING)


def _clean() -> None:
    with cleaned_at_once(SERVERS, "commitlog", REFUSING):
        pass


_MAKERS: list[Callable[[ClientSettings], Any]] = [
    lambda settings: KafkaTransactionsWriter(settings, "transactions"),
    lambda settings: KafkaOutcomesWriter(settings, "outcomes", 0),
    lambda settings: KafkaRecordsWriter(settings, "transactions", 0),
]


@pytest.mark.parametrize("make", _MAKERS, ids=["transactions", "outcomes", "records"])
def test_a_closed_writer_has_no_client_though_somebody_still_has_the_writer(
    make: Callable[[ClientSettings], Any],
) -> None:
    before = running()
    writer = make(ClientSettings(SERVERS, {"test.mock.num.brokers": 1}))
    assert [key for key in running() if key[0] == CLIENT and key not in before]
    writer.close()
    wait_until(
        lambda: not [key for key in running() if key[0] == CLIENT and key not in before],
        "the end of the client",
        seconds=10,
    )
    writer.close()
    assert (writer.poll(0), writer.flush(0)) == (0, 0)


def test_a_closed_writer_appends_nothing_and_opens_no_other_client() -> None:
    before = running()
    writer = KafkaTransactionsWriter(ClientSettings(SERVERS, REFUSING), "transactions")
    writer.close()
    with pytest.raises(Unavailable, match="appending to transactions"):
        writer.append(transaction(), partition=0)
    wait_until(
        lambda: not [key for key in running() if key[0] == CLIENT and key not in before],
        "the end of the client",
        seconds=10,
    )


@pytest.mark.slow
@pytest.mark.parametrize("act", [_allow, _clean])
def test_a_refused_client_does_not_wait_for_the_garbage_collector(
    act: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_acls, "APPLY_SECONDS", 0.3)
    monkeypatch.setattr(kafka_cleaning, "ALTER_SECONDS", 0.3)
    monkeypatch.setattr(kafka_io, "ALTER_SECONDS", 0.3)
    before = running()
    gc.disable()
    try:
        with pytest.raises(CommitLogError):
            act()
        wait_until(
            lambda: not [key for key in running() if key[0] == CLIENT and key not in before],
            "the end of the client",
            seconds=10,
        )
    finally:
        gc.enable()
