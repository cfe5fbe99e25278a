"""Maintenance under simulation: the product's own process, killed at any step.

What is due, when, and what is removed is decided by the product, through its own client. Only what
pylance does is done here: opening a version, planning which fragments are merged, rewriting them,
and tags.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from commitlog.client.leader.tables import TableInfo
from commitlog.client.log import CommitLog
from commitlog.client.rows.opening import Opened
from commitlog.client.upkeep import KeepsTables, Kept
from commitlog.codecs.avro import payload_hash
from commitlog.codecs.manifest_file import decode_manifest, manifest_name
from commitlog.errors import CommitLogError
from commitlog.lancepb.rowids_pb2 import RowIdSequence
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import REWRITES_CARRIED_SINCE
from commitlog.model.operations import (
    INCARNATION,
    AlterProperties,
    DeleteTableVersions,
    LanceCommit,
    Operation,
)
from commitlog.model.records import Transaction
from commitlog.model.table import format_table_id
from consumers.tools.maintenance.maintenance import Maintenance
from consumers.tools.orphans.orphans import Leftovers
from tests.simulation.clients import ClientsLog, SimulatedRuntime
from tests.simulation.disk import SimulatedStore
from tests.simulation.requests import FILE_BYTES
from tests.simulation.rows import Asked, Group, Intent, Place
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from commitlog.client.leader.tickets import Ticket
    from tests.simulation.world import World

MAINTAINED = frozenset({1, 3})
EVERY = 5
"""Of so many seeds those have maintenance: all with rows by the log are among them."""
PAUSE_SECONDS = (0.05, 0.3)
KILLED = 0.03
"""How often it dies at a step, per point."""
BOOTS_MAX = 6
"""A process that is started so often lives."""
REMOVALS_EVERY_SECONDS = 0.5
DAY_SECONDS = 24 * 3600
REST_DAYS = 8
"""Log time after which all that isn't needed is removed."""
OUTCOME_SECONDS = 10.0
FINISH_SECONDS = 120.0
ACTS = {
    "compact": "compaction beside writers",
    "expire": "versions expired",
    "thin": "manifests thinned",
    "remove": "unneeded files removed",
}
TRIES_MAX = 2
"""A compaction lands within so many tries, whatever others write."""


def is_maintained(seed: int) -> bool:
    """Say whether a seed has maintenance."""
    return seed % EVERY in MAINTAINED


def policy(chance: random.Random) -> tuple[tuple[str, str], ...]:
    """Return a table's policy, by which something is due after a few commits."""
    said = {
        "small-fragments": chance.choice((2, 3, 5)),
        "target-rows": chance.choice((20, 1000)),
        "deleted-share": chance.choice((0.1, 0.3)),
        "keep-manifests": chance.choice((2, 4)),
        "retain-versions": chance.choice((0, 2, 6)),
        "expire-days": chance.choice((0, 0, 0.5)),
        "history-versions": chance.choice((3, 256)),
        "history-share": chance.choice((0.5, 10)),
        "history-hours": chance.choice((0.0005, 1)),
        "remove-after-days": 7,
        "remove-expired-after-hours": chance.choice((0.001, 6)),
        "guard": chance.choice(("on", "on", "off")),
    }
    return tuple((f"commitlog.maintain.{name}", str(value)) for name, value in said.items())


class Maintainer:
    """A process that maintains tables, again after each death."""

    def __init__(self, world: World) -> None:
        """Start."""
        self._world = world
        # Its own chance: what it does must not say what all others do.
        self._random = random.Random(f"maintenance {world.seed}")
        self._boots = 0
        self._next_at = 0.0
        self._has_acted = False
        self._idle = 0
        """How often it looked without anything to do."""
        self.began_at = 0.0
        """When it began to look."""
        self.boot()

    def boot(self) -> None:
        """Start a process, which knows nothing."""
        world = self._world
        self._boots += 1
        self.process = Process(f"m{self._boots}")
        self._log = SimulatedCommitLog(self, world)
        self._maintenance = Maintenance(
            self._log,
            on_act=lambda act, result: self._note(act.kind, result),
            open_log=lambda: world.with_archive(ClientsLog(world, self.process)),
            removal_seconds=REMOVALS_EVERY_SECONDS,
        )
        world.scheduler.add(self.process, "maintenance", self._step)

    def finish(self) -> None:
        """Let so much time pass that all that isn't needed goes; it may die at that, too."""
        world, scheduler = self._world, self._world.scheduler
        world.clock_offset += REST_DAYS * DAY_SECONDS
        self._idle, deadline = 0, scheduler.now + FINISH_SECONDS
        while self._idle < 2:
            scheduler.step()
            world.auditor.expect(scheduler.now < deadline, "I22 maintenance comes to no end")

    def _note(self, kind: str, result: str) -> None:
        is_done = result != "nothing was left to do" and "left for later" not in result
        self._has_acted |= is_done
        self._world.count(ACTS[kind] if is_done else "maintenance: in vain")

    def _step(self) -> bool:
        world = self._world
        if world.scheduler.now < self._next_at:
            return False
        world.auditor.follow()
        self.began_at = world.scheduler.now
        assert world.auditor.standing is not None
        world.auditor.standing.began = world.auditor.machine.sequence
        world.auditor.standing.began_at = self.began_at
        try:
            self._has_acted = False
            self._maintenance.look()
            self._idle = 0 if self._has_acted else self._idle + 1
            world.count("maintenance: looked")
        except CommitLogError as error:
            self._idle = 0
            world.count(f"maintenance waits: {type(error).__name__}")
        self._next_at = world.scheduler.now + self._random.choice(PAUSE_SECONDS)
        return True

    def point(self, what: str) -> None:
        """Die here, perhaps."""
        world, process = self._world, self.process
        if process.is_alive and self._random.random() < KILLED and self._boots < BOOTS_MAX:
            world.count("maintenance killed")
            world.scheduler.kill(process, what)
        world.scheduler.point(process, what)

    def store(self, location: str) -> SimulatedStore:
        """Open a location for whoever's step it is."""
        world = self._world
        process = world.scheduler.running or world.auditor.process
        if process is self.process:
            self.point(f"open {location}")
        return SimulatedStore(world.objects, process, location)


class SimulatedCommitLog(CommitLog):
    """The client, whose runtime is stepped and which opens what is simulated."""

    def __init__(self, maintainer: Maintainer, world: World) -> None:
        """Connect as a process."""
        super().__init__(lambda: cast(Any, None))
        self.maintainer, self.world = maintainer, world
        self._runtime: Any = SimulatedRuntime(world, maintainer.process)
        self.opened: Any = SimulatedOpened(self)
        self._sources: dict[str, tuple[Place, ...]] = {}
        """Where the rows of data files that were written here came from, by their paths."""
        self._planned_on: dict[str, str] = {}
        """The incarnation whose rows they are."""

    def open(self, table_id: Any, version: int | None = None, **_: Any) -> Any:
        """Open a version."""
        info = self.table(table_id)
        return self.opened.plain(info, info.version if version is None else version)

    def compact(self, table_id: Any, **named: Any) -> Kept:
        """Compact, and count the tries that it took."""
        world, rules = self.world, self.world.auditor.machine.rules
        kept = super().compact(table_id, **named)
        if kept.outcome is not None:
            # A log that remembers few versions refuses whoever comes that many later; and who
            # deletes all rows that are compacted leaves nothing to land.
            excused = ("no longer remembered", "no_row_left")
            rivals = [one for one in kept.refusals if not any(why in one for why in excused)]
            tries = len(rivals) + 1
            world.count(f"compaction landed at try {tries}")
            is_carried = rules.protocol >= REWRITES_CARRIED_SINCE
            what = f"I22 a compaction took {tries} tries: {kept.refusals}"
            world.auditor.expect(tries <= TRIES_MAX or not is_carried, what)
        return kept

    def transaction(self, operations: tuple[Operation, ...], **named: Any) -> Transaction:
        """Make a transaction, and note what it is meant to do."""
        transaction = super().transaction(operations, **named)
        incarnation = dict(transaction.properties).get(INCARNATION, "")
        asked = Asked(tuple(self._meant(one, incarnation) for one in operations))
        self.world.auditor.meant[payload_hash(transaction)] = asked
        return transaction

    def submit(self, *given: Any, **named: Any) -> Ticket:
        """Submit, or die before or after."""
        self.maintainer.point("submit")
        ticket = super().submit(*given, **named)
        self.maintainer.point("submitted")
        return ticket

    def rewritten(self, path: str, location: str, places: tuple[Place, ...]) -> None:
        """Note where the rows of a data file came from."""
        self._sources[path] = places
        self._planned_on[path] = self.world.auditor.by_location[location]

    def _meant(self, operation: Operation, incarnation: str) -> Intent:
        if isinstance(operation, DeleteTableVersions):
            name = format_table_id(operation.table)
            return Intent(
                "expire",
                name,
                incarnation,
                ranges=operation.ranges,
                planned_at=self.maintainer.began_at,
            )
        if isinstance(operation, AlterProperties):
            return Intent("alter", format_table_id(operation.target))
        assert isinstance(operation, LanceCommit)
        message = LanceTransaction.FromString(operation.message)
        name, read = format_table_id(operation.table), message.read_version
        if message.HasField("reserve_fragments"):
            count = message.reserve_fragments.num_fragments
            return Intent("reserve", name, operation.incarnation, read, count=count)
        # The table may have been made again since: it means the one that it read.
        incarnation = operation.incarnation
        groups: list[Group] = []
        for group in message.rewrite.groups:
            new = ((one.id, self._sources[one.files[0].path]) for one in group.new_fragments)
            groups.append((tuple(old.id for old in group.old_fragments), tuple(new)))
            for one in group.new_fragments:
                incarnation = self._planned_on[one.files[0].path]
        return Intent("rewrite", name, incarnation, read, groups=tuple(groups))


class SimulatedOpened(Opened):
    """Versions, opened as far as maintenance asks of them."""

    def __init__(self, log: SimulatedCommitLog) -> None:
        """Open nothing yet."""
        super().__init__(log.runtime)
        self._log = log

    def plain(self, info: TableInfo, version: int) -> Any:
        """Open a version."""
        return self.alone(info, version)

    def read(self, location: str, version: int) -> Dataset:
        """Read a version's manifest."""
        store = self._log.maintainer.store(location)
        state, _ = decode_manifest(store.read(f"_versions/{manifest_name(version)}"))
        images = [
            DataFragment.FromString(encoded) for _, encoded in sorted(state.fragments.items())
        ]
        return Dataset(self._log, location, version, images)


@dataclass
class Dataset:
    """A version of a table."""

    log: SimulatedCommitLog
    location: str
    version: int
    images: list[DataFragment]

    @property
    def lance_schema(self) -> Any:
        """Its schema, which never changes here."""
        return _AnySchema()

    @property
    def tags(self) -> Tags:
        """What names versions."""
        return Tags(self.log.maintainer.store(self.location))

    def get_fragments(self) -> list[Any]:
        """Return its fragments."""
        return [SimpleNamespace(metadata=_Metadata(image)) for image in self.images]

    def describe_indices(self) -> list[Any]:
        """Return none."""
        return []


class _AnySchema:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class _Metadata:
    def __init__(self, image: DataFragment) -> None:
        self.physical_rows = image.physical_rows
        self.num_deletions = image.deletion_file.num_deleted_rows
        self.files = image.files


class Tags:
    """Tags as Lance keeps them, a file each."""

    def __init__(self, store: SimulatedStore) -> None:
        """Keep them in a store."""
        self._store = store

    def create(self, name: str, version: int) -> None:
        """Name a version."""
        said = {"branch": None, "version": version, "manifestSize": 0}
        self._store.write(f"_refs/tags/{name}.json", json.dumps(said).encode())

    update = create

    def delete(self, name: str) -> None:
        """Name it no more."""
        self._store.delete(f"_refs/tags/{name}.json")


@dataclass
class Task:
    """Adjacent fragments that are merged."""

    olds: list[DataFragment]
    limit: int

    def json(self) -> str:
        """Say which."""
        return json.dumps({"task": {"fragments": [{"id": old.id} for old in self.olds]}})

    def execute(self, dataset: Dataset) -> Result:
        """Write the rows that live, in their order, into new files."""
        log = dataset.log
        living: list[Place] = []
        for old in self.olds:
            log.maintainer.point("read a fragment")
            rows = log.world.auditor.living(dataset.location, old)
            living += [(old.id, offset) for offset in sorted(rows)]
        news = []
        for start in range(0, len(living), self.limit):
            places = tuple(living[start : start + self.limit])
            log.maintainer.point("write a fragment")
            news.append(self._write(dataset, places))
        return Result(self.olds, news)

    def _write(self, dataset: Dataset, places: tuple[Place, ...]) -> DataFragment:
        log = dataset.log
        path = f"{log.world.requests.uuid()}.lance"
        fragment = DataFragment(physical_rows=len(places))
        fragment.files.add().CopyFrom(self.olds[0].files[0])
        fragment.files[0].path = path
        ids = {old.id: _row_ids(old) for old in self.olds if old.inline_row_ids}
        if ids:
            kept = RowIdSequence()
            values = (ids[one][offset].to_bytes(8, "little") for one, offset in places)
            kept.segments.add().array.u64_array.values = b"".join(values)
            fragment.inline_row_ids = kept.SerializeToString()
        log.world.put_file(log.maintainer.process, dataset.location, f"data/{path}", FILE_BYTES)
        log.rewritten(path, dataset.location, places)
        return fragment


def _row_ids(fragment: DataFragment) -> list[int]:
    """Return the stable ids of a fragment's rows."""
    ids: list[int] = []
    for segment in RowIdSequence.FromString(fragment.inline_row_ids).segments:
        values = segment.array.u64_array.values
        ids += range(segment.range.start, segment.range.end)
        ids += (int.from_bytes(values[at : at + 8], "little") for at in range(0, len(values), 8))
    return ids


@dataclass
class Result:
    """Fragments, and those that take their place."""

    olds: list[DataFragment]
    news: list[DataFragment]

    def json(self) -> str:
        """Say how many there are."""
        return json.dumps({"new_fragments": [0 for _ in self.news]})


@dataclass
class Private:
    """A version on which a compaction commits without any other writer."""

    next_id: int
    message: LanceTransaction = field(default_factory=LanceTransaction)


class SimulatedCompaction:
    """Stands in for `lance.optimize.Compaction`."""

    @staticmethod
    def plan(dataset: Dataset, options: dict[str, Any]) -> Any:
        """Plan as pylance does: neighbours that are small, and what has many deleted rows."""
        limit = options["target_rows_per_fragment"]
        share = options.get("materialize_deletions_threshold", 0.1)
        with_deletions = options.get("materialize_deletions", True)
        tasks: list[Task] = []
        run: list[DataFragment] = []

        def end() -> None:
            if len(run) > 1 or any(is_worn(image) for image in run):
                tasks.append(Task(list(run), limit))
            run.clear()

        def is_worn(image: DataFragment) -> bool:
            deleted = image.deletion_file.num_deleted_rows
            return bool(with_deletions and deleted > share * image.physical_rows)

        for image in dataset.images:
            if image.physical_rows < limit or is_worn(image):
                run.append(image)
            else:
                end()
        end()
        return SimpleNamespace(tasks=tasks)

    @staticmethod
    def commit(private: Private, results: Sequence[Result]) -> Any:
        """Make the transaction of finished tasks."""
        for result in results:
            group = private.message.rewrite.groups.add(old_fragments=result.olds)
            for new in result.news:
                made = group.new_fragments.add()
                made.CopyFrom(new)
                made.id = private.next_id
                private.next_id += 1
        counts = {
            "fragments_removed": sum(len(result.olds) for result in results),
            "fragments_added": sum(len(result.news) for result in results),
        }
        return SimpleNamespace(**counts, files_removed=0, files_added=0)


def _captured(world: World) -> Any:
    def captured(
        location: str, version: int, path: str, work: Any, *, first_free_id: int = -1
    ) -> tuple[LanceTransaction, Any]:
        del location, path
        private = Private(first_free_id)
        private.message.read_version, private.message.uuid = version, world.requests.uuid()
        return private.message, work(private)

    return captured


class _Turn:
    """Gives each table its turn at once, on the same stack."""

    def __init__(self, seconds: float) -> None:
        del seconds

    def take(self, incarnation: str, work: Any) -> Any:
        del incarnation
        return work()


STORES = (
    "commitlog.adapters.lance_refs",
    "commitlog.adapters.lance_private",
    "consumers.tools.maintenance.table_acts",
    "consumers.tools.orphans.orphans",
    "consumers.tools.orphans.branch_files",
)


@contextmanager
def in_force(world: World, maintainer: Maintainer) -> Iterator[None]:
    """Let what Lance does for maintenance be done here, and clocks be the world's."""

    def nothing(*_: Any, **__: Any) -> Iterable[Any]:
        return []

    with ExitStack() as stack:

        def patch(target: str, new: Any) -> None:
            stack.enter_context(mock.patch(target, new))

        for module in STORES:
            patch(f"{module}.store_for", lambda location: maintainer.store(location))
        patch(
            "commitlog.client.rows.opening.open_dataset",
            lambda location, version, session: maintainer._log.opened.read(location, version),
        )
        patch("commitlog.client.rows.opening.Opened._session", None)
        patch("lance.optimize.Compaction", SimulatedCompaction)
        patch("commitlog.adapters.lance_private.captured", _captured(world))
        patch("commitlog.adapters.lance_private.as_read_privately", lambda _, results: results)
        patch("commitlog.client.commits.submission._local_root", lambda location: "")
        patch("commitlog.client.commits.submission._fragment_ids", lambda *_: None)
        patch("commitlog.client.log.new_transaction_id", world.requests.uuid)
        patch("commitlog.client.rows.lance_request.new_transaction_id", world.requests.uuid)
        patch("consumers.tools.orphans.orphans.Turns", _Turn)
        # Tables of the other format are not simulated.
        patch("consumers.tools.maintenance.removals.Removals._purge", nothing)
        patch("consumers.tools.maintenance.removals.Removals._due_of_iceberg", nothing)
        # A record that was lost is waited for in vain, for ten minutes otherwise.
        patch("consumers.tools.orphans.orphans.CATCH_UP_SECONDS", OUTCOME_SECONDS)
        defaults: tuple[tuple[Any, dict[str, Any]], ...] = (
            (KeepsTables.compact, {"timeout": OUTCOME_SECONDS}),
            (KeepsTables.expire_versions, {"timeout": OUTCOME_SECONDS}),
            (Leftovers.__init__, {"clock": lambda: world.now_ms() / 1000}),
        )
        for verb, given in defaults:
            stack.enter_context(mock.patch.dict(verb.__kwdefaults__, given))
        yield
