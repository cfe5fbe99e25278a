"""What deciding an Iceberg commit costs as the table's history grows: CPU time in this process.

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
from commitlog.core.partition.driving import drive
from commitlog.core.partition.machine import Machine
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


class _World:
    """One table in a machine."""

    def __init__(self) -> None:
        self.machine = Machine(Genesis("bench", "0", "bench", 0, tables_root=_ROOT))
        self.snapshots = 0
        self._offset = 0
        self._decide(CreateNamespace(_NAME[:1]))
        columns = [{"id": 1, "name": "id", "required": False, "type": "long"}]
        request = parse_create({"name": _NAME[-1], "schema": {"type": "struct", "fields": columns}})
        uuid = "0199a000-0000-4000-8000-000000000001"
        self._decide(request.change(_NAME, uuid=uuid, location=f"{_ROOT}/t"))

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
        self._decide(self._next())
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

    def _decide(self, operation: Operation) -> None:
        record = Transaction(f"id-{self._offset}", (operation,))
        submitted = Submitted(0, self._offset, _START_MS + self._offset, record)
        self._offset += 1
        decision = drive(self.machine, submitted, _nothing_there)
        assert decision.outcome.status is Status.COMMITTED, decision.outcome.message
        self.machine.apply(submitted, decision.outcome, changes=decision.changes)


def _nothing_there(wanted: Wanted) -> Found:
    assert isinstance(wanted, FileWanted), wanted
    return Found(Observation(wanted.path, -1))
