"""What a forked child does with its parent's client while a thread of the parent was busy."""

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from commitlog import CommitLog, OutcomeUnknown
from commitlog.client.leader import tickets
from commitlog.client.leader.tickets import Wait
from tests.steered_leader import SCHEMA, SteeredLeader

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

LIMIT_SECONDS = 30


@pytest.fixture
def client(client: CommitLog) -> CommitLog:
    client.create_table("a$t", SCHEMA)
    return client


def _runs_in_a_child(client: CommitLog, work: Callable[[], Any]) -> bool:
    """Fork while all locks of a client are held, as by its threads; return True if work ends."""
    runtime = client.runtime()
    [connection] = runtime._connections.values()
    socket = connection._socket
    locks: list[Any] = [
        *(client._lock, client._tables._lock, tickets._lock, client.opened.keys._lock),
        *(runtime._lock, runtime._sending._lock, connection._lock),
        *(socket._wake, socket._sending),
    ]
    with ExitStack() as held:
        for lock in locks:
            held.enter_context(lock)
        child = os.fork()
        if not child:
            signal.alarm(LIMIT_SECONDS)
            try:
                work()
            except BaseException:
                os._exit(1)
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_asks_the_leader(client: CommitLog) -> None:
    client.runtime()
    assert _runs_in_a_child(client, lambda: client.table("a$t"))
    assert client.table("a$t").version == 1


def test_a_child_looks_for_keys(client: CommitLog) -> None:
    assert _runs_in_a_child(client, lambda: client.opened.keys._lock.acquire(timeout=0) or 1 / 0)


def test_a_child_closes_and_leaves_the_rest_to_its_parent(client: CommitLog) -> None:
    assert _runs_in_a_child(client, client.close)
    client.append("a$t", {"id": [1], "v": ["a"]}).raise_for_conflict()


def test_a_child_has_no_answer_to_a_ticket_of_its_parent(
    client: CommitLog, leader: SteeredLeader
) -> None:
    leader.muted.set()
    ticket = client.runtime().watch("never")

    def ask() -> None:
        waits: list[Wait] = ["committed", "readable"]
        for wait in waits:
            with pytest.raises(OutcomeUnknown, match="forked"):
                ticket.result(5, wait)

    assert _runs_in_a_child(client, ask)
    leader.muted.clear()
