"""`commitlog bench growth`: does a commit cost the same however large and old its table is?

One lone writer commits through the whole service, one transaction after another, under policy
`latest`. Its commit is timed twice: when it stands (`committed`), and when its version can be
opened by path (`readable`), which waits for a manifest; a manifest holds every fragment, so that
one grows with the table by format, and its bytes stand beside it. The next commit begins when the
last one is readable, so no manifest is written while a commit is timed.

Tables get their size by few large appends, and their age by many small ones, which ten fragments
replace in the end (not for a late writer: nothing may be late for an overwrite). pylance's own
commit, alone on a table of its own, stands beside the curve of fragments. What a million versions
cost is measured on the machine alone, without Kafka: a decision and its application, in CPU time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import lance

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.codecs.manifest_file import encode_manifest
from commitlog.core.partition.machine import Machine
from commitlog.model.records import Status, Submitted, Transaction
from commitlog.model.table import TableId
from consumers.tools.bench.made_log import append_to, configure, create, decide
from consumers.tools.bench.measure import Report, quantiles
from consumers.tools.bench.peers import drop, rows_of_work, table_and_fragment

FRAGMENTS = (10, 1_000, 100_000)
VERSIONS = (10, 10_000)
MACHINE_VERSIONS = (10, 10_000, 1_000_000)
BEHIND = (0, 10_000)
TABLES = (1, 100)
COMMITS = 200
PEER_COMMITS = 30
"""Of pylance's: each leaves a manifest of the whole table behind."""
PER_APPEND = 10_000
"""Fragments that one transaction brings at most: 16 MiB is the limit of a record."""
IN_FLIGHT = 500
MACHINE_COMMITS, MACHINE_RUNS = 300, 5
WAIT_SECONDS = 300.0


def run(
    bootstrap_servers: str,
    log_name: str,
    *,
    fragments: Sequence[int] = FRAGMENTS,
    versions: Sequence[int] = VERSIONS,
    behind: Sequence[int] = BEHIND,
    tables: Sequence[int] = TABLES,
    machine_versions: Sequence[int] = MACHINE_VERSIONS,
    commits: int = COMMITS,
    report: Report = print,
) -> dict[str, Any]:
    """Measure and return a JSON-able report: points of the service, and of the machine alone."""
    with CommitLog.connect(bootstrap_servers, log=log_name) as log:
        report("warming up")
        _Service(log, commits, lambda told: None).tables(1)
        measured, pylance = _Service(log, commits, report), []
        for count in fragments:
            measured.fragments(count)
            pylance.append(_pylance(count, min(commits, PEER_COMMITS), report))
        measured.ages(versions, behind)
        for count in tables:
            measured.tables(count)
    alone = _machine_by_fragments(fragments, report)
    alone += _machine_by_age(machine_versions, behind, report)
    return {
        "commits": commits,
        "points": measured.points,
        "pylance": pylance,
        "alone": alone,
        "ratios": ratios(measured.points, "committed_p50_ms") + ratios(alone, "cpu_us"),
    }


def ratios(points: Sequence[Mapping[str, Any]], of: str) -> list[dict[str, Any]]:
    """Return by curve the largest cost to the smallest one."""
    found = []
    for curve in dict.fromkeys(point["curve"] for point in points):
        values = [point[of] for point in points if point["curve"] == curve]
        ratio = max(values) / max(min(values), 1e-9)
        found.append({"curve": curve, "of": of, "ratio": ratio})
    return found


class _Service:
    """Points that are measured through everything."""

    def __init__(self, log: CommitLog, commits: int, report: Report) -> None:
        self._log, self._commits, self._report = log, commits, report
        self.points: list[dict[str, Any]] = []

    def fragments(self, count: int) -> None:
        """Commit to a table of so many fragments."""
        table, fragment = table_and_fragment(self._log)
        self._grow(table, fragment, count)
        self._measure("fragments", count, [(table, fragment)])
        drop(self._log, table)

    def ages(self, versions: Sequence[int], behind: Sequence[int]) -> None:
        """Commit to a table of ten fragments after so many versions; then as a late writer."""
        table, fragment = table_and_fragment(self._log)
        for count in sorted(versions):
            self._append_until(table, fragment, count - 1)
            # Ten fragments in the place of all.
            schema = rows_of_work().schema
            overwrite = lance.LanceOperation.Overwrite(schema, [fragment] * 10)
            self._log.submit(table, overwrite).result(WAIT_SECONDS).raise_for_conflict()
            self._measure("versions", count, [(table, fragment)])
        drop(self._log, table)
        # Nothing may be late for an overwrite, so this table keeps its fragments.
        table, fragment = table_and_fragment(self._log)
        self._append_until(table, fragment, max(behind, default=0) + 1)
        for count in behind:
            self._measure("versions behind", count, [(table, fragment)], behind=count)
        drop(self._log, table)

    def tables(self, count: int) -> None:
        """Commit one transaction over so many tables."""
        targets = [table_and_fragment(self._log) for _ in range(count)]
        self._measure("tables", count, targets)
        for table, _ in targets:
            drop(self._log, table)

    def _grow(self, table: str, fragment: Any, count: int) -> None:
        for done in range(0, count, PER_APPEND):
            some = [fragment] * min(PER_APPEND, count - done)
            ticket = self._log.submit(table, lance.LanceOperation.Append(some))
            ticket.result(WAIT_SECONDS).raise_for_conflict()

    def _append_until(self, table: str, fragment: Any, version: int) -> None:
        append, at = lance.LanceOperation.Append([fragment]), self._log.table(table).version
        while at < version:
            count = min(IN_FLIGHT, version - at)
            tickets = [self._log.submit(table, append, read_version=at) for _ in range(count)]
            for ticket in tickets:
                ticket.result(WAIT_SECONDS, wait="committed").raise_for_conflict()
            at += count

    def _measure(
        self, curve: str, at: int, targets: Sequence[tuple[str, Any]], *, behind: int = 0
    ) -> None:
        committed, readable = [], []
        heads = {table: self._log.table(table).version for table, _ in targets}
        for _ in range(self._commits + self._commits // 10):
            before = time.perf_counter()
            with self._log.transact(wait="committed", timeout=WAIT_SECONDS) as transaction:
                for table, fragment in targets:
                    append = lance.LanceOperation.Append([fragment])
                    transaction.submit(table, append, read_version=heads[table] - behind)
            committed.append((time.perf_counter() - before) * 1000)
            assert transaction.ticket is not None
            transaction.ticket.result(WAIT_SECONDS)
            readable.append((time.perf_counter() - before) * 1000)
            heads = {table: head + 1 for table, head in heads.items()}
        point = {
            "curve": curve,
            "at": at,
            **quantiles("committed", committed[self._commits // 10 :]),
            **quantiles("readable", readable[self._commits // 10 :]),
            "manifest_bytes": sum(self._manifest_bytes(table) for table, _ in targets),
        }
        self.points.append(point)
        self._report(
            f"{curve} {at:,}: committed p50 {point['committed_p50_ms']:.2f} ms, readable p50"
            f" {point['readable_p50_ms']:.2f} ms, manifests {point['manifest_bytes']:,} bytes"
        )

    def _manifest_bytes(self, table: str) -> int:
        folder = Path(self._log.table(table).location) / "_versions"
        newest = min(path for path in folder.glob("*.manifest") if path.stem.isdigit())
        return newest.stat().st_size


def _pylance(count: int, commits: int, report: Report) -> dict[str, Any]:
    """Time pylance's own commits, with a warm handle, to a table of so many fragments."""
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        dataset = lance.write_dataset(rows_of_work(), f"{folder}/t")
        [fragment] = lance.fragment.write_fragments(rows_of_work(), f"{folder}/t")
        latencies = []
        for some in (count - 1, *[1] * (commits + 1)):
            append = lance.LanceOperation.Append([fragment] * some)
            before = time.perf_counter()
            dataset = lance.LanceDataset.commit(dataset, append, read_version=dataset.version)
            latencies.append((time.perf_counter() - before) * 1000)
    point = {"at": count, **quantiles("", latencies[2:])}
    report(f"pylance, {count:,} fragments: p50 {point['p50_ms']:.2f} ms")
    return point


TABLE: TableId = ("t",)


class _Machine:
    """A machine with one table, and nothing around it."""

    def __init__(self) -> None:
        log = MemoryLog()
        self._machine = Machine(log.create(tables_root="/tables"))
        self._offset = self._number = 0
        for first in log.read_transactions(0).poll():
            self._take(first)
        self.run(create(TABLE[0]))

    @property
    def version(self) -> int:
        return self._machine.tables[TABLE].version

    def run(self, transaction: Transaction) -> None:
        """Decide and apply a transaction."""
        hashed = replace(transaction, payload_hash=transaction.transaction_id.encode()[:32])
        self._take(Submitted(0, self._offset, self._offset, hashed))

    def appends(self, count: int, *, fragments: int = 1, behind: int = 0) -> list[Submitted]:
        """Return the next appends, ready to be decided one after another."""
        found = []
        for number in range(count):
            self._number += 1
            read = self.version + number - behind
            record = append_to(TABLE[0], self._number, fragments=fragments, read_version=read)
            hashed = replace(record, payload_hash=record.transaction_id.encode()[:32])
            at = self._offset + number
            found.append(Submitted(0, at, at, hashed))
        return found

    def cpu_us(self, *, behind: int = 0) -> float:
        """Return the CPU time of a decision and its application."""
        work = self.appends(MACHINE_COMMITS, behind=behind)
        before = time.process_time()
        for one in work:
            self._take(one)
        return (time.process_time() - before) / len(work) * 1e6

    def manifest(self) -> tuple[int, float]:
        """Return the bytes of the table's manifest, and the CPU time of encoding it in ms."""
        state = self._machine.tables[TABLE].manifest
        assert state is not None
        before = time.process_time()
        size = len(encode_manifest(state, None))
        return size, (time.process_time() - before) * 1000

    def _take(self, submitted: Submitted) -> None:
        decision = decide(self._machine, submitted)
        assert decision.outcome.status is Status.COMMITTED, decision.outcome.message
        self._machine.apply(submitted, decision.outcome, changes=decision.changes)
        self._offset += 1


def _least(costs: Mapping[int, Callable[[], float]]) -> dict[int, float]:
    """Measure all in turns and keep each one's least: other load slows all of them alike."""
    found = dict.fromkeys(costs, float("inf"))
    for _ in range(MACHINE_RUNS):
        for at, cost in costs.items():
            found[at] = min(found[at], cost())
    return found


def _machine_by_fragments(counts: Sequence[int], report: Report) -> list[dict[str, Any]]:
    machines, manifests = {}, {}
    for count in counts:
        machine = machines[count] = _Machine()
        for done in range(0, count, PER_APPEND):
            [append] = machine.appends(1, fragments=min(PER_APPEND, count - done))
            machine.run(cast(Transaction, append.record))
        manifests[count] = machine.manifest()
    points = []
    for count, cost in _least({at: one.cpu_us for at, one in machines.items()}).items():
        report(f"machine, {count:,} fragments: {cost:.0f} us of CPU")
        size, encoding = manifests[count]
        points.append(
            {
                "curve": "machine by fragments",
                "at": count,
                "cpu_us": cost,
                "manifest_bytes": size,
                "manifest_cpu_ms": encoding,
            }
        )
    return points


def _machine_by_age(
    versions: Sequence[int], behind: Sequence[int], report: Report
) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = []
    machines = {count: _Machine() for count in sorted(versions)}
    for count, machine in machines.items():
        while machine.version < count:
            machine.run(configure(TABLE[0], machine.version))
    for count, cost in _least({at: one.cpu_us for at, one in machines.items()}).items():
        points.append({"curve": "machine by versions", "at": count, "cpu_us": cost})
        report(f"machine, {count:,} versions: {cost:.0f} us of CPU")
    oldest = machines[max(machines)]
    late = [count for count in behind if count < oldest.version]
    for count, cost in _least({at: partial(oldest.cpu_us, behind=at) for at in late}).items():
        points.append({"curve": "machine by versions behind", "at": count, "cpu_us": cost})
        report(f"machine, {count:,} versions behind: {cost:.0f} us of CPU")
    return points
