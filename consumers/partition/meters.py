"""What a partition's leader counts of what it decides: by table, by principal, by step.

A label must have few values, and whoever writes chooses tables and principals. So the first
`NAMES_MAX` names that commit get a value of their own, and all others share `OTHERS`. A name once
given stays, which keeps each counter growing. Everything here is touched by the loop alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Any

from commitlog.adapters.tracing import tracing
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.operations import LanceCommit, target
from commitlog.model.records import Outcome, Status, Transaction
from commitlog.model.table import TableId, format_table_id
from consumers.partition.events import Event

NAMES_MAX = 100
OTHERS = "(others)"
BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper ends of the histograms' buckets, in seconds."""

SUBMIT, DECIDE, ACKNOWLEDGE, FILES = "submit", "decide", "acknowledge", "files"
"""The steps of a transaction: from the writer's clock to the log, from the leader's reading it to
its decision, from there to Kafka's acknowledgement, and from there to files that can be read."""
COMMIT = "commit"
"""All of them, of what was committed: what its writer waits for, whichever way it came."""


class Names:
    """The names that have a label's value of their own."""

    def __init__(self) -> None:
        """Know none."""
        self.known: set[str] = set()

    def of(self, name: str, *, is_new: bool) -> str:
        """Return the value that stands for a name; `is_new` lets it have one of its own."""
        if name in self.known:
            return name
        if not is_new or len(self.known) >= NAMES_MAX:
            return OTHERS
        self.known.add(name)
        return name


class Durations:
    """A histogram for each name: of a step, a table or a principal."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Begin empty, with these names."""
        self._counts = {name: [0] * (len(BOUNDS) + 1) for name in names}
        self._sums = dict.fromkeys(self._counts, 0.0)

    def took(self, name: str, seconds: float) -> None:
        """Count one transaction."""
        seconds = max(seconds, 0.0)
        if name not in self._counts:
            self._counts[name], self._sums[name] = [0] * (len(BOUNDS) + 1), 0.0
        self._counts[name][bisect_left(BOUNDS, seconds)] += 1
        self._sums[name] += seconds

    def to_json(self) -> dict[str, Any]:
        """Return per name the counts by bucket, not cumulated, and the sum."""
        return {
            name: {"counts": list(counts), "sum": round(self._sums[name], 6)}
            for name, counts in self._counts.items()
        }


class Meters:
    """One session's counters."""

    def __init__(self) -> None:
        """Count from zero."""
        self.steps = Durations((SUBMIT, DECIDE, ACKNOWLEDGE, FILES, COMMIT))
        self._table_commits, self._principal_commits = Durations(), Durations()
        self._tables, self._principals = Names(), Names()
        self._by_table: Counter[tuple[str, str]] = Counter()
        self._by_principal: Counter[tuple[str, str]] = Counter()
        self._rebased: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._rules: Counter[str] = Counter()
        self._table_rules: Counter[tuple[str, str]] = Counter()
        self._principal_rules: Counter[tuple[str, str]] = Counter()
        self._tracing = tracing()
        self.looked_at: dict[str, tuple[int, int]] = {}
        """By table: the version that maintenance has looked at, and its bytes."""
        self.looked_on = 0.0
        """When maintenance told of its look, by the loop's clock; 0: never."""

    @property
    def tables(self) -> set[str]:
        """The tables that are counted by themselves."""
        return self._tables.known

    def count(self, event: Event) -> None:
        """Count an acknowledged outcome."""
        record, outcome = event.submitted.record, event.outcome
        if not isinstance(record, Transaction):
            return
        is_committed = outcome.status is Status.COMMITTED
        kind = "repeated" if outcome.answers is not None else str(outcome.status)
        principal = self._principals.of(record.principal, is_new=is_committed)
        self._by_principal[principal, kind] += 1
        tables = dict.fromkeys(map(target, record.operations))
        for table in tables:
            name = self._tables.of(format_table_id(table), is_new=is_committed)
            self._by_table[name, kind] += 1
        if not is_committed:
            rule = _rule(outcome)
            self._rules[rule] += 1
            self._principal_rules[principal, rule] += 1
            for table in tables if outcome.conflict is None else (outcome.conflict.table,):
                name = self._tables.of(format_table_id(table), is_new=False)
                self._table_rules[name, rule] += 1
        if kind == str(Status.COMMITTED):
            self._written(record, event)
            for result in outcome.results:
                if result.rebased_over:
                    self._rebased[self._own(result.table)] += 1

    def acknowledged(self, event: Event, now: float) -> None:
        """Count how long it took until Kafka had the outcome."""
        event.acknowledged_at = now
        self.steps.took(ACKNOWLEDGE, now - event.decided_at)
        if _submit_ms(event) is not None:
            self.steps.took(SUBMIT, (_submit_ms(event) or 0) / 1e3)
        if self._tracing is not None:
            name, waited = event.outcome.transaction_id, now - event.decided_at
            facts = {"status": str(event.outcome.status), "sequence": event.outcome.sequence}
            read_at = event.read_at or event.decided_at
            self._tracing.part(name, DECIDE, event.decided_at - read_at, ago=waited, **facts)
            self._tracing.part(name, ACKNOWLEDGE, waited)

    def filed(self, event: Event, now: float) -> None:
        """Count how long its files took; those of events of another term's count for nobody."""
        if not event.acknowledged_at:
            return
        self.steps.took(FILES, now - event.acknowledged_at)
        outcome, submit_ms = event.outcome, _submit_ms(event)
        if outcome.status is not Status.COMMITTED or outcome.answers is not None:
            return
        if submit_ms is not None and event.read_at:
            self._committed(event, submit_ms / 1e3 + now - event.read_at)
        if self._tracing is not None:
            versions = ", ".join(
                f"{format_table_id(one.table)} {one.version}" for one in outcome.results
            )
            took = now - event.acknowledged_at
            self._tracing.part(outcome.transaction_id, FILES, took, versions=versions)

    def _committed(self, event: Event, seconds: float) -> None:
        """Count how long a commit took, for its tables and its principal too."""
        record = event.submitted.record
        self.steps.took(COMMIT, seconds)
        if isinstance(record, Transaction):
            principal = self._principals.of(record.principal, is_new=True)
            self._principal_commits.took(principal, seconds)
            for table in dict.fromkeys(map(target, record.operations)):
                self._table_commits.took(self._own(table), seconds)

    def _written(self, record: Transaction, event: Event) -> None:
        """Count rows and bytes, by the manifest's change where the operation doesn't say."""
        said = set()
        for operation in record.operations:
            if isinstance(operation, LanceCommit) and operation.summary is not None:
                said.add(operation.table)
                name = self._own(operation.table)
                self._bytes[name] += operation.summary.bytes_added
                self._rows[name] += operation.summary.rows_added
        for change in event.changes:
            if change.delta is not None and change.table not in said:
                name = self._own(change.table)
                for _, encoded in change.delta.fragments:
                    fragment = DataFragment.FromString(encoded)
                    self._bytes[name] += sum(file.file_size_bytes for file in fragment.files)
                    self._rows[name] += fragment.physical_rows

    def _own(self, table: TableId) -> str:
        return self._tables.of(format_table_id(table), is_new=True)

    def to_json(self) -> dict[str, Any]:
        """Return everything, for `/metrics`."""
        return {
            "bounds": list(BOUNDS),
            "steps": self.steps.to_json(),
            "tables": [[*key, n] for key, n in self._by_table.items()],
            "principals": [[*key, n] for key, n in self._by_principal.items()],
            "rules": dict(self._rules),
            "table_rules": [[*key, n] for key, n in self._table_rules.items()],
            "principal_rules": [[*key, n] for key, n in self._principal_rules.items()],
            "table_commits": self._table_commits.to_json(),
            "principal_commits": self._principal_commits.to_json(),
            "rebased": dict(self._rebased),
            "bytes": dict(self._bytes),
            "rows": dict(self._rows),
        }


def _submit_ms(event: Event) -> int | None:
    """Return how long a transaction was on its way to the log; None if its writer didn't say."""
    record = event.submitted.record
    if not isinstance(record, Transaction) or record.submitted_at_ms <= 0:
        return None
    return max(0, event.submitted.append_time_ms - record.submitted_at_ms)


def _rule(outcome: Outcome) -> str:
    """Return what an attempt was refused by: a rule of conflicts, or a code."""
    if outcome.conflict is not None:
        return outcome.conflict.rule
    return str(outcome.code or outcome.status)
