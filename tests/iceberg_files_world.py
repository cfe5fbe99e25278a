"""A catalogue over a log in memory, and which files of its Iceberg tables nobody needs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.model.names import REASON
from commitlog.model.records import Transaction
from commitlog.ports import Log
from consumers.tools.iceberg.orphans import IcebergOrphans, Orphan
from consumers.tools.maintenance.cleaning import clean
from consumers.tools.maintenance.iceberg_purges import IcebergPurges
from consumers.tools.maintenance.maintenance_policy import Policies
from consumers.tools.maintenance.removals import Removals
from tests.namespace_world import World

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


def find_orphans(log: Log, tables_root: str) -> list[Orphan]:
    """Compare the files below the tables root with the log's outcomes, to their present ends."""
    with closing(IcebergOrphans(log, tables_root)) as orphans:
        return orphans.find()


class FilesWorld(World):
    """Its log can be read by others."""

    def __init__(self, root: Path, place: Path | str = "") -> None:
        """Have the tables at a place, if one is given."""
        self.cluster = MemoryCluster()
        opened = partial(MemoryLog, self.cluster)
        super().__init__(root, opened, tables_root=str(place))
        if isinstance(place, Path):
            self.tables_root = place
        self.place = str(place) or str(self.tables_root)
        self.other = MemoryLog(self.cluster)

    def orphans(self) -> list[Orphan]:
        return find_orphans(self.other, self.place)

    def clean(self, *, age_seconds: float) -> None:
        """Remove what nobody needs."""
        clean(self.other, None, age_seconds, self.log)

    def maintain(self) -> list[str]:
        """Do what is due, as a new process would; return what came of it."""
        purges = IcebergPurges(self.other, self.log)
        try:
            return [f"{one.kind}: {one.do()}" for one in purges.due()]
        finally:
            purges.close()

    def remove(self, policy: dict[str, str] | None = None) -> list[str]:
        """Remove what is due, as a new process would; return what came of it."""
        told = list[str]()
        removals = Removals(
            self.log,
            lambda: MemoryLog(self.cluster),
            Policies(self.log, policy or {}),
            lambda act, result: told.append(f"{act.kind} {act.table}: {result}"),
            0.0,
        )
        removals.look()
        removals.close()
        return told

    def remove_after_weeks(self) -> None:
        """Remove what is due if nothing was written or read for weeks."""
        for path in below(self.place):
            age(path, 24 * 30)
        self.remove({"commitlog.maintain.remove-expired-after-hours": "0"})


@contextmanager
def catalogue(root: Path, place: Path | str = "") -> Iterator[tuple[Any, FilesWorld]]:
    """A catalogue with a namespace `files`, over a log of its own."""
    from pyiceberg.catalog import load_catalog

    running = FilesWorld(root, place)
    try:
        found = load_catalog("alone", type="rest", uri=running.uri)
        found.create_namespace("files")
        yield found, running
    finally:
        running.close()


def made(catalog: Any, world: FilesWorld, **more: Any) -> Any:
    """A table with two snapshots, deletes and four metadata files."""
    table = catalog.create_table(("files", world.fresh_name()), ROWS.schema, **more)
    table.append(ROWS)
    table.delete("id = 2")
    table.append(ROWS)
    return table


def below(location: str) -> list[Path]:
    """Return the files in a folder, sorted."""
    return sorted(path for path in Path(location).rglob("*") if path.is_file())


def age(place: str | Path, hours: float) -> None:
    """Have a file written so long ago."""
    written = time.time() - hours * 3600
    os.utime(place, (written, written))


def reasons(log: MemoryLog) -> list[str]:
    """Return what maintenance said in the log of what it did."""
    found = (dict(one.properties).get(REASON) for one in transactions(log))
    return [one for one in found if one is not None]


def transactions(log: MemoryLog) -> list[Transaction]:
    """Return all of a log."""
    reader = log.read_transactions(0, 0)
    found: list[Transaction] = []
    while reader.position() < reader.end_offset():
        records = (one.record for one in reader.poll(timeout_seconds=1))
        found += [one for one in records if isinstance(one, Transaction)]
    reader.close()
    return found
