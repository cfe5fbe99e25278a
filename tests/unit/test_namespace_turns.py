"""Does who lost twice go next, the oldest first, and does nobody wait for one that is gone?"""

import threading
import time

import pytest

from consumers.servers.namespace import turns as module
from consumers.servers.namespace.turns import KeyedLocks


def waiting(turns: KeyedLocks, client: str) -> threading.Thread:
    thread = threading.Thread(target=turns.wait, args=("table", client), daemon=True)
    thread.start()
    return thread


def test_the_oldest_loser_is_waited_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROMISE_SECONDS", 600.0)
    turns = KeyedLocks()
    for client in ("old", "young", "old"):
        turns.lost("table", client)
    turns.lost("other table", "somebody")
    turns.wait("table", "old")
    others = [waiting(turns, client) for client in ("young", "anybody")]
    assert all(thread.is_alive() for thread in others)
    turns.won("table", "old")
    others[0].join(60)
    assert not others[0].is_alive(), "the next oldest is next"
    assert others[1].is_alive()
    turns.won("table", "young")
    others[1].join(60)
    assert not others[1].is_alive()


def test_nobody_waits_long_for_a_client_that_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PROMISE_SECONDS", 0.2)
    turns = KeyedLocks()
    began = time.monotonic()
    for client in ("gone", "gone too"):
        turns.lost("table", client)
    turns.wait("table", "another")
    assert time.monotonic() - began >= 0.2
    turns.won("table", "another")
