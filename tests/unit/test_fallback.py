"""A client that reads the outcomes topic by itself, since no leader answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from commitlog.client.awaited import Awaited
from commitlog.client.fallback import Fallback
from commitlog.errors import CorruptLog
from commitlog.wire import Watch


def test_why_the_topic_cannot_be_followed_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried every second, for as long as an answer is awaited."""
    reasons = ["gone", "gone", "gone", "cut", "cut"]

    def genesis(partition: int) -> Any:
        raise CorruptLog(reasons.pop(0))

    log = SimpleNamespace(genesis=genesis)
    awaited = Awaited(Watch("an-id", 1, readable=True), deliver=print, fail=print, known=None)
    connection = SimpleNamespace(
        partition=0, is_connected=False, disconnected_since=0.0, outstanding=lambda: [awaited]
    )
    monkeypatch.setattr(Fallback, "_begin", lambda self: None)
    fallback = Fallback(
        cast(Any, log), cast(Any, connection), is_readable=lambda outcome: True, after_seconds=0.0
    )
    while reasons:
        assert fallback._step() == 1.0
    assert [message.rpartition(" ")[2] for message in caplog.messages] == ["gone", "cut"]
