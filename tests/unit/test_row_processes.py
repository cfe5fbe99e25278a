"""Processes for work on rows: what takes one down costs that piece of work, and no other."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sized
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from pickle import PickleBuffer
from typing import Any
from unittest.mock import Mock

import pytest

from commitlog.errors import Unavailable
from consumers.runtime.forking import Forked, Template
from consumers.servers import row_processes
from consumers.servers.row_processes import ProcessSettings, RowProcesses, WorkLost
from tests.waiting import at_once, meanwhile, wait_until

GIGABYTE = 1024**3
_MINE = "tests.row_work:handler"


def has(several: Sized, count: int) -> bool:
    return len(several) >= count


def runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


class Asked:
    """Processes, asked from threads in an event loop of their own."""

    def __init__(
        self, count: int, argument: str = "", wait_seconds: float = 240, **more: Any
    ) -> None:
        settings = ProcessSettings(count, GIGABYTE, wait_seconds, **more)
        self.made = RowProcesses(_MINE, argument, settings)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def begin(self, work: Any, seconds: float = 60) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(self.made.ask(work, seconds), self.loop)

    def ask(self, work: Any, seconds: float = 60) -> Any:
        return self.begin(work, seconds).result(300)

    def close(self) -> None:
        self.made.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(60)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


@pytest.fixture
def asked() -> Iterator[Callable[..., Asked]]:
    made: list[Asked] = []

    def make(*arguments: Any, **more: Any) -> Asked:
        made.append(Asked(*arguments, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def processes(asked: Callable[..., Asked]) -> Asked:
    return asked(3)


def test_a_child_that_is_ended_as_it_starts_is_gone_and_says_so(
    asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, started, fork = asked(1), [], Template.fork

    def and_end(template: Template, *what: Any, **how: Any) -> Forked:
        started.append(fork(template, *what, **how))
        processes.made.close()
        return started[0]

    monkeypatch.setattr(Template, "fork", and_end)
    with pytest.raises(Unavailable, match="the server ends"):
        processes.ask(("pid", None))
    wait_until(lambda: not runs(started[0].pid), "it is gone")
    assert processes.made.pids() == []


def test_children_that_are_ended_at_work_say_so(processes: Asked) -> None:
    processes.ask(("pid", None))
    waiting = processes.begin(("sleep", 600), 240)
    assert processes.ask(("echo", 1)) == 1, "it began"
    processes.made.close()
    with pytest.raises(WorkLost, match="SIGKILL"):
        waiting.result(60)
    with pytest.raises(Unavailable, match="the server ends"):
        processes.ask(("echo", 1))


@pytest.mark.slow
def test_a_child_answers_again_and_again(processes: Asked) -> None:
    first = processes.ask(("pid", None))
    assert first != os.getpid()
    assert processes.ask(("pid", None)) == first, "the one that was used last"
    for size in (0, 1, 65_500, 65_536, 50_000_000):
        given = random.Random(size).randbytes(size)
        assert processes.ask(("echo", given)) == given
        found = processes.ask(("echo", PickleBuffer(given)))
        assert bytes(found) == given, "what goes beside the object"
    assert processes.ask(("pid", None)) == first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (("abort", None), "SIGABRT"),
        (("exit", 3), "exited with 3"),
        (("sleep", 600), "took over 1 s"),
    ],
)
def test_a_child_that_dies_costs_its_own_work_only(
    processes: Asked, work: Any, reason: str
) -> None:
    before = processes.ask(("pid", None))
    with pytest.raises(WorkLost, match=reason):
        processes.ask(work, 1 if work[0] == "sleep" else 60)
    after = processes.ask(("pid", None))
    assert after != before
    assert before not in processes.made.pids()


def test_an_answer_that_cannot_be_read_is_told_at_once(processes: Asked) -> None:
    """Who asked waited for as long as the work might have taken: an hour."""
    with pytest.raises(WorkLost, match="the process that did the work ended"):
        processes.ask(("unreadable", None), seconds=20)
    assert processes.ask(("say", 1)) == 1


def test_who_gives_up_leaves_no_answer_to_the_next(asked: Callable[..., Asked]) -> None:
    processes = asked(1)
    before = processes.ask(("pid", None))
    given_up = processes.begin(("sleep", 600), 240)
    wait_until(processes.made._free.empty, "its child is at work")
    given_up.cancel()
    assert processes.ask(("echo", 5)) == 5
    assert processes.ask(("pid", None)) != before, "nobody waits for what that one does"


def test_the_next_work_does_not_wait_for_a_child_that_died(asked: Callable[..., Asked]) -> None:
    processes = asked(1, spare=1)
    assert processes.made.count == 1
    for child in processes.made._children:  # one that nobody asked yet wouldn't run
        child.start()
    first = processes.ask(("pid", None))
    with pytest.raises(WorkLost):
        processes.ask(("abort", None))
    second = processes.ask(("pid", None))
    # Whichever was ready first; the one that died is started again without being asked.
    wait_until(lambda: has(processes.made.pids(), 2), "both children")
    alive = set(processes.made.pids())
    assert (first in alive, second in alive) == (False, True)
    with pytest.raises(WorkLost):
        processes.ask(("abort", None))
    third = processes.ask(("pid", None))
    wait_until(lambda: has(processes.made.pids(), 2), "both children again")
    dead = alive - set(processes.made.pids())
    assert (len(dead), third in dead) == (1, False)


def test_long_work_gets_less_of_the_processors(
    processes: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(row_processes, "YIELD_SECONDS", 0.1)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    pid = processes.ask(("pid", None))
    end = tmp_path / "end"
    long = processes.begin(("until", str(end)))
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, pid) > own or long.done(), "it yields")
    assert not long.done()
    end.touch()
    long.result(60)
    may_go_back = os.geteuid() == 0
    assert (os.getpriority(os.PRIO_PROCESS, pid) == own) is may_go_back
    assert processes.ask(("pid", None)) == pid


def test_a_child_starts_with_what_all_import(asked: Callable[..., Asked]) -> None:
    processes = asked(2, imports=(_MINE.partition(":")[0],))
    pid = processes.ask(("pid", None))
    template = processes.made._templates._template
    assert template is not None
    template._process.kill()
    wait_until(lambda: not template.is_running, "it has ended")
    assert processes.ask(("pid", None)) == pid, "its children go on without it"
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(one.is_ready for one in processes.made._children), "it is seen")
    assert processes.ask(("echo", 1)) == 1, "from another template"
    assert template is not processes.made._templates._template


@pytest.mark.slow
def test_a_fork_beside_lance_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Lance warns whoever forks, which a user would take for a fault of the service."""
    template = Template(("lance",))
    child = template.fork("time:sleep", 600, inherited=(), shown=())
    child.kill()
    child.wait(60)
    template.close()
    assert "fork-safe" not in capfd.readouterr().err


def test_a_child_that_died_at_rest_is_not_asked(asked: Callable[..., Asked]) -> None:
    processes = asked(1)
    pid = processes.ask(("pid", None))
    [child] = processes.made._children
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: child._channel is None or child._channel.is_over, "its connection ends")
    assert processes.ask(("pid", None)) != pid


def test_memory_is_bounded(processes: Asked) -> None:
    with pytest.raises(WorkLost):
        processes.ask(("take", 4 * GIGABYTE))
    assert processes.ask(("take", 1000)) == 1000


@pytest.mark.slow
def test_others_go_on_beside_aborts_and_panics_of_lance(processes: Asked) -> None:
    stop = threading.Event()
    answers: list[int] = []
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        while not stop.is_set():
            try:
                answers.append(processes.ask(("echo", number), 240))
            except Exception as error:
                wrong.append(error)

    with meanwhile(lambda _: at_once(work, range(4)), stop):
        for what in ("abort", "native", "abort"):
            with pytest.raises(WorkLost, match="SIG"):
                processes.ask((what, None), 240)
            more = partial(has, answers, len(answers) + 20)
            wait_until(more, "20 more answers", state=lambda: len(answers))
    assert not wrong
    assert set(answers) == {0, 1, 2, 3}


def test_who_came_first_is_served_first(asked: Callable[..., Asked], tmp_path: Path) -> None:
    processes = asked(1)
    processes.ask(("pid", None))
    served: list[int] = []
    end = tmp_path / "end"
    waiting = [processes.begin(("until", str(end)))]
    for number in range(5):
        waiting.append(processes.begin(("echo", number)))
        waiting[-1].add_done_callback(lambda done: served.append(done.result()))
    end.touch()
    for one in waiting:
        one.result(240)
    wait_until(partial(has, served, 5), "all are served")
    assert served == [0, 1, 2, 3, 4]


def test_who_finds_none_free_is_told_to_come_again(asked: Callable[..., Asked]) -> None:
    processes = asked(1, wait_seconds=0.1)
    processes.ask(("pid", None))
    busy = processes.begin(("sleep", 600), 240)
    with pytest.raises(Unavailable, match="in a while"):
        processes.ask(("echo", 1))
    busy.cancel()


def test_a_child_that_cannot_start_says_why(asked: Callable[..., Asked]) -> None:
    with pytest.raises(Unavailable, match="it is broken"):
        asked(1, "broken").ask(("pid", None))


def test_a_child_without_files_left_for_it_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    processes = RowProcesses(_MINE, "", ProcessSettings(1, GIGABYTE, 240))
    none_left = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    monkeypatch.setattr("socket.socketpair", Mock(side_effect=none_left))
    processes._warm()
    assert caplog.messages[0].endswith("Too many open files")
    processes.close()


def test_children_end_with_their_parent(processes: Asked) -> None:
    pid = processes.ask(("pid", None))
    processes.made.close()
    assert processes.made.pids() == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
