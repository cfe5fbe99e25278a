"""Functions for `foreachBatch`, without Spark: how long a batch is tried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from commitlog.errors import RetryableConflict
from commitlog.model.records import Outcome, Status
from commitlog.spark import batches, each_batch

OPTIONS = {"kafka.bootstrap.servers": "h:1"}


class Conflicting:
    """A batch whose tables others change so many times first."""

    left = 0
    repeat = None

    def __init__(self, *_: object) -> None:
        """Take what a batch takes."""

    def commit(self, *_: object) -> None:
        """Commit, or lose to another writer."""
        Conflicting.left -= 1
        if Conflicting.left >= 0:
            raise RetryableConflict("others came first", Outcome(0, "", 0, Status.RETRYABLE))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Time that passes only while a batch waits."""
    clock = SimpleNamespace(now=0.0)
    sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)  # noqa: E731
    time = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(batches, "time", time)
    monkeypatch.setattr(batches, "Batch", Conflicting)
    return clock


def test_a_batch_is_tried_until_its_time_is_up(clock: Any) -> None:
    calls: list[object] = []
    run = each_batch(
        lambda batch, frame: calls.append(batch),
        {**OPTIONS, "txnAppId": "a", "timeoutSeconds": "3600"},
        connect=MagicMock(),
    )
    Conflicting.left = 1500
    run(MagicMock(), 0)
    assert len(calls) == 1501
    Conflicting.left = 10**6
    before = clock.now
    with pytest.raises(RetryableConflict):
        run(MagicMock(), 1)
    assert 3600 <= clock.now - before < 3602
