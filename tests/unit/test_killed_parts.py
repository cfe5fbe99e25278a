"""Does a part that the system doesn't let go leave the others their time?"""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from tests.unit.test_up_parts import DEAF, Script
from tests.waiting import WAIT_SECONDS


def test_a_killed_part_that_a_busy_machine_keeps_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was called a bug, and the broker didn't stop in order."""
    part = Script(DEAF)
    part.start()
    running, waits = part._process, list[float]()
    assert running is not None

    def still_there(seconds: float) -> int:
        waits.append(seconds)
        raise subprocess.TimeoutExpired("part", seconds)

    with monkeypatch.context() as patched:
        patched.setattr(running, "wait", still_there)
        assert not part.end(time.monotonic())
    assert len(waits) == 2
    assert sum(waits) <= 1, "the broker needs the rest of the time"
    assert "is still there" in caplog.text
    assert part.pid is None
    assert running.wait(WAIT_SECONDS) == -signal.SIGKILL
