"""A clock that doesn't believe each jump of its machine's, and what is left alone for that."""

import time
from pathlib import Path

import pytest

from consumers.runtime.steady_clock import HELD_MS, JUMP_MS, SteadyClock
from consumers.tools.clocks import clock_difference
from tests.service import service

HOUR_MS = 3_600_000


class Machine:
    """A machine whose clock is set by hand."""

    def __init__(self) -> None:
        self.wall_ms, self.uptime_ms = 1_000 * HOUR_MS, 5 * HOUR_MS

    def goes_on(self, milliseconds: int, jump_ms: int = 0) -> None:
        self.wall_ms += milliseconds + jump_ms
        self.uptime_ms += milliseconds


@pytest.mark.parametrize("jump_ms", [24 * HOUR_MS, -2 * HOUR_MS])
def test_a_jump_is_believed_after_some_hours(jump_ms: int) -> None:
    machine = Machine()
    clock = SteadyClock(lambda: machine.wall_ms, lambda: machine.uptime_ms)
    machine.goes_on(HOUR_MS)
    assert clock.now_ms() == machine.wall_ms
    machine.goes_on(HOUR_MS, jump_ms)
    assert clock.now_ms() == machine.wall_ms - jump_ms
    machine.goes_on(HELD_MS - 1)
    assert clock.now_ms() == machine.wall_ms - jump_ms
    machine.goes_on(1)
    assert clock.now_ms() == machine.wall_ms


def test_a_clock_that_is_put_right_again_is_believed_at_once() -> None:
    machine = Machine()
    clock = SteadyClock(lambda: machine.wall_ms, lambda: machine.uptime_ms)
    machine.goes_on(HOUR_MS, 24 * HOUR_MS)
    assert clock.now_ms() == machine.wall_ms - 24 * HOUR_MS
    machine.goes_on(HOUR_MS, -24 * HOUR_MS)
    assert clock.now_ms() == machine.wall_ms
    machine.goes_on(HOUR_MS, JUMP_MS)  # as a clock is set every day
    assert clock.now_ms() == machine.wall_ms


def test_a_leader_whose_machine_jumps_says_the_time_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nothing is removed for its age on this machine, where all have the same clock."""
    with service(tmp_path) as running:
        assert not clock_difference(running.client)
        right = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: right() + 24 * HOUR_MS * 1_000_000)
        assert "86,400 s ahead of" in clock_difference(running.client)
