"""Are the files of all that was read looked at together, and what if that takes long?"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from commitlog.core.decisions import Decision, FileWanted, Found
from commitlog.model.records import Submitted
from consumers.partition import glances
from consumers.partition.deciding import Deciding
from consumers.partition.lanes import Job, Lanes
from consumers.partition.mailbox import Displaced
from consumers.partition.readable import Readable
from consumers.tools.bench.made_log import MadeLog, append_to, create, look

WAIT_SECONDS = 60.0
TABLES = ("t", "u")


class Looking:
    """A store that says of each file that it is there."""

    def __init__(self) -> None:
        self.looks: list[list[str]] = []
        self.fails = False

    def known(self, wanted: FileWanted) -> None:
        return None

    def look_all(self, wanted: Sequence[FileWanted]) -> list[Found | OSError]:
        self.looks.append([one.path for one in wanted])
        return [OSError("away") if self.fails else look(one) for one in wanted]

    def learn(self, *_: object) -> None:
        pass


def _raise(error: BaseException) -> None:
    raise error


class Term:
    """Transactions that were read and not decided, of two tables whose stores were quick."""

    def __init__(self) -> None:
        self.made = MadeLog()
        for table in TABLES:
            self.made.run(create(table))
        self.looking, self.decided = Looking(), list[int]()
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.lanes = Lanes("worker", self.jobs.put)
        self.outside: Callable[[Callable[[], Any]], Any] = lambda work: work()
        self.deciding = Deciding(
            self.made.machine,
            self.looking,  # type: ignore[arg-type]
            self.lanes,
            Readable(),
            undecided=(),
            outside=lambda work: self.outside(work),
            append=self.append,
            may_decide=lambda: True,
            fail=_raise,
            end_offset=lambda: 0,
            led_to=lambda: 0,
            clock=lambda: 1.0,
        )
        for table in TABLES:
            self.lanes.note(f"/tables/{table}", 0.0)
        self.read = [self.made.append(append_to(TABLES[n % 2], n)) for n in range(1, 6)]
        self.deciding.backlog.extend(self.read)

    def append(self, submitted: Submitted, decision: Decision) -> None:
        self.made.machine.apply(submitted, decision.outcome, changes=decision.changes)
        self.decided.append(submitted.offset)

    def is_quick(self) -> list[bool]:
        return [self.lanes.is_quick(f"/tables/{table}") for table in TABLES]

    def work(self) -> None:
        """Let workers look until everything is decided."""
        while len(self.decided) < len(self.read):
            self.deciding.step()
            self.deciding.flush_looks()
            if len(self.decided) < len(self.read):
                self.lanes.done(self.jobs.get(timeout=WAIT_SECONDS))
        self.lanes.close()


def test_a_group_s_files_are_looked_at_once_and_decided_in_their_order() -> None:
    term = Term()
    term.deciding.step()
    assert [len(paths) for paths in term.looking.looks] == [len(term.read)]
    assert term.decided == [one.offset for one in term.read]
    assert term.is_quick() == [True, True]


def test_many_are_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glances, "TOGETHER_MAX", 2)
    term = Term()
    term.deciding.step()
    assert [len(paths) for paths in term.looking.looks] == [2, 2, 1]
    assert term.decided == [one.offset for one in term.read]
    assert not term.deciding._glances._seen


def test_who_reads_one_record_looks_at_its_file_alone() -> None:
    term = Term()
    term.deciding.backlog.clear()
    term.deciding.backlog.append(term.read[0])
    term.deciding.step()
    assert (len(term.looking.looks), term.decided) == (1, [term.read[0].offset])


def test_a_group_s_look_that_hangs_loses_nothing_and_is_left_to_workers() -> None:
    term = Term()

    def hanging(work: Callable[[], Any]) -> Any:
        raise Displaced(work(), None)

    term.outside = hanging
    with pytest.raises(Displaced) as raised:
        term.deciding.step()
    raised.value.value()  # what it brought comes to nothing
    assert (term.decided, len(term.deciding.backlog)) == ([], len(term.read))
    assert term.is_quick() == [False, False], "whoever is the loop now doesn't hang, too"
    term.work()
    assert sorted(term.decided) == [one.offset for one in term.read]


def test_what_a_group_s_look_could_not_see_is_looked_at_again() -> None:
    term = Term()
    term.looking.fails = True
    term.deciding.step()
    term.looking.fails = False
    term.work()
    assert sorted(term.decided) == [one.offset for one in term.read]
