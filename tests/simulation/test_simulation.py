"""Does the real program hold under crashes, zombies, lost answers and a bad store? By seeds."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.simulation.runner import FAULTS, SEEDS_FILE, Run, run_many, run_quietly, runs_of
from tests.simulation.scheduler import Process, Scheduler, SimulatedLock
from tests.simulation.world import TRANSACTIONS

REPEATED = (Run(1, 40), Run(6, 40), Run(11, 40), Run(33, 40))
"""A plain one, one with programs of two versions, one with maintenance and writers of rows, and one
with an archive."""


def test_a_row_of_seeds_is_written_with_a_dash() -> None:
    assert runs_of("# seeds\n\n7-8 25\n3 200 # failed once\n") == [
        Run(7, 25),
        Run(8, 25),
        Run(3, 200),
    ]


def test_what_waits_without_letting_others_run_comes_to_its_time() -> None:
    scheduler = Scheduler(seed=0)
    deadline = scheduler.clock() + 3.0
    while scheduler.clock() < deadline:
        pass
    assert scheduler.now >= deadline


def test_who_waits_for_a_lock_lets_its_holder_go_on() -> None:
    scheduler, process, said = Scheduler(seed=0), Process("p", is_spared=True), list[object]()
    lock = SimulatedLock(scheduler, process)

    def hold() -> None:
        with lock:
            scheduler.sleep(process, 1.0)
            said.append("held")
        scheduler.sleep(process, 1000.0)

    def wait() -> None:
        said.append(lock.acquire(timeout=0.1))
        said.append(lock.acquire())

    scheduler.add(process, "holds", hold)
    while not lock._is_held:
        scheduler.step()
    scheduler.add(process, "waits", wait)
    while len(said) < 3:
        scheduler.step()
    assert said == [False, "held", True]
    scheduler.stop()


def test_a_thread_that_another_test_left_doesnt_take_a_tasks_place() -> None:
    scheduler, process, said = Scheduler(seed=0), Process("p"), list[str]()
    scheduler.rates.preempt = 1.0

    def touch() -> None:
        try:
            scheduler.point(process, "touched by another thread")
        except RuntimeError as error:
            said.append(str(error))

    def act() -> None:
        thread = threading.Thread(target=touch)
        thread.start()
        thread.join()
        scheduler.point(process, "acts")
        said.append("acted")

    scheduler.add(process, "task", act)
    while len(said) < 2:
        scheduler.step()
    assert said == ["a simulated world is for the thread that made it", "acted"]
    assert ["touch" in stranger for stranger in scheduler.strangers] == [True]
    scheduler.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.flaky(reruns=0)  # a seed does the same at each try
def test_seeds_hold_and_every_fault_happens(report_line: Callable[[str], None]) -> None:
    runs = runs_of(SEEDS_FILE.read_text(encoding="utf-8"))
    total = run_many(runs, jobs=2)
    report_line("simulation: " + "\n  ".join(total.lines()))
    assert not total.problems
    assert total.seeds == len(runs)
    assert not [name for name in FAULTS if not total.counters[name]]
    long_runs = [run for run in runs if run.transactions >= TRANSACTIONS]
    assert len(total.faults_in_long_runs) == len(long_runs) > 0
    assert min(total.faults_in_long_runs) >= 3


@contextmanager
def drawing() -> Iterator[None]:
    """Draw ids in another thread, as a client does that connects again and again."""
    stop = threading.Event()

    def draw() -> None:
        while not stop.wait(0.001):
            uuid.uuid4()
            secrets.token_hex(8)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def elsewhere(hash_seed: str) -> Iterator[subprocess.Popen[str]]:
    """Make the runs in a process of its own, in which strings hash in another way."""
    code = (
        "from tests.simulation.runner import Run, run_quietly; import sys; "
        "print(*(run_quietly(Run(*map(int, a.split(',')))).trace for a in sys.argv[1:]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *(f"{r.seed},{r.transactions}" for r in REPEATED)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_seed_reproduces_its_run_to_the_byte() -> None:
    """In a process that hashes differently, after other seeds, and beside other threads."""
    with elsewhere("1") as other:
        here = [run_quietly(run).trace for run in REPEATED]
        with drawing():
            again = [run_quietly(run).trace for run in reversed(REPEATED)]
        assert again == here[::-1]
        assert len(set(here)) == len(REPEATED)
        assert other.communicate(timeout=200)[0].split() == here
