"""A client that nobody closed ends once nobody has it any more, nor anything that it gave."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.client.leader.runtime import RuntimeSettings
from tests.steered_leader import SCHEMA, SteeredLeader
from tests.waiting import WAIT_SECONDS, wait_until

QUICK = RuntimeSettings(fallback_after_seconds=0.1, request_timeout_seconds=60)
ROWS = {"id": [1]}


def threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name.startswith("commitlog-")}


def ended(before: set[threading.Thread]) -> bool:
    gc.collect()
    return threads() <= before


@pytest.fixture
def connect(log: MemoryLog, leader: SteeredLeader) -> Callable[[], CommitLog]:
    with CommitLog(lambda: log, settings=QUICK) as client:
        client.create_table("a$t", SCHEMA)
    return lambda: CommitLog(lambda: log, settings=QUICK)


@pytest.mark.slow
def test_a_client_that_nobody_has_ends(connect: Callable[[], CommitLog]) -> None:
    before = threads()
    client = connect()
    client.append("a$t", ROWS)
    assert not ended(before)
    del client
    wait_until(lambda: ended(before), "its threads ended")


@pytest.mark.slow
def test_what_a_client_gave_keeps_it(connect: Callable[[], CommitLog]) -> None:
    before = threads()
    ticket = connect().runtime().watch(connect().append("a$t", ROWS).transaction_id)
    assert ticket.result(WAIT_SECONDS).version == 2
    opened = connect().open("a$t")
    opened.delete("id = 1")
    assert opened.count_rows() == 0
    del opened, ticket
    wait_until(lambda: ended(before), "its threads ended")
