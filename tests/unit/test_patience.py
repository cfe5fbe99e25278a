"""A start that makes progress is waited for, however long it takes; one that is stuck isn't."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading

import pytest

from consumers.broker import embedded
from consumers.broker.readiness import wait_until_ready
from consumers.commands.parts import PAUSE_SECONDS_MAX, RESTARTS_MAX, Restarts
from consumers.runtime.patience import Patience, active_seconds
from tests.waiting import wait_until

DEADLINE_SECONDS = 60.0


class Watched:
    """A process and its news, and a clock."""

    def __init__(self) -> None:
        self.now, self.worked, self.news = 0.0, 0.0, "starting"
        self.patience = Patience(
            60.0,
            lambda: self.news,
            lambda: [1],
            clock=lambda: self.now,
            active=lambda pid: self.worked,
        )

    def wait(self, seconds: float, *, at_work: float) -> float:
        """Let time pass, of which the process works a share; return what is left at the end."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.worked += at_work
            left = self.patience.left
        return left


def test_who_works_is_waited_for() -> None:
    watched = Watched()
    assert watched.wait(3600, at_work=0.9) > 50


def test_who_has_news_is_waited_for() -> None:
    watched = Watched()
    for number in range(100):
        watched.news = f"{number} of 100 logs are loaded"
        assert watched.wait(50, at_work=0.0) > 0


def test_who_is_stuck_is_given_up() -> None:
    watched = Watched()
    assert watched.wait(40, at_work=0.02) == 20
    assert watched.wait(30, at_work=0.02) == 0


@pytest.mark.slow
def test_a_process_at_work_is_told_from_one_that_sleeps() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    idle = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        wait_until(lambda: active_seconds(busy.pid) > 0.2, "a fifth of a second of work")
        before, worked = active_seconds(idle.pid), active_seconds(busy.pid)
        wait_until(lambda: active_seconds(busy.pid) > worked + 0.2, "as much again")
        assert active_seconds(idle.pid) < before + 0.1
    finally:
        for process in (busy, idle):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_broker_is_waited_for_while_it_makes_progress() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    moving = threading.Event()
    moving.set()
    news = itertools.count()
    # Each look finds something new, however long nobody could look.
    patience = Patience(0.1, lambda: next(news) if moving.is_set() else -1, list)
    done = threading.Event()

    def wait() -> None:
        assert (
            wait_until_ready("127.0.0.1", port, patience=patience, has_ended=lambda: False) is None
        )
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not done.wait(0.7)
    moving.clear()
    assert done.wait(DEADLINE_SECONDS), "nothing moves any more, and it waits on"


def test_who_waits_for_others_is_started_again_for_ever() -> None:
    restarts = Restarts("index")
    pauses = [restarts.after_death(float(n), is_waiting=True) for n in range(10 * RESTARTS_MAX)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_SECONDS_MAX


def test_nobody_can_tell_of_a_process_that_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert active_seconds(child.pid) == 0.0
    assert active_seconds(os.getpid()) > 0.0


@pytest.mark.slow
def test_a_process_that_formats_is_waited_for_while_it_works_and_ended_when_it_is_stuck() -> None:
    news = itertools.count()
    script = "import time; print('said', flush=True); time.sleep({})"

    def run(seconds: float, patience: Patience) -> tuple[bytes, int | None]:
        command = [sys.executable, "-c", script.format(seconds)]
        return embedded._await_end(subprocess.Popen(command, stdout=subprocess.PIPE), patience)

    patient = Patience(0.1, lambda: next(news), list)
    assert run(0.7, patient) == (b"said\n", 0), "longer than its patience, with news"
    said, code = run(600.0, Patience(0.1, lambda: None, list))
    assert code is None
    assert said in (b"", b"said\n")
