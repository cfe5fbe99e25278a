"""Tables in object stores are written at once: one that is slow keeps no other one waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog.adapters.lance_refs import manifests_in
from commitlog.adapters.storage import LocalStore
from commitlog.core.decisions import Change, ChangeKind
from commitlog.model.records import Outcome, Status, Submitted, Transaction
from commitlog.model.table import Policy
from consumers.partition import materializer as module
from consumers.partition.files import table_writer
from consumers.partition.files.events import Event, Filed
from consumers.partition.files.table_files import TableFiles
from consumers.partition.materializer import Materializer
from tests.core_world import World, append
from tests.waiting import wait_until

WAIT_SECONDS = 180.0
PLACES = {"a": "s3://bucket/a", "b": "s3://bucket/b", "c": "s3://other/c"}
TABLES = tuple(PLACES)


class RemoteFolder(LocalStore):
    """A folder that passes for an object store, whose manifests wait for a word."""

    def __init__(self, root: Path, location: str) -> None:
        super().__init__(root / location.removeprefix("s3://"))
        self.location = location
        self.may_write = threading.Event()
        self.may_write.set()
        self.asked = threading.Event()
        self.failures = 0

    def create(self, path: str, data: bytes) -> bool:
        self.asked.set()
        assert self.may_write.wait(WAIT_SECONDS)
        if self.failures:
            self.failures -= 1
            raise OSError("the store is away")
        return super().create(path, data)


class Running:
    """A materializer over three tables in object stores, and what it told."""

    def __init__(self, root: Path, policy: Policy) -> None:
        self.stores: dict[str, RemoteFolder] = {}
        self.told: list[int] = []
        self.written: list[tuple[str, int]] = []
        self.news = threading.Condition()
        self.materializer = Materializer(self._tell, open_store=lambda at: self.stores[at])
        world = World()
        for name in TABLES:
            world.create(name, policy=policy)
            world.ask(f"id-{name}", append(1, f"{name}.lance", table=(name,)))
        self.changes: dict[str, list[Change]] = {name: [] for name in TABLES}
        for change in world.changes:
            location = PLACES[change.table[0]]
            self.changes[change.table[0]].append(replace(change, location=location))
            if location not in self.stores:
                self.stores[location] = RemoteFolder(root, location)
        self._sequence = 0
        self.materializer.start()

    def _tell(self, filed: Filed) -> None:
        with self.news:
            self.told += [event.outcome.sequence for event in filed.events]
            self.written += filed.versions
            self.news.notify_all()

    def put(self, *changes: Change) -> int:
        """Hand over what one outcome did; return its sequence."""
        self._sequence += 1
        number = self._sequence
        submitted = Submitted(0, number, 0, Transaction(f"id {number}", ()))
        outcome = Outcome(number, f"id {number}", number, Status.COMMITTED)
        self.materializer.put([Event(submitted, outcome, b"", changes, number)])
        return number

    def await_told(self, *sequences: int) -> None:
        """Wait until these, and no others, were told of."""
        with self.news:
            wanted = sorted(sequences)
            assert self.news.wait_for(lambda: sorted(self.told) == wanted, WAIT_SECONDS), self.told

    def store(self, name: str) -> RemoteFolder:
        """Return a table's store."""
        return self.stores[PLACES[name]]


@pytest.fixture(params=list(Policy))
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    made = Running(tmp_path, request.param)
    yield made
    for store in made.stores.values():
        store.may_write.set()
    made.materializer.close()


def test_a_store_that_hangs_holds_up_its_own_table_only(running: Running) -> None:
    running.store("a").may_write.clear()
    hanging = running.put(running.changes["a"][0])
    assert running.store("a").asked.wait(WAIT_SECONDS)
    others = [running.put(change) for name in "bc" for change in running.changes[name]]
    running.await_told(*others)
    later = running.put(running.changes["a"][1])
    running.store("a").may_write.set()
    running.await_told(hanging, *others, later)


def test_a_store_with_many_tables_that_hangs_takes_no_other_store_s_threads(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SIDE_BY_SIDE", 2)
    for name in "ab":
        running.store(name).may_write.clear()
    hanging = [running.put(running.changes[name][0]) for name in "ab"]
    assert all(running.store(name).asked.wait(WAIT_SECONDS) for name in "ab")
    other = [running.put(change) for change in running.changes["c"]]
    running.await_told(*other)
    for name in "ab":
        running.store(name).may_write.set()
    running.await_told(*hanging, *other)


def test_one_transaction_s_tables_are_written_at_once(running: Running) -> None:
    for name in TABLES:
        running.store(name).may_write.clear()
    sequence = running.put(*(running.changes[name][0] for name in TABLES))
    assert all(running.store(name).asked.wait(WAIT_SECONDS) for name in TABLES)
    for name in TABLES:
        assert not running.told
        running.store(name).may_write.set()
    running.await_told(sequence)


@pytest.mark.slow
def test_a_store_that_fails_is_tried_again(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.store("a").failures = 2
    sequences = [running.put(change) for name in TABLES for change in running.changes[name]]
    running.await_told(*sequences)
    assert not running.materializer.failing()
    assert caplog.text.count("but its manifest cannot be written") == 1
    assert "its manifests are written again, after " in caplog.text


def test_a_dropped_table_whose_store_is_gone_is_given_up(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.partition.files.table_files.RETRY_SECONDS", (0.0,))
    monkeypatch.setitem(table_writer.GIVEN_UP_AFTER, Policy.EVERY, 3)
    running.store("a").failures = 10**9
    first, second = running.changes["a"]
    sequences = [running.put(first)]
    assert running.store("a").asked.wait(WAIT_SECONDS)
    sequences.append(running.put(second))
    assert not running.told, "it exists, and its files are wanted"
    sequences.append(running.put(replace(second, kind=ChangeKind.DROPPED, delta=None)))
    running.await_told(*sequences)
    wait_until(lambda: not running.materializer.failing(), "nothing to fail")
    assert running.materializer.written_sequence == sequences[-1]


def test_the_newest_version_of_a_dropped_table_has_its_file_for_undrop(running: Running) -> None:
    running.store("a").failures = 1
    first, second = running.changes["a"]
    dropped = replace(second, kind=ChangeKind.DROPPED, delta=None)
    running.await_told(running.put(first, second, dropped))
    assert second.version in {version for version, _ in manifests_in(running.store("a"))}


def test_a_table_that_comes_back_before_its_end_was_seen_is_told_of_again(
    running: Running,
) -> None:
    """Its end has what was told before forgotten, so who waits for its file would wait in vain."""
    created, _ = running.changes["a"]
    dropped = replace(created, kind=ChangeKind.DROPPED, delta=None)
    told = [running.put(created)]
    running.await_told(*told)
    told.append(running.put(dropped, replace(created, kind=ChangeKind.REGISTERED)))
    running.await_told(*told)
    assert running.written == [(created.incarnation, created.version)] * 2


def test_what_is_queued_is_written_before_it_ends(running: Running) -> None:
    sequences = [running.put(change) for name in TABLES for change in running.changes[name]]
    running.materializer.close()
    running.await_told(*sequences)


def test_the_last_write_of_all_that_ends_is_followed_by_what_its_table_lacks(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.store("a").may_write.clear()
    sequences = [running.put(running.changes["a"][0])]
    assert running.store("a").asked.wait(WAIT_SECONDS)
    sequences.append(running.put(running.changes["a"][1]))

    def write_and_wait(*writing: Any, **options: Any) -> Any:
        running.store("a").may_write.set()
        return wait(*writing, **options)

    monkeypatch.setattr(module, "wait", write_and_wait)
    running.materializer.close(timeout_seconds=WAIT_SECONDS)
    assert running.told == sequences


def test_a_hanging_store_doesn_t_keep_the_end_waiting(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_SECONDS", 0.1)
    running.store("a").may_write.clear()
    running.put(running.changes["a"][0])
    assert running.store("a").asked.wait(WAIT_SECONDS)
    others = [running.put(change) for change in running.changes["b"]]
    running.await_told(*others)
    running.materializer.close(timeout_seconds=WAIT_SECONDS)
    assert sorted(running.told) == others


def test_changes_that_come_while_a_group_is_written_disturb_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(tmp_path, Policy.LATEST)
    first, second = running.changes["a"]
    third = replace(second, kind=ChangeKind.VERSIONS_DELETED, delta=None)
    begun, may_end = threading.Event(), threading.Event()

    def follow(_: object, files: TableFiles, changes: Sequence[Change]) -> None:
        if files is not running.materializer._by_incarnation.get(first.incarnation):
            return  # another test's, whose store hung until it ended
        begun.set()
        assert may_end.wait(WAIT_SECONDS)

    monkeypatch.setattr(table_writer, "follow_branch", follow)
    try:
        sequences = [running.put(first, second)]
        assert begun.wait(WAIT_SECONDS)
        sequences.append(running.put(third))
        files = running.materializer._by_incarnation[first.incarnation]
        wait_until(lambda: len(files.pending) == 3, "the third change to be known")
        may_end.set()
        running.await_told(*sequences)
    finally:
        may_end.set()
        running.materializer.close()


class Looked(Event):
    """An event that counts how often it is looked at."""

    looks = 0

    @property
    def unwritten(self) -> int:
        Looked.looks += 1
        return self._unwritten

    @unwritten.setter
    def unwritten(self, count: int) -> None:
        self._unwritten = count


def test_what_waits_for_a_store_is_not_looked_at_for_each_commit_of_others(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is away for an hour leaves a hundred thousand behind."""
    running.store("a").may_write.clear()
    creation, more = running.changes["a"]
    running.put(creation)
    assert running.store("a").asked.wait(WAIT_SECONDS)
    monkeypatch.setattr("tests.unit.test_materializer_side_by_side.Event", Looked)
    for _ in range(1_000):
        running.put(more)
    told: list[int] = []
    for name in "bc":
        for change in running.changes[name]:
            told.append(running.put(change))
            running.await_told(*told)
    assert Looked.looks < 100
    assert running.materializer.written_sequence == 0, "the oldest waits"
