"""What a partition's leader counts of what it decides: by table, by principal, by step.

A label must have few values, but writers choose the names of tables and principals. So the first
`NAMES_MAX` names that commit get a value of their own, and all others share `OTHERS`. A name keeps
its value, so counters never fall. Only the loop may use these meters.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from commitlog.adapters.tracing import tracing
from commitlog.codecs.iceberg_changes import read_changes
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.operations import IcebergChange, LanceCommit, target
from commitlog.model.records import Outcome, Status, Transaction
from commitlog.model.table import TableId, format_table_id
from consumers.partition.events import Event

NAMES_MAX = 100
OTHERS = "(others)"
BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper ends of the histograms' buckets, in seconds."""
COARSE_BOUNDS = (0.001, 0.01, 0.1, 1.0, 10.0)
"""The same for a table's or a principal's steps, of which there are a hundred times as many."""

SUBMIT, QUEUE, DECIDE = "submit", "queue", "decide"
ACKNOWLEDGE, FILES = "acknowledge", "files"
"""The steps of a transaction: from the writer's clock to the log, from there until the leader has
read it, from there to its decision, from there to Kafka's acknowledgement, and from there to files
that can be read."""
STEPS = (SUBMIT, QUEUE, DECIDE, ACKNOWLEDGE, FILES)
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

    def __init__(self, names: Iterable[str] = (), bounds: Sequence[float] = BOUNDS) -> None:
        """Begin empty, with these names."""
        self._bounds = bounds
        self._counts = {name: [0] * (len(bounds) + 1) for name in names}
        self._sums = dict.fromkeys(self._counts, 0.0)

    def took(self, seconds: float, *names: str) -> None:
        """Count one transaction under each of these names."""
        seconds = seconds if seconds > 0 else 0.0
        bucket = bisect_left(self._bounds, seconds)
        for name in names:
            if name not in self._counts:
                self._counts[name], self._sums[name] = [0] * (len(self._bounds) + 1), 0.0
            self._counts[name][bucket] += 1
            self._sums[name] += seconds

    def to_json(self) -> dict[str, Any]:
        """Return per name the counts by bucket, not cumulated, and the sum."""
        return {
            name: {"counts": list(counts), "sum": round(self._sums[name], 6)}
            for name, counts in self._counts.items()
        }


class OfKind:
    """What is counted of each table, or of each principal."""

    def __init__(self) -> None:
        """Count from zero."""
        self.names = Names()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.rules: Counter[tuple[str, str]] = Counter()
        self.rebased: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self.commits = Durations()
        self.steps = {step: Durations(bounds=COARSE_BOUNDS) for step in STEPS}

    def steps_to_json(self) -> dict[str, Any]:
        """Return the histograms by step."""
        return {step: found.to_json() for step, found in self.steps.items()}


class Meters:
    """One session's counters."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        """Count from zero; writers and Kafka tell times by a wall clock, in seconds."""
        self._wall_clock = wall_clock
        self.steps = Durations((*STEPS, COMMIT))
        self._tables, self._principals = OfKind(), OfKind()
        self._owned: dict[TableId, str] = {}
        """The names of tables that have one of their own: each commit asks for them often."""
        self._rules: Counter[str] = Counter()
        self._tracing = tracing()
        self.looked_at: dict[str, tuple[int, int]] = {}
        """By table: the version that maintenance has looked at, and its bytes."""
        self.looked_on = 0.0
        """When maintenance told of its look, by the loop's clock; 0: never."""

    @property
    def tables(self) -> set[str]:
        """The tables that are counted by themselves."""
        return self._tables.names.known

    def count(self, event: Event) -> None:
        """Count an acknowledged outcome."""
        record, outcome = event.submitted.record, event.outcome
        if not isinstance(record, Transaction):
            return
        is_committed = outcome.status is Status.COMMITTED
        kind = "repeated" if outcome.answers is not None else str(outcome.status)
        principal = self._principals.names.of(record.principal, is_new=is_committed)
        self._principals.outcomes[principal, kind] += 1
        tables = _tables_of(record)
        for table in tables:
            name = self._own(table, is_new=is_committed)
            self._tables.outcomes[name, kind] += 1
        if not is_committed:
            rule = _rule(outcome)
            self._rules[rule] += 1
            self._principals.rules[principal, rule] += 1
            for table in tables if outcome.conflict is None else (outcome.conflict.table,):
                name = self._own(table, is_new=False)
                self._tables.rules[name, rule] += 1
        if kind == str(Status.COMMITTED):
            self._written(record, event, principal)
            for result in outcome.results:
                if result.rebased_over:
                    self._tables.rebased[self._own(result.table)] += 1
                    self._principals.rebased[principal] += 1

    def acknowledged(self, event: Event, now: float) -> None:
        """Count how long it took until Kafka had the outcome."""
        event.acknowledged_at = now
        took = {ACKNOWLEDGE: now - event.decided_at}
        record, appended = event.submitted.record, event.submitted.append_time_ms / 1e3
        if event.read_at:
            # It stood in the log for so long before this process had read it.
            queued = self._wall_clock() - (now - event.read_at) - appended
            took[QUEUE] = queued if queued > 0 else 0.0
        if isinstance(record, Transaction) and record.submitted_at_ms > 0:
            submitted = appended - record.submitted_at_ms / 1e3
            took[SUBMIT] = submitted if submitted > 0 else 0.0
            if event.read_at:
                event.began_at = event.read_at - took[QUEUE] - took[SUBMIT]
        for step, seconds in took.items():
            self.steps.took(seconds, step)
        if event.read_at:  # the leader counts its decisions itself
            took[DECIDE] = event.decided_at - event.read_at
        self._took(event, took)
        if self._tracing is not None:
            name, waited = event.outcome.transaction_id, now - event.decided_at
            facts = {"status": str(event.outcome.status), "sequence": event.outcome.sequence}
            read_at = event.read_at or event.decided_at
            self._tracing.part(name, DECIDE, event.decided_at - read_at, ago=waited, **facts)
            self._tracing.part(name, ACKNOWLEDGE, waited)

    def filed(self, event: Event, now: float) -> None:
        """Count how long its files took; events of another term aren't counted."""
        if not event.acknowledged_at:
            return
        self.steps.took(now - event.acknowledged_at, FILES)
        self._took(event, {FILES: now - event.acknowledged_at})
        outcome = event.outcome
        if outcome.status is not Status.COMMITTED or outcome.answers is not None:
            return
        if event.began_at is not None:
            seconds = now - event.began_at
            self.steps.took(seconds, COMMIT)
            if event.counted_as is not None:
                principal, tables = event.counted_as
                self._principals.commits.took(seconds, principal)
                self._tables.commits.took(seconds, *tables)
        if self._tracing is not None:
            versions = ", ".join(
                f"{format_table_id(one.table)} {one.version}" for one in outcome.results
            )
            took = now - event.acknowledged_at
            self._tracing.part(outcome.transaction_id, FILES, took, versions=versions)

    def _took(self, event: Event, steps: Mapping[str, float]) -> None:
        """Count the steps of a committed transaction for its tables and its principal."""
        record, outcome = event.submitted.record, event.outcome
        is_committed = outcome.status is Status.COMMITTED and outcome.answers is None
        if not (is_committed and isinstance(record, Transaction)):
            return
        if event.counted_as is None:
            principal = self._principals.names.of(record.principal, is_new=True)
            event.counted_as = principal, tuple([self._own(one) for one in _tables_of(record)])
        principal, tables = event.counted_as
        for step, seconds in steps.items():
            self._principals.steps[step].took(seconds, principal)
            self._tables.steps[step].took(seconds, *tables)

    def _written(self, record: Transaction, event: Event, principal: str) -> None:
        """Count rows and bytes, by the manifest's change where the operation doesn't say."""
        said = set()
        for operation in record.operations:
            made = None
            if isinstance(operation, LanceCommit):
                made = operation.summary
            elif isinstance(operation, IcebergChange):
                made = read_changes(operation).summary
            if made is not None:
                said.add(target(operation))
                name = self._own(target(operation))
                self._wrote(name, principal, made.bytes_added, made.rows_added)
        for change in event.changes:
            if change.delta is not None and change.table not in said:
                name = self._own(change.table)
                for _, encoded in change.delta.fragments:
                    fragment = DataFragment.FromString(encoded)
                    size = sum(file.file_size_bytes for file in fragment.files)
                    self._wrote(name, principal, size, fragment.physical_rows)

    def _wrote(self, table: str, principal: str, size: int, rows: int) -> None:
        for kind, name in ((self._tables, table), (self._principals, principal)):
            kind.bytes[name] += size
            kind.rows[name] += rows

    def _own(self, table: TableId, *, is_new: bool = True) -> str:
        name = self._owned.get(table)
        if name is None:
            name = self._tables.names.of(format_table_id(table), is_new=is_new)
            if name != OTHERS:
                self._owned[table] = name
        return name

    def to_json(self) -> dict[str, Any]:
        """Return everything, for `/metrics`."""
        tables, principals = self._tables, self._principals
        return {
            "bounds": list(BOUNDS),
            "coarse_bounds": list(COARSE_BOUNDS),
            "steps": self.steps.to_json(),
            "tables": [[*key, n] for key, n in tables.outcomes.items()],
            "principals": [[*key, n] for key, n in principals.outcomes.items()],
            "rules": dict(self._rules),
            "table_rules": [[*key, n] for key, n in tables.rules.items()],
            "principal_rules": [[*key, n] for key, n in principals.rules.items()],
            "table_commits": tables.commits.to_json(),
            "principal_commits": principals.commits.to_json(),
            "table_steps": tables.steps_to_json(),
            "principal_steps": principals.steps_to_json(),
            "rebased": dict(tables.rebased),
            "bytes": dict(tables.bytes),
            "rows": dict(tables.rows),
            "principal_rebased": dict(principals.rebased),
            "principal_bytes": dict(principals.bytes),
            "principal_rows": dict(principals.rows),
        }


def _tables_of(record: Transaction) -> dict[TableId, None]:
    """Return what a record is about, but for the log itself, whose tags and places it may set."""
    return dict.fromkeys(filter(None, map(target, record.operations)))


def _rule(outcome: Outcome) -> str:
    """Return what an attempt was refused by: a rule of conflicts, or a code."""
    if outcome.conflict is not None:
        return outcome.conflict.rule
    return str(outcome.code or outcome.status)
