"""What a leader answers from memory: bounded in number and in bytes, and it knows where it ends."""

from __future__ import annotations

import pytest

from commitlog.model.records import Outcome, Status
from consumers.socket import remembered
from consumers.socket.remembered import Answer, Remembered


def add(kept: Remembered, sequence: int, name: str, size: int = 1) -> None:
    outcome = Outcome(sequence, name, 0, Status.COMMITTED)
    kept.add(Answer(outcome, sequence, bytes(size), readable=True))


def test_large_records_are_forgotten_before_they_take_all_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remembered, "REMEMBERED_BYTES_MAX", 1_000)
    kept = Remembered()
    for number in range(1, 101):
        add(kept, number, f"id {number}", size=300)
        add(kept, number, f"id {number}", size=300)  # readable now
    held = [name for name in (f"id {n}" for n in range(1, 101)) if kept.of(name)]
    assert held == ["id 98", "id 99", "id 100"]
    assert kept.none_through == 97
    kept.begin(100)
    add(kept, 101, "another term's", size=900)
    assert kept.of("another term's")


def test_what_was_forgotten_stays_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "REMEMBERED_MAX", 2)
    kept = Remembered()
    add(kept, 1, "retried")
    add(kept, 2, "once")
    add(kept, 3, "retried")
    for number in range(4, 6):
        add(kept, number, f"id {number}")
    assert not kept.of("retried")
    assert kept.none_through == 3, "outcome 3 has to be looked up"
