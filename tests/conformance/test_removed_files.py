"""Whatever is done to tables, each version that stands reads as before once files were removed.

Steps are chosen at random. After every few of them all files go that nobody needs, without a grace
time, and plain pylance reads each standing version of each table in whole. `REMOVAL_SEED` and
`REMOVAL_STEPS` look for more.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import lance
import pyarrow as pa
import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.storage import LocalStore
from commitlog.client import upkeep as upkeep_module
from commitlog.core.tables.lance_tables import is_in
from commitlog.errors import CommitConflict, Unavailable
from consumers.tools import clocks as clocks_module
from consumers.tools.maintenance import removals as removals_module
from consumers.tools.maintenance.cleaning import clean
from consumers.tools.maintenance.maintenance import Maintenance
from consumers.tools.maintenance.maintenance_policy import Policies, parse_defaults
from consumers.tools.maintenance.removals import Removals
from consumers.tools.orphans import orphans as orphans_module
from consumers.tools.orphans.orphans import Leftovers
from consumers.tools.verify import VerifyOptions, verify
from tests.service import Service, ids_of, rows, service
from tests.waiting import wait_until

SEEDS = tuple(map(int, os.environ.get("REMOVAL_SEED", "1 2 3").split()))
STEPS = int(os.environ.get("REMOVAL_STEPS", "40"))
LOOK_EVERY = 5
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])


class History:
    """Tables, and what each of their versions read when it was made."""

    def __init__(self, world: Service, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.next_id = 0
        self.known: dict[tuple[str, int], Any] = {}
        self.names = ["t0"]
        self.dropped: list[str] = []
        self.make("t0")

    def make(self, name: str) -> None:
        """Create a table."""
        stable = self.chance.random() < 0.5
        self.world.client.create_table(name, SCHEMA, stable_row_ids=stable)
        self.append(name)

    def append(self, name: str) -> None:
        ids = range(self.next_id, self.next_id + self.chance.randint(1, 6))
        self.next_id = ids.stop
        self.world.client.append(name, rows(*ids))

    def delete(self, name: str) -> None:
        self.world.client.delete(name, f"id % 5 = {self.chance.randrange(5)}")

    def update(self, name: str) -> None:
        self.world.client.update(name, {"name": "'u'"}, f"id % 4 = {self.chance.randrange(4)}")

    def merge(self, name: str) -> None:
        source = rows(self.next_id, *range(0, self.next_id, 3))
        self.next_id += 1
        self.world.client.merge_insert(name, source, "id")

    def compact(self, name: str) -> None:
        self.world.client.compact(name)

    def native(self, name: str) -> None:
        lance.write_dataset(rows(self.next_id), self.world.client.open(name), mode="append")
        self.next_id += 1

    def overwrite(self, name: str) -> None:
        lance.write_dataset(rows(self.next_id), self.world.client.open(name), mode="overwrite")
        self.next_id += 1

    def index(self, name: str) -> None:
        self.world.client.create_index(name, "id", "BTREE", replace=True)

    def optimize(self, name: str) -> None:
        self.world.client.optimize(name)

    def tag(self, name: str) -> None:
        dataset = self.world.client.open(name)
        tags = list(dataset.tags.list())
        if tags and self.chance.random() < 0.5:
            dataset.tags.delete(self.chance.choice(tags))
        else:
            dataset.tags.create(f"v{self.chance.getrandbits(60)}", dataset.version)

    def expire(self, name: str) -> None:
        self.world.client.expire_versions(name, retain_versions=self.chance.randint(1, 4))

    def restore(self, name: str) -> None:
        info = self.world.client.table(name)
        standing = [v for v in range(2, info.version + 1) if not is_in(v, info.deleted)]
        operation = lance.LanceOperation.Restore(version=self.chance.choice(standing))
        self.world.client.submit(name, operation).result().raise_for_conflict()

    def refused(self, name: str) -> None:
        """Leave files behind that no version names."""
        lance.fragment.write_fragments(rows(1), str(self.world.location(name)))

    def clone(self, name: str) -> None:
        info = self.world.client.table(name)
        cloned = f"c{len(self.known)}-{self.next_id}"
        operation = lance.LanceOperation.Clone(True, None, info.version, info.location, None)
        self.world.client.submit(cloned, operation).result().raise_for_conflict()
        self.names.append(cloned)

    def drop(self, name: str) -> None:
        self.world.client.drop_table(name)
        self.names.remove(name)
        if self.chance.random() < 0.5:
            self.world.client.undrop(name)
            self.names.append(name)
        elif not self.names:
            self.names.append(f"t{self.next_id}")
            self.make(self.names[0])

    def note(self) -> None:
        """Read the newest versions as they are."""
        for name in self.names:
            info = self.world.client.table(name)
            key = (info.incarnation, info.version)
            if key not in self.known:
                self.known[key] = contents(self.world.client.open(name))

    def look(self) -> int:
        """Remove what nobody needs, and read all that stands; return how many files went."""
        removed: list[object] = []
        leftovers = Leftovers(self.world.log, 0)
        try:
            found = list(leftovers.find())
            leftovers.remove(found, self.world.client, on_removed=removed.append)
        finally:
            leftovers.close()
        for name in self.names:
            info = self.world.client.table(name)
            for version in range(1, info.version + 1):
                known = self.known.get((info.incarnation, version))
                if known is None or is_in(version, info.deleted):
                    continue
                dataset = lance.dataset(info.location, version=version)
                assert contents(dataset) == known, (name, version)
            for tag in lance.dataset(info.location).tags.list().values():
                lance.dataset(info.location, version=tag["version"]).to_table()
        return len(removed)


def contents(dataset: lance.LanceDataset) -> list[Any]:
    """Return all rows, and those that indices find."""
    found = dataset.to_table().to_pylist()
    ids = [row["id"] for row in found]
    by_index = dataset.to_table(filter="id >= 0")["id"].to_pylist()
    assert sorted(by_index) == sorted(ids)
    return sorted(found, key=str)


STEP_KINDS: tuple[Callable[[History, str], None], ...] = (
    *(History.append, History.append, History.delete, History.update, History.merge),
    *(History.compact, History.native, History.overwrite, History.index, History.optimize),
    *(History.tag, History.expire, History.expire, History.restore, History.refused),
    *(History.clone, History.drop),
)


@pytest.mark.parametrize("seed", SEEDS)
def test_standing_versions_read_as_before(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    removed, done = 0, []
    with service(tmp_path) as world:
        history = History(world, chance)
        for number in range(STEPS):
            history.note()
            step, name = chance.choice(STEP_KINDS), chance.choice(history.names)
            done.append(f"{step.__name__} {name}")
            try:
                step(history, name)
            except CommitConflict as error:
                done.append(f"  {error}")
            history.note()
            if number % LOOK_EVERY == LOOK_EVERY - 1:
                removed += history.look()
        verdict = verify(world.log, 0, VerifyOptions(root=world.root, contents=True))
        assert verdict.problems == [], f"seed {seed}: {done}"
    assert removed, f"seed {seed}: {done}"


def removals_of(made: Service, every_seconds: float) -> Removals:
    """Return what removes files of a service's tables as soon as nobody needs them."""
    return Removals(
        made.client,
        lambda: MemoryLog(made.cluster),
        Policies(made.client, parse_defaults(["remove-after-days=1e-9", "history-share=0"])),
        lambda act, result: None,
        every_seconds,
    )


def test_maintenance_rests_for_what_it_looked_and_not_for_what_it_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0

    def passing(seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        def later(*given: Any, **options: Any) -> Any:
            nonlocal now
            now += seconds
            return call(*given, **options)

        return later

    monkeypatch.setattr(Leftovers, "find", passing(2.0, Leftovers.find))
    monkeypatch.setattr(LocalStore, "delete", passing(10.0, LocalStore.delete))
    clock = SimpleNamespace(monotonic=lambda: now, time_ns=time.time_ns)
    monkeypatch.setattr(removals_module, "time", clock)
    with service(tmp_path / "root") as made:
        removals = removals_of(made, 60.0)
        made.client.create_table("t", SCHEMA)
        for number in range(3):
            made.client.append("t", rows(number))
        made.client.compact("t")
        made.client.expire_versions("t", retain_versions=1)
        [removed] = removals.look()
        assert removed.kind == "remove"
        assert now > 1050
        assert removals._at == now + removals_module.REST_FACTOR * 2.0
        now = removals._at
        assert removals.look() == []
        assert removals._at == now - 2.0 + 60.0, "so often it isn't asked"
        removals.close()


def test_maintenance_reads_the_log_once_and_forgets_files_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    begin = Leftovers.__init__

    def counted(leftovers: Leftovers, log: Any, partition: int) -> None:
        begun.append(partition)
        begin(leftovers, log, partition)

    monkeypatch.setattr(Leftovers, "__init__", counted)
    with service(tmp_path / "root") as made:
        removals = removals_of(made, 0.0)
        monkeypatch.setattr(removals_module, "REST_FACTOR", 0)
        made.client.create_table("t", SCHEMA)
        known: list[int] = []
        for number in range(5):
            for first in range(10):
                made.client.append("t", rows(100 * number + first))
            made.client.compact("t")
            made.client.expire_versions("t", retain_versions=1)
            kinds = [act.kind for act in removals.look()]
            assert kinds == ["remove"]
            for _ in range(2):
                assert removals.look() == []
            [leftovers] = removals._read()
            ledger = leftovers._ledger
            known.append(len(ledger.known_of(ledger.lives.values())))
        removals.close()
        assert begun == [0]
        assert known == known[:1] * 5
        found = lance.dataset(str(made.location("t"))).to_table()["id"].to_pylist()
        assert sorted(found) == [100 * n + i for n in range(5) for i in range(10)]
        verdict = verify(made.log, 0, VerifyOptions(root=made.root))
        assert verdict.problems == []


def test_a_table_whose_store_fails_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken: dict[str, str] = {}

    def failing(name: str) -> None:
        call = getattr(LocalStore, name)

        def maybe(store: LocalStore, *given: Any, **options: Any) -> Any:
            for table, method in broken.items():
                if name == method and f"/{table}-" in f"{store._root}-":
                    raise PermissionError(f"{table} may not be touched")
            return call(store, *given, **options)

        monkeypatch.setattr(LocalStore, name, maybe)

    monkeypatch.setattr(removals_module, "REST_FACTOR", 0)
    for name in ("files", "names", "delete"):
        failing(name)
    names = ("listed", "refs", "deleted", "good")
    with service(tmp_path / "root") as made:
        for table in names:
            made.client.create_table(table, SCHEMA)
            for number in range(5 if table == "good" else 2):
                made.client.append(table, rows(number))
            made.client.compact(table)
            made.client.expire_versions(table, retain_versions=1)
        broken |= {"listed": "files", "refs": "names", "deleted": "delete"}
        removals = removals_of(made, 0.0)
        acts = removals.look()
        assert [act.table for act in acts] == ["deleted", "good"]
        left = {table: len(list(made.location(table).glob("data/*"))) for table in names}
        assert left == {"listed": 3, "refs": 3, "deleted": 3, "good": 1}
        for table in names[:3]:
            assert f"{table} may not be touched" in caplog.text
        broken.clear()
        assert sorted(act.table for act in removals.look()) == sorted(names[:3])
        assert all(len(list(made.location(table).glob("data/*"))) == 1 for table in names)
        removals.close()
        verdict = verify(made.log, 0, VerifyOptions(root=made.root, contents=True))
        assert verdict.problems == []


def test_a_table_whose_store_hangs_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers, hangs = threading.Event(), list[str]()

    def hanging(name: str) -> None:
        call = getattr(LocalStore, name)

        def maybe(store: LocalStore, *given: Any, **options: Any) -> Any:
            if hangs and hangs[0] in store._root and threading.current_thread() in mine:
                assert answers.wait(60)
            return call(store, *given, **options)

        monkeypatch.setattr(LocalStore, name, maybe)

    class Mine:
        """The threads of this test's removal, not those of the service."""

        def __contains__(self, thread: object) -> bool:
            return thread is threading.main_thread() or "turn" in getattr(thread, "name", "")

    mine = Mine()
    for name in ("files", "names", "read", "prune", "delete"):
        hanging(name)
    monkeypatch.setattr(orphans_module, "LIST_SECONDS", 0.5)
    monkeypatch.setattr(removals_module, "REST_FACTOR", 0)
    with service(tmp_path / "root") as made:
        for table in ("hangs", "good"):
            made.client.create_table(table, SCHEMA)
            for number in range(3):
                made.client.append(table, rows(number))
            made.client.compact(table)
            made.client.expire_versions(table, retain_versions=1)
        removals = removals_of(made, 0.0)
        hangs.append("/hangs-")
        try:
            assert [act.table for act in removals.look()] == ["good"]
            assert "files of hangs were left for later: its turn takes longer" in caplog.text
            assert len(list(made.location("good").glob("data/*"))) == 1
            assert removals.look() == []
            assert "an earlier turn of it hasn't ended" in caplog.text
        finally:
            answers.set()
        wait_until(lambda: [act.table for act in removals.look()] == ["hangs"], "its own turn")
        assert len(list(made.location("hangs").glob("data/*"))) == 1
        removals.close()


def test_who_removes_files_by_hand_sees_how_many_are_gone(tmp_path: Path) -> None:
    with service(tmp_path / "root") as made:
        made.client.create_table("t", SCHEMA)
        for number in range(3):
            lance.fragment.write_fragments(rows(number), str(made.location("t")))
        told: list[tuple[str, int]] = []
        log = MemoryLog(made.cluster)
        clean(log, "t", 0, made.client, on_progress=lambda *said: told.append(said))
        assert [count for kind, count in told if kind == "files removed"] == [1, 2, 3]


@pytest.mark.parametrize("days", [21, -21])
def test_a_machine_whose_clock_is_turned_removes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    days: int,
) -> None:
    with service(tmp_path / "root") as made:
        expiring = {"commitlog.maintain.expire-days": "7"}
        made.client.create_table("t", SCHEMA, properties=expiring)
        for number in range(3):
            made.client.append("t", rows(number))
        under_way = lance.fragment.write_fragments(rows(9), str(made.location("t")))
        policies = Policies(made.client, {})
        removals = Removals(
            made.client, lambda: MemoryLog(made.cluster), policies, lambda act, result: None, 60.0
        )
        turned = days * 24 * 3600 * 10**9
        clock = SimpleNamespace(
            monotonic=time.monotonic, time=time.time, time_ns=lambda: time.time_ns() + turned
        )
        for module in (removals_module, clocks_module, upkeep_module):
            monkeypatch.setattr(module, "time", clock)
        assert removals.look() == []
        assert f"clock is {21 * 24 * 3600:,} s" in caplog.text
        maintenance = Maintenance(made.client)
        looks = Mock(wraps=maintenance._acts.due)
        monkeypatch.setattr(maintenance._acts, "due", looks)
        assert [maintenance.look(), maintenance.look()] == [[], []]
        assert looks.call_count == 2, "it looks again soon: the clock may be right by then"
        with pytest.raises(Unavailable, match="nothing was removed: this machine's clock is"):
            clean(MemoryLog(made.cluster), None, 3600, made.client)
        removals.close()
        made.client.submit("t", lance.LanceOperation.Append(under_way)).result()
        assert ids_of(made.client.open("t")) == [0, 1, 2, 9]
        assert made.client.table("t").deleted == ()
