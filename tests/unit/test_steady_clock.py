"""A clock that doesn't believe each jump of its machine's, and what is left alone for that."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from consumers.commands.exit_codes import ExitCode
from consumers.runtime.steady_clock import HELD_MS, JUMP_MS, SteadyClock, stop_when_set_back
from consumers.tools.clocks import clock_difference
from tests.service import service
from tests.waiting import wait_until

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


def test_a_process_that_is_started_again_after_a_jump_does_not_believe_it_either(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine, boot = Machine(), "first"

    def started() -> SteadyClock:
        return SteadyClock(
            lambda: machine.wall_ms,
            lambda: machine.uptime_ms,
            kept=tmp_path / "root" / "clock.json",
            boot=lambda: boot,
        )

    assert started().now_ms() == machine.wall_ms
    machine.goes_on(HOUR_MS, 3_650 * 24 * HOUR_MS)  # while nothing runs
    clock = started()
    assert clock.now_ms() == machine.wall_ms - 3_650 * 24 * HOUR_MS
    assert "jumped by +315,360,000 s" in caplog.text
    machine.goes_on(HELD_MS - 1)
    assert started().now_ms() == machine.wall_ms - 3_650 * 24 * HOUR_MS
    machine.goes_on(1)
    assert started().now_ms() == machine.wall_ms
    machine.goes_on(HOUR_MS, -3_650 * 24 * HOUR_MS)  # it was wrong, and is set right
    assert started().now_ms() == machine.wall_ms
    machine.goes_on(HOUR_MS, HOUR_MS)
    boot, machine.uptime_ms = "second", 0
    assert started().now_ms() == machine.wall_ms
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["clock.json"]
    boot = ""
    machine.goes_on(HOUR_MS, HOUR_MS)
    assert started().now_ms() == machine.wall_ms
    (tmp_path / "root" / "clock.json").write_text("[")
    boot = "second"
    assert started().now_ms() == machine.wall_ms


def test_a_clock_that_drifts_around_a_full_minute_is_not_written_again_and_again(
    tmp_path: Path,
) -> None:
    machine, kept = Machine(), tmp_path / "clock.json"
    machine.wall_ms = machine.uptime_ms + 1_000 * JUMP_MS
    clock = SteadyClock(lambda: machine.wall_ms, lambda: machine.uptime_ms, kept=kept)
    kept.unlink()
    for drift in (-1, 1, -1, 1):
        machine.goes_on(1_000, drift)
        assert clock.now_ms() == machine.wall_ms
    assert not kept.exists()


@pytest.mark.parametrize(
    ("jump_ms", "is_told"), [(-HOUR_MS, True), (-9_000, False), (HOUR_MS, False)]
)
def test_only_a_step_back_is_told(jump_ms: int, is_told: bool) -> None:
    machine, looks = Machine(), iter([0, jump_ms, 0])
    stop = Mock()

    def wait(pause: float) -> bool:
        jump = None if stop.set.called else next(looks, None)
        machine.goes_on(round(pause * 1000), jump or 0)
        return jump is None

    stop.wait = wait
    found = stop_when_set_back(stop, lambda: machine.wall_ms, lambda: machine.uptime_ms)
    wait_until(lambda: not any(one.name == "clock" for one in threading.enumerate()), "its end")
    assert (len(found), stop.set.called) == (is_told, is_told)


SET_BACK = """
import sys
import threading
import time
from pathlib import Path
from consumers.runtime import process, steady_clock
process.END_SECONDS, steady_clock.LOOK_SECONDS = 0.1, 0.01
def work(stop, on_ready):
    right = time.time_ns
    time.time_ns = lambda: right() - 3600 * 10**9
    (threading.Event() if sys.argv[2] == "hangs" else stop).wait()
process.run_part("index", Path(sys.argv[1]), work)
"""


@pytest.mark.parametrize("how", ["hangs", "returns"])
def test_a_part_whose_clock_is_set_back_ends_to_be_started_again(tmp_path: Path, how: str) -> None:
    """Kafka's library waits by that clock: an hour more for a broker that is away."""
    ended = subprocess.run([sys.executable, "-c", SET_BACK, str(tmp_path), how], check=False)
    assert "index ends: the clock was set back by 3,600 s" in (tmp_path / "index.log").read_text()
    assert ended.returncode == (ExitCode.UNAVAILABLE if how == "hangs" else 1)  # by a traceback


def test_a_leader_whose_machine_jumps_says_the_time_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nothing is removed for its age on this machine, where all have the same clock."""
    with service(tmp_path) as running:
        assert not clock_difference(running.client)
        right = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: right() + 24 * HOUR_MS * 1_000_000)
        assert "86,400 s ahead of" in clock_difference(running.client)
