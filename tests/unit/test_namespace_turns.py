"""Does who lost twice go next, the oldest first, and does nobody wait for one that is gone?"""

import threading
import time

import pytest

from consumers.servers.namespace import turns as module
from consumers.servers.namespace.turns import Turns


def waiting(turns: Turns, client: str) -> threading.Thread:
    thread = threading.Thread(target=turns.wait, args=("table", client), daemon=True)
    thread.start()
    return thread


def test_one_loss_promises_nothing() -> None:
    turns = Turns()
    turns.lost("table", "a")
    turns.wait("table", "b")


def test_the_oldest_loser_is_waited_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROMISE_SECONDS", 600.0)
    turns = Turns()
    for client in ("old", "young", "young", "old"):
        turns.lost("table", client)
    turns.lost("other table", "somebody")
    # `young` lost twice first, and keeps what it was promised.
    old = waiting(turns, "old")
    turns.wait("table", "young")
    assert old.is_alive()
    turns.won("table", "young")
    old.join(60)
    assert not old.is_alive()
    young = waiting(turns, "young")
    assert young.is_alive(), "the oldest is next"
    turns.won("table", "old")
    young.join(60)
    assert not young.is_alive()
    turns.wait("table", "anybody")


def test_nobody_waits_for_a_client_that_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PROMISE_SECONDS", 0.2)
    turns = Turns()
    turns.lost("table", "gone")
    turns.lost("table", "gone")
    began = time.monotonic()
    turns.wait("table", "another")
    assert time.monotonic() - began >= 0.1
    turns.won("table", "another")
