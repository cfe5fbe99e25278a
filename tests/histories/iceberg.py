"""Random histories of concurrent Iceberg commits, with the Java library as the judge of each.

`python -m tests.histories.iceberg --seconds 1800` runs them over a service of its own. A history is
one table in two catalogues, ours and Iceberg's in memory. In each step a client is late: others
commit while its request is on the way. Then the library itself decides: its retry reads the table
again and validates, at the isolation level of the table. What ours accepts at once, the library
must accept in the end, and the same files must live in both tables; an append is accepted at once.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.histories.iceberg_java import COMMITTED, JavaIceberg, Refused, java_iceberg, why

STEPS = 6
CATALOGS = ("ours", "theirs")
_PARTS = ("a", "b")
_LATE = (
    *("append", "append", "merge", "two appends", "insert", "overwrite", "overwrite", "delete"),
    *("rows", "rows", "equality", "compact", "compact", "partitions", "pick", "where", "stage"),
)
_OTHERS = (
    *("append", "append", "append", "merge", "insert", "overwrite", "delete", "rows", "equality"),
    *("compact", "partitions", "pick", "where", "expire", "properties", "branch", "rollback"),
    *("column", "spec", "upgrade"),
)
_APPENDS = frozenset({"append", "merge", "two appends"})
_TOTALS = ("total-records", "total-data-files", "total-delete-files", "total-files-size")
_MOVES_SHAPE = frozenset({"column", "spec", "upgrade"})
_CONDITIONAL = frozenset({"insert"})
"""Commits that the format calls appends, though their client validates more: see the policy."""


@dataclass(frozen=True, slots=True)
class Act:
    """What a client does; files by their names, so that it is the same in both catalogues."""

    kind: str
    adds: tuple[tuple[str, str], ...] = ()
    """Names of new files, each with its partition."""
    on: tuple[str, ...] = ()
    """Names of the files that it removes, rewrites or deletes rows of."""
    part: str = ""

    def __str__(self) -> str:
        names = [*(f"+{name}:{part}" for name, part in self.adds), *(f"-{o}" for o in self.on)]
        return " ".join([self.kind, *names, self.part]).rstrip()


@dataclass(slots=True)
class Tally:
    """What was tried."""

    accepted: Counter[str] = field(default_factory=Counter)
    """At once, though late."""
    retried: Counter[str] = field(default_factory=Counter)
    """Refused by ours at first, committed by the library's retry."""
    refused: Counter[str] = field(default_factory=Counter)
    """By both."""
    histories: int = 0

    def __str__(self) -> str:
        shown = (
            f"{name} {dict(sorted(counter.items()))}"
            for name, counter in (
                ("accepted", self.accepted),
                ("retried", self.retried),
                ("refused", self.refused),
            )
        )
        return f"{self.histories} histories; late commits: {'; '.join(shown)}"


class Twin:
    """A table in both catalogues."""

    def __init__(self, java: JavaIceberg, name: str, choose: random.Random) -> None:
        """Make it, with a random format, isolation level and policy."""
        self.java = java
        self.name = name
        self.choose = choose
        self.version = choose.choice((1, 2, 2, 3))
        self.isolation = choose.choice(("snapshot", "snapshot", "serializable", ""))
        self.policy = choose.choice(("append", "append", "append", "serializable"))
        self.files = 0
        self.staged: dict[str, list[int]] = {catalog: [] for catalog in CATALOGS}
        self.told: list[str] = [f"v{self.version} {self.isolation!r} {self.policy}"]
        properties = {
            "format-version": str(self.version),
            "commit.retry.min-wait-ms": "1",
            "commit.manifest.min-count-to-merge": choose.choice(("2", "100")),
            "commitlog.iceberg.rebase": self.policy,
        }
        if self.isolation:
            for kind in ("delete", "update", "merge"):
                properties[f"write.{kind}.isolation-level"] = self.isolation
        for catalog in CATALOGS:
            java.create(catalog, name, properties)

    def live(self, catalog: str) -> dict[str, tuple[str, ...]]:
        """Return the files that a reader is told of, each with its delete files."""
        tasks = self.java.tasks(self.java.table(catalog, self.name))
        return {_name(task.file()): tuple(sorted(map(_name, task.deletes()))) for task in tasks}

    def totals(self, catalog: str) -> dict[str, str | None]:
        snapshot = self.java.table(catalog, self.name).currentSnapshot()
        if snapshot is None:
            return {}
        summary = dict(snapshot.summary())
        return {total: summary.get(total) for total in _TOTALS}

    def new(self, part: str | None = None) -> tuple[str, str]:
        """Name a new file."""
        self.files += 1
        return f"f{self.files}", part or self.choose.choice(_PARTS)

    def act(self, kinds: Sequence[str]) -> Act:
        """Choose what a client does to the table as it is now."""
        choose, live = self.choose, sorted(self.live("theirs"))
        kind = choose.choice(kinds)
        if kind in ("rows", "equality") and self.version == 1:
            kind = "overwrite"
        if kind == "pick" and not self.staged["ours"]:
            kind = "merge"
        if kind in ("overwrite", "delete", "rows", "compact") and not live:
            kind = "append"
        some = choose.sample(live, k=min(len(live), choose.randint(1, 2)))
        part = choose.choice(_PARTS)
        match kind:
            case "append" | "merge" | "insert" | "stage":
                return Act(kind, (self.new(),), part=part)
            case "two appends":
                return Act(kind, (self.new(), self.new()))
            case "overwrite":
                return Act(kind, (self.new(),), tuple(some), part)
            case "delete":
                return Act(kind, (), tuple(some))
            case "rows":
                adds = (self.new(),) if choose.random() < 0.5 else ()
                return Act(kind, (self.new(), *adds), (some[0],), part)
            case "equality":
                return Act(kind, (self.new(part),), part=part)
            case "compact":
                return Act(kind, (self.new(),), tuple(some))
            case "partitions":
                return Act(kind, (self.new(part),), part=part)
            case "pick":
                return Act(kind, part=str(choose.randrange(len(self.staged["ours"]))))
        return Act(kind, part=part)

    def stage(self) -> None:
        """Stage an append, for somebody to pick."""
        act = Act("append", (self.new(),))
        for catalog in CATALOGS:
            table = self.java.table(catalog, self.name)
            before = {s.snapshotId() for s in table.snapshots()}
            table.newAppend().appendFile(self._file(table, act.adds[0])).stageOnly().commit()
            table.refresh()
            (made,) = {s.snapshotId() for s in table.snapshots()} - before
            self.staged[catalog].append(made)

    def commit(self, catalog: str, table: Any, act: Act) -> None:
        """Do it as its client does, from the snapshot that the table has now."""
        base = table.currentSnapshot()
        files = [self._file(table, add) for add in act.adds]
        old = {_name(task.file()): task for task in self.java.tasks(table)}
        gone = [old[name] for name in act.on]
        match act.kind:
            case "append":
                table.newFastAppend().appendFile(files[0]).commit()
            case "merge":
                table.newAppend().appendFile(files[0]).commit()
            case "stage":
                table.newFastAppend().appendFile(files[0]).stageOnly().commit()
            case "two appends":
                both = table.newTransaction()
                for one in files:
                    both.newAppend().appendFile(one).commit()
                both.commitTransaction()
            case "insert" | "overwrite":
                change = table.newOverwrite()
                for one in files:
                    change.addFile(one)
                for task in gone:
                    change.deleteFile(task.file())
                change.conflictDetectionFilter(self._where(act.part))
                self._validated(change, base, "validateNoConflictingData", "Deletes").commit()
            case "where":
                change = table.newOverwrite().overwriteByRowFilter(self._where(act.part))
                self._validated(change, base, "validateNoConflictingData", "Deletes").commit()
            case "delete":
                change = table.newDelete()
                for task in gone:
                    change.deleteFile(task.file())
                change.commit()
            case "rows" | "equality":
                self._row_delta(table, act, gone, base)
            case "compact":
                change = table.newRewrite().validateFromSnapshot(base.snapshotId())
                for task in gone:
                    change.deleteFile(task.file())
                change.addFile(files[0]).dataSequenceNumber(base.sequenceNumber()).commit()
            case "partitions":
                change = table.newReplacePartitions().addFile(files[0])
                self._validated(change, base, "validateNoConflictingData", "Deletes").commit()
            case "pick":
                picked = self.staged[catalog][int(act.part)]
                table.manageSnapshots().cherrypick(picked).commit()
            case _:
                self._upkeep(table, act)

    def _upkeep(self, table: Any, act: Act) -> None:
        base = table.currentSnapshot()
        match act.kind:
            case "expire":
                expiry = table.expireSnapshots().cleanExpiredFiles(False).retainLast(1)  # noqa: FBT003
                expiry.expireOlderThan(2**62).commit()
            case "properties":
                table.updateProperties().set("said", act.part).commit()
            case "branch":
                if base is not None and "side" not in dict(table.refs()):
                    table.manageSnapshots().createBranch("side", base.snapshotId()).commit()
            case "rollback":
                if base is not None and table.snapshot(base.parentId() or -1) is not None:
                    table.manageSnapshots().rollbackTo(base.parentId()).commit()
            case "column":
                name = f"c{self.files}"
                if table.schema().findField(name) is None:
                    column = self.java.api.types.Types.IntegerType.get()
                    table.updateSchema().addColumn(name, column).commit()
            case "spec":
                if len(table.spec().fields()) == 1:
                    table.updateSpec().addField("id").commit()
            case "upgrade":
                version = str(min(3, self.java.api.TableUtil.formatVersion(table) + 1))
                table.updateProperties().set("format-version", version).commit()
            case _:
                raise AssertionError(act.kind)

    def _row_delta(self, table: Any, act: Act, gone: Sequence[Any], base: Any) -> None:
        api, (name, part) = self.java.api, act.adds[0]
        spec = gone[0].spec() if gone else table.spec()
        builder = api.FileMetadata.deleteFileBuilder(spec)
        builder.withPath(f"/data/{name}.parquet").withFileSizeInBytes(10).withRecordCount(1)
        builder.withFormat("PARQUET")
        change = table.newRowDelta()
        if act.kind == "equality":
            ids = self.java.array(self.java.java.int, [1])
            builder.ofEqualityDeletes(ids).withPartitionPath(_partition(spec, part))
        else:
            data = gone[0].file()
            builder.ofPositionDeletes().withPartition(data.partition())
            if api.TableUtil.formatVersion(table) > 2:
                builder.withFormat("PUFFIN").withContentOffset(4).withContentSizeInBytes(6)
                builder.withReferencedDataFile(data.location())
                for delete in gone[0].deletes():
                    if str(delete.content()) == "POSITION_DELETES":
                        change.removeDeletes(delete)
            change.validateDataFilesExist([data.location()]).validateDeletedFiles()
        change.addDeletes(builder.build())
        for one in act.adds[1:]:
            change.addRows(self._file(table, one))
        change.conflictDetectionFilter(self._where(act.part))
        self._validated(change, base, "validateNoConflictingDataFiles", "DeleteFiles").commit()

    def _validated(self, change: Any, base: Any, data: str, deletes: str) -> Any:
        """Ask for what the table's isolation level asks for: `serializable` by default."""
        if base is not None:
            change.validateFromSnapshot(base.snapshotId())
        getattr(change, f"validateNoConflicting{deletes}")()
        return change if self.isolation == "snapshot" else getattr(change, data)()

    def _where(self, part: str) -> Any:
        return self.java.api.expressions.Expressions.equal("p", part)

    def _file(self, table: Any, add: tuple[str, str]) -> Any:
        name, part = add
        builder = self.java.api.DataFiles.builder(table.spec())
        builder.withPath(f"/data/{name}.parquet").withFileSizeInBytes(10).withRecordCount(3)
        return builder.withPartitionPath(_partition(table.spec(), part)).build()


def _partition(spec: Any, part: str) -> str:
    """Return a partition's path; a spec of two fields has the id, too."""
    return f"p={part}" if len(spec.fields()) == 1 else f"p={part}/id=7"


def _name(file: Any) -> str:
    return Path(str(file.location())).stem


def live(java: JavaIceberg, seed: int, tally: Tally) -> None:
    """Live through the history of a seed; raise AssertionError if the judge disagrees."""
    choose = random.Random(seed)
    twin = Twin(java, f"t{seed}-{time.time_ns()}", choose)
    tally.histories += 1
    for _ in range(choose.randint(1, 4)):
        _everywhere(twin, twin.act(("append", "append", "rows")))
    if choose.random() < 0.5:
        twin.stage()
    for _ in range(STEPS):
        if not _step(twin, tally):
            return


def _everywhere(twin: Twin, act: Act) -> str:
    """Do it in both catalogues, with nobody beside; return what came of it."""
    ends = {}
    for catalog in CATALOGS:
        try:
            twin.commit(catalog, twin.java.table(catalog, twin.name), act)
            ends[catalog] = COMMITTED
        except Refused as error:
            ends[catalog] = why(error)
    assert ends["ours"] == ends["theirs"], (twin.told, str(act), ends)
    return ends["ours"]


def _step(twin: Twin, tally: Tally) -> bool:
    """Let one client be late; return False if the two tables can't be compared any further."""
    late = twin.act(_LATE)
    others: list[Act] = []
    chosen = [twin.choose.choice(_OTHERS) for _ in range(twin.choose.randint(1, 3))]
    ends: dict[str, str] = {}
    first = ""
    if late.kind == "pick" and twin.choose.random() < 0.5:
        chosen[0] = "pick"
    twin.told.append(f"LATE {late}")
    for catalog in reversed(CATALOGS):

        def meanwhile(catalog: str = catalog) -> None:
            for number, kind in enumerate(chosen):
                if catalog == "theirs":
                    others.append(twin.act((kind,)))
                try:
                    twin.commit(catalog, twin.java.table(catalog, twin.name), others[number])
                except Refused as error:
                    ends.setdefault(f"{number} in {catalog}", why(error))

        table, operations = twin.java.late(catalog, twin.name, meanwhile)
        try:
            twin.commit(catalog, table, late)
            ends[catalog] = COMMITTED
        except Refused as error:
            ends[catalog] = why(error)
        first = operations.first
    told = [*twin.told, "over", *map(str, others), ends, f"first {first}"]
    twin.told.extend(map(str, others))
    for number in range(len(others)):
        apart = {ends.get(f"{number} in {catalog}", COMMITTED) for catalog in CATALOGS}
        assert len(apart) == 1, told
    # The library's retry knows only the specs from before its first try.
    if "NullPointerException" in ends.values() and "spec" in {act.kind for act in others}:
        return False
    is_conditional = late.kind in _CONDITIONAL and twin.policy != "serializable"
    if first == COMMITTED:
        if ends["theirs"] != COMMITTED:
            assert is_conditional, told
            return False
        tally.accepted[late.kind] += 1
    else:
        keeps = not _MOVES_SHAPE & {act.kind for act in others}
        assert late.kind not in _APPENDS or twin.policy == "serializable" or not keeps, told
        assert ends["ours"] == ends["theirs"], told
        (tally.retried if ends["ours"] == COMMITTED else tally.refused)[late.kind] += 1
    ours, theirs = twin.live("ours"), twin.live("theirs")
    if late.kind in ("where", "partitions", "equality") and first == COMMITTED:
        # The retry applies its filter to what others added, too; to ours they came later.
        assert theirs.keys() <= ours.keys(), (told, ours, theirs)
        if theirs != ours:
            return False
    assert ours == theirs, (told, ours, theirs)
    assert twin.totals("ours") == twin.totals("theirs"), (
        told,
        twin.totals("ours"),
        twin.totals("theirs"),
    )
    return True


def main() -> int:
    """Live through histories until the time is over; print what was tried."""
    from tests.integration.test_up import service

    parser = argparse.ArgumentParser(prog="python -m tests.histories.iceberg")
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=1, help="the first history's")
    given = parser.parse_args()
    deadline, seed, tally = time.monotonic() + given.seconds, given.seed, Tally()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        up = stack.enter_context(service(folder / "root"))
        java = stack.enter_context(java_iceberg(f"http://127.0.0.1:{up.port}"))
        while time.monotonic() < deadline:
            print(f"seed {seed}", file=sys.stderr, flush=True)
            live(java, seed, tally)
            seed += 1
    print(f"seeds {given.seed} to {seed - 1}: {tally}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
