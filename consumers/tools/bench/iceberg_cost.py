"""What deciding an Iceberg commit costs as a table's history, or a record, grows: CPU time here.

A bare machine decides and applies appends, as the leader does between reading a record and writing
its outcome. By Iceberg's format the metadata file holds the whole history, so its bytes grow with
it; evaluating the request (requirements, updates, the new table) is measured without them as well.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from commitlog.core.decisions import FileWanted, Found, Wanted
from commitlog.core.iceberg.creating import parse_create
from commitlog.core.iceberg.domain import decide_iceberg
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.naming import derived_uuid
from commitlog.core.partition.driving import drive
from commitlog.core.partition.machine import Machine
from commitlog.model.limits import PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import CreateNamespace, IcebergChange, Operation
from commitlog.model.records import Genesis, Observation, Status, Submitted, Transaction
from consumers.tools.bench.measure import percentile

REPEATS = 200
_ROOT = "/tables"
_NAME = ("bench", "t")
_START_MS = 1_800_000_000_000


def snapshot_costs(sizes: Sequence[int], report: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return what an append costs at each number of snapshots, in milliseconds of CPU."""
    world = _World()
    rows = []
    for size in sorted(sizes):
        while world.snapshots < size:
            world.append()
        evaluating, whole = [], []
        for _ in range(REPEATS):
            before = time.process_time()
            world.evaluate_append()
            between = time.process_time()
            world.append()
            whole.append((time.process_time() - between) * 1000)
            evaluating.append((between - before) * 1000)
        rows.append(
            {
                "snapshots": size,
                "evaluate_ms": statistics.median(evaluating),
                "evaluate_p99_ms": percentile(sorted(evaluating), 0.99),
                "commit_ms": statistics.median(whole),
                "metadata_bytes": len(world.table.encode()),
            }
        )
        report(
            f"{size:,} snapshots: evaluated in {rows[-1]['evaluate_ms']:.2f} ms of CPU, "
            f"whole commit {rows[-1]['commit_ms']:.2f} ms"
        )
    return rows


def create_costs(counts: Sequence[int], report: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return what each table costs that is made in one record: milliseconds of CPU, and looks."""
    rows = []
    for count in counts:
        world = _World()
        creates = [_creation(f"t{number}") for number in range(count)]
        world.looks = 0
        before = time.process_time()
        world.decide(*creates)
        each = (time.process_time() - before) * 1000 / count
        rows.append({"tables": count, "create_ms": each, "looks": world.looks})
        report(f"{count:,} tables in a record: {each:.2f} ms of CPU each, {world.looks:,} looks")
    return rows


def _creation(name: str) -> IcebergChange:
    columns = [{"id": 1, "name": "id", "required": False, "type": "long"}]
    request = parse_create({"name": name, "schema": {"type": "struct", "fields": columns}})
    identity = derived_uuid("bench", name)
    return request.change((*_NAME[:1], name), uuid=identity, location=f"{_ROOT}/{name}")


class _World:
    """A machine with one table."""

    def __init__(self) -> None:
        genesis = Genesis("bench", "0", "bench", 0, tables_root=_ROOT)
        self.machine = Machine(genesis, Rules(PROTOCOL_SUPPORTED))
        self.looks = 0
        self.snapshots = 0
        self._offset = 0
        self.decide(CreateNamespace(_NAME[:1]))
        self.decide(_creation(_NAME[-1]))

    @property
    def table(self) -> IcebergTable:
        return self.machine.iceberg.tables[_NAME]

    def evaluate_append(self) -> None:
        """Evaluate the next append; nothing is written, nothing changes."""
        decided = decide_iceberg(
            {_NAME: self.table},
            [self._next()],
            time_ms=_START_MS + self._offset,
            transaction_id="evaluated",
            namespaces={_NAME[:1]},
            others={},
        )
        assert isinstance(decided, tuple)

    def append(self) -> None:
        """Decide and apply the next append."""
        self.decide(self._next())
        self.snapshots += 1

    def _next(self) -> IcebergChange:
        """Return the append of one data file, as clients ask for it."""
        following = self.snapshots + 1
        snapshot = {
            "snapshot-id": following,
            "sequence-number": following,
            "timestamp-ms": _START_MS + self._offset,
            "summary": {"operation": "append", "added-data-files": "1", "added-records": "100"},
            "manifest-list": f"{_ROOT}/t/metadata/snap-{following:019d}-0-{'0' * 36}.avro",
            "schema-id": 0,
        }
        if self.snapshots:
            snapshot["parent-snapshot-id"] = self.snapshots
        main = {"ref-name": "main", "type": "branch", "snapshot-id": following}
        require = {
            "type": "assert-ref-snapshot-id",
            "ref": "main",
            "snapshot-id": self.snapshots or None,
        }
        updates = [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", **main},
        ]
        return IcebergChange(_NAME, json.dumps([require]), json.dumps(updates))

    def decide(self, *operations: Operation) -> None:
        """Decide and apply a record."""
        record = Transaction(f"id-{self._offset}", operations)
        submitted = Submitted(0, self._offset, _START_MS + self._offset, record)
        self._offset += 1
        decision = drive(self.machine, submitted, self._look)
        assert decision.outcome.status is Status.COMMITTED, decision.outcome.message
        self.machine.apply(submitted, decision.outcome, changes=decision.changes)

    def _look(self, wanted: Wanted) -> Found:
        """Find nothing: no folder of a new table is a file."""
        assert isinstance(wanted, FileWanted), wanted
        self.looks += 1
        return Found(Observation(wanted.path, -1))
