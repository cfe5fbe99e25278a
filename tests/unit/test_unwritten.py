"""A table whose store is behind gets no more, other tables do, and the memory is bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commitlog.core.decisions import Change, ChangeKind
from commitlog.model.operations import DropTable, LanceCommit
from commitlog.model.records import (
    LogRecord,
    OperationResult,
    Outcome,
    Status,
    Submitted,
    Transaction,
)
from consumers.partition.files.events import Event, Filing
from consumers.partition.files.unwritten import CHANGE_BYTES, MIB, Unwritten, UnwrittenMax
from tests.core_world import World, append

NAMES = ("a", "b", "c")


class Tables:
    """Three tables, and a committer's count of what waits for files."""

    def __init__(self, most: UnwrittenMax) -> None:
        world = World()
        for name in NAMES:
            world.create(name)
            world.ask(f"id-{name}", append(1, f"{name}.lance", table=(name,)))
        self.changes = {change.table[0]: change for change in world.changes}
        self.unwritten = Unwritten(world.machine.tables, most)

    def commit(self, *names: str, size: int = 0, times: int = 1) -> None:
        changes = tuple(replace(self.changes[name], message=bytes(size)) for name in names)
        for _ in range(times):
            self.unwritten.committed([event_of(*changes)])

    def file(self, name: str, *, times: int = 1) -> None:
        self.unwritten.filed([Filing(self.changes[name].incarnation, times)])

    def refused(self, *names: str) -> str:
        why = self.unwritten.why_not(transaction(*names))
        return str(why) if why is not None else ""


def event_of(*changes: Change) -> Event:
    submitted = Submitted(0, 1, 0, Transaction("id", ()))
    outcome = Outcome(1, "id", 1, Status.COMMITTED, 0)
    return Event(submitted, outcome, b"", changes)


def transaction(*names: str) -> LogRecord:
    return Transaction("id", tuple(append(1, "x.lance", table=(name,)) for name in names))


def test_a_table_at_its_limit_gets_no_more_until_its_files_follow() -> None:
    tables = Tables(UnwrittenMax(versions=3))
    tables.commit("a", times=2)
    assert not tables.refused("a")
    tables.commit("a")
    why = tables.unwritten.why_not(transaction("a"))
    assert why is not None
    assert why.table == "a"
    assert why.retry_after_seconds > 0
    for part in ("a has 3 committed versions", "0.0 MiB", "At most 3", "Repeat the call later"):
        assert part in str(why)
    assert tables.refused("b", "a"), "all of a transaction commits, or nothing"
    assert not tables.refused("b", "c"), "others are not concerned"
    assert tables.unwritten.status()["full_tables"] == ["a"]
    tables.file("a")
    assert not tables.refused("a")


def test_a_transaction_of_two_tables_counts_for_each_until_that_one_has_its_file() -> None:
    tables = Tables(UnwrittenMax(versions=3))
    for _ in range(3):
        tables.commit("a", "b")
        tables.file("b")
    assert tables.refused("a")
    assert not tables.refused("b")


def test_a_full_table_can_be_dropped() -> None:
    tables = Tables(UnwrittenMax(versions=1))
    tables.commit("a")
    assert tables.refused("a")
    assert tables.unwritten.why_not(Transaction("id", (DropTable(("a",)),))) is None


def test_with_too_much_in_all_those_with_more_than_their_share_get_no_more() -> None:
    tables = Tables(UnwrittenMax(mib=1))
    big = MIB // 9
    tables.commit("a", size=big, times=2)
    tables.commit("b", size=big)
    assert tables.refused("a"), "2/3 of what is too much"
    assert not tables.refused("b")
    assert not tables.refused("c"), "a table that has nothing there"
    assert "512" not in tables.refused("a")
    assert "may take 1 MiB" in tables.refused("a")
    tables.file("a")
    assert not tables.refused("a")


def test_the_end_of_a_namespace_is_readable_once_the_branches_in_it_have_ended() -> None:
    """A dropped branch leaves Lance's list of branches only when its files say so."""
    tables = Tables(UnwrittenMax())
    dropped = replace(tables.changes["b"], kind=ChangeKind.DROPPED, table=("n", "m", "b"))
    branch = replace(dropped, location=f"{dropped.location}/tree/dev")
    outcome = Outcome(1, "id", 1, Status.COMMITTED, 0)
    asked = {
        name: replace(outcome, results=(OperationResult(name, "", "DropNamespace"),))
        for name in (("n",), ("n", "m"), ("n", "m", "b"), ("m",))
    }
    for change, ends in ((dropped, []), (branch, [("n",), ("n", "m")])):
        tables.unwritten.committed([event_of(change)])
        assert [name for name in asked if tables.unwritten.ends(asked[name])] == ends
    tables.file("b", times=2)
    assert not any(map(tables.unwritten.ends, asked.values()))


@pytest.mark.parametrize("size", [0, 100_000])
def test_what_is_counted_is_given_back(size: int) -> None:
    tables = Tables(UnwrittenMax())
    for name in NAMES:
        tables.commit(name, size=size, times=5)
    found = tables.unwritten.status()
    assert found["unwritten_versions"] == 15
    assert found["unwritten_bytes"] >= 15 * (CHANGE_BYTES + size)
    assert tables.unwritten.tables() == list(NAMES)
    for name in NAMES:
        tables.file(name, times=5)
    assert tables.unwritten.status() == {
        "unwritten_versions": 0,
        "unwritten_bytes": 0,
        "full_tables": [],
    }
    assert isinstance(transaction("a").operations[0], LanceCommit)  # type: ignore[union-attr]
