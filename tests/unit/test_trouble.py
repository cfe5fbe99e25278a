"""What fails again and again is said ever more rarely, and once more when it is over."""

from __future__ import annotations

import errno
import os

import pytest

from consumers.partition.files.trouble import Trouble


def test_a_trouble_of_a_day_takes_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    error, told_at, day = OSError(errno.EROFS, os.strerror(errno.EROFS), "/t"), [], 24 * 3600
    trouble = Trouble(100.0)
    for now in range(100, 100 + day, 5):
        trouble.failed("t waits", error, float(now), 5.0)
        if caplog.messages:
            told_at.append((now - 100, caplog.messages[-1]))
            caplog.clear()
    first, second = told_at[0], told_at[1]
    assert first[1] == f"t waits ({error}: mount it for writing); trying again in 5.00 s"
    assert second == (5, first[1].replace(";", ", for 5 s so far;"))
    assert [at for at, _ in told_at[:8]] == [0, 5, 15, 35, 75, 155, 315, 615]
    assert len(told_at) < 300
    trouble.over("t waits no more", 100.0 + day)
    assert caplog.messages == [f"t waits no more, after {day} s"]
