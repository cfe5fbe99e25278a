"""Processes for work on rows: what takes one down costs that piece of work, and no other."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sized
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from commitlog.errors import Unavailable
from consumers.servers import row_processes
from consumers.servers.row_processes import ProcessSettings, RowProcesses, WorkLost
from tests.waiting import wait_until

GIGABYTE = 1024**3
_MINE = "tests.unit.test_row_processes:handler"


def handler(argument: Any) -> Callable[[Any], Any]:
    """Return what the children do here."""
    if argument == "broken":
        raise ValueError("it is broken")
    return _do


def _do(work: tuple[str, Any]) -> Any:
    what, value = work
    if what == "abort":
        os.abort()
    if what == "exit":
        os._exit(value)
    if what == "take":
        return len(bytearray(value))
    if what == "native":
        return _panic_of_lance()
    if what == "sleep":
        time.sleep(value)
    return os.getpid() if what == "pid" else value


def _panic_of_lance() -> Any:
    """Have Lance panic where nothing can catch it: a field whose name Arrow can't export."""
    import lance
    import pyarrow as pa

    schema = pa.schema([pa.field("a", pa.int64())])
    dataset = lance.write_dataset(pa.table({"a": [1]}, schema=schema), "memory://t")
    dataset.add_columns({"b\0c": "a + 1"})
    return dataset.to_table().num_rows


def has(several: Sized, count: int) -> bool:
    return len(several) >= count


@pytest.fixture
def processes() -> Iterator[RowProcesses]:
    made = RowProcesses(_MINE, "", ProcessSettings(3, GIGABYTE, wait_seconds=240))
    yield made
    made.close()


def test_a_child_that_is_ended_as_it_starts_is_gone_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, started = RowProcesses(_MINE, "", ProcessSettings(1, GIGABYTE)), []

    def popen(*arguments: Any, **options: Any) -> Any:
        process = subprocess.Popen(*arguments, **options)
        started.append(process)
        made.close()
        return process

    patched = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    monkeypatch.setattr(row_processes, "subprocess", patched)
    with pytest.raises(Unavailable, match="the server ends"):
        made.ask(("pid", None), 60)
    assert started[0].wait(60) is not None
    assert made.pids() == []


@pytest.mark.parametrize("when", ["starting", "at work"])
def test_a_child_that_is_ended_meanwhile_says_so(
    when: str, processes: RowProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = row_processes._received

    def closing(connection: Any, seconds: float) -> Any:
        processes.close()
        return original(connection, seconds)

    if when == "at work":
        processes.ask(("pid", None), 60)
    monkeypatch.setattr(row_processes, "_received", closing)
    with pytest.raises(Unavailable if when == "starting" else WorkLost):
        processes.ask(("pid", None), 60)


def test_a_child_answers_again_and_again(processes: RowProcesses) -> None:
    first = processes.ask(("pid", None), 60)
    assert first != os.getpid()
    assert processes.ask(("pid", None), 60) == first, "the one that was used last"
    assert processes.ask(("echo", b"x" * 50_000_000), 60) == b"x" * 50_000_000


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (("abort", None), "SIGABRT"),
        (("exit", 3), "exited with 3"),
        (("sleep", 600), "took over 1 s"),
    ],
)
def test_a_child_that_dies_costs_its_own_work_only(
    processes: RowProcesses, work: Any, reason: str
) -> None:
    before = processes.ask(("pid", None), 60)
    with pytest.raises(WorkLost, match=reason):
        processes.ask(work, 1 if work[0] == "sleep" else 60)
    after = processes.ask(("pid", None), 60)
    assert after != before
    assert before not in processes.pids()


def test_memory_is_bounded(processes: RowProcesses) -> None:
    with pytest.raises(WorkLost):
        processes.ask(("take", 4 * GIGABYTE), 60)
    assert processes.ask(("take", 1000), 60) == 1000


def test_others_go_on_beside_aborts_and_panics_of_lance(processes: RowProcesses) -> None:
    stop = threading.Event()
    answers: list[int] = []
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        while not stop.is_set():
            try:
                answers.append(processes.ask(("echo", number), 240))
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for what in ("abort", "native", "abort"):
        with pytest.raises(WorkLost, match="SIG"):
            processes.ask((what, None), 240)
        seen = len(answers)
        wait_until(partial(has, answers, seen + 20), "20 more answers", state=lambda: len(answers))
    stop.set()
    for thread in threads:
        thread.join(120)
    assert not wrong
    assert set(answers) == {0, 1, 2, 3}


def test_who_came_first_is_served_first(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = RowProcesses(_MINE, "", ProcessSettings(1, GIGABYTE, wait_seconds=240))
    served: list[int] = []
    child = processes._take(0)
    assert child is not None
    monkeypatch.setattr(child, "ask", lambda work, seconds: served.append(work))
    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=processes.ask, args=(number, 240)))
        threads[-1].start()
        wait_until(partial(has, processes._waiting, number + 1), f"number {number} in the queue")
    processes._give_back(child)
    for thread in threads:
        thread.join(240)
    assert served == [0, 1, 2, 3, 4]
    assert processes._take(0) is child
    assert processes._take(0.01) is None


def test_who_finds_none_free_is_told_to_come_again() -> None:
    processes = RowProcesses(_MINE, "", ProcessSettings(1, GIGABYTE, wait_seconds=0.1))
    processes.ask(("pid", None), 60)
    busy = threading.Thread(target=lambda: processes.ask(("sleep", 3), 60))
    busy.start()
    deadline = time.monotonic() + 60
    try:
        while True:
            assert time.monotonic() < deadline
            try:
                processes.ask(("echo", 1), 60)
            except Unavailable:
                break
    finally:
        busy.join(60)
        processes.close()


def test_a_child_that_cannot_start_says_why() -> None:
    processes = RowProcesses(_MINE, "broken", ProcessSettings(1, GIGABYTE))
    with pytest.raises(Unavailable, match="it is broken"):
        processes.ask(("pid", None), 60)


def test_children_end_with_their_parent(processes: RowProcesses) -> None:
    pid = processes.ask(("pid", None), 60)
    processes.close()
    assert processes.pids() == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
