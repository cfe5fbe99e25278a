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
SERIES_MAX = 1_000
"""Of principals with tables, so many are kept as they are counted."""
OTHERS = "(others)"
BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper ends of the histograms' buckets, in seconds."""
COARSE_BOUNDS = (0.001, 0.01, 0.1, 1.0, 10.0)
"""The same for a table's or a principal's steps, of which there are a hundred times as many."""
_COARSE = [*[bisect_left(COARSE_BOUNDS, bound) for bound in BOUNDS], len(COARSE_BOUNDS)]
"""In which of the coarse buckets each of the others lies."""

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


class Histogram:
    """How many transactions took how long, by bucket, and how long they took together."""

    __slots__ = ("counts", "seconds")

    def __init__(self, buckets: int) -> None:
        """Begin empty."""
        self.counts = [0] * buckets
        self.seconds = 0.0


class Durations:
    """A histogram for each name: of a step, a table or a principal."""

    def __init__(self, names: Iterable[str] = (), bounds: Sequence[float] = BOUNDS) -> None:
        """Begin empty, with these names."""
        self._bounds = bounds
        self._by_name: dict[str, Histogram] = {}
        for name in names:
            self.of(name)

    def of(self, name: str) -> Histogram:
        """Return a name's histogram, which stays the same."""
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = Histogram(len(self._bounds) + 1)
        return found

    def took(self, seconds: float, *names: str) -> None:
        """Count one transaction under each of these names."""
        count_in(map(self.of, names), self._bounds, seconds)

    def to_json(self) -> dict[str, Any]:
        """Return per name the counts by bucket, not cumulated, and the sum."""
        return {
            name: {"counts": list(one.counts), "sum": round(one.seconds, 6)}
            for name, one in self._by_name.items()
        }


def count_in(histograms: Iterable[Histogram], bounds: Sequence[float], seconds: float) -> None:
    """Count one transaction in histograms that all have these bounds."""
    seconds = seconds if seconds > 0 else 0.0
    bucket = bisect_left(bounds, seconds)
    for one in histograms:
        one.counts[bucket] += 1
        one.seconds += seconds


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


class Series:
    """Where transactions are counted that have the same principal and tables."""

    __slots__ = ("commits", "steps")

    def __init__(self, whole: Durations, by: Sequence[tuple[OfKind, Sequence[str]]] = ()) -> None:
        """Count in `whole`, and of each kind of label under these values."""
        labels = [(kind, name) for kind, names in by for name in names]
        self.steps = {
            step: (whole.of(step), [kind.steps[step].of(name) for kind, name in labels])
            for step in STEPS
        }
        self.commits = [whole.of(COMMIT), *[kind.commits.of(name) for kind, name in labels]]

    def took(self, steps: Mapping[str, float]) -> None:
        """Count how long the steps of a transaction took, in seconds."""
        for step, seconds in steps.items():
            whole, labels = self.steps[step]
            bucket = bisect_left(BOUNDS, seconds)
            whole.counts[bucket] += 1
            whole.seconds += seconds
            bucket = _COARSE[bucket]
            for one in labels:
                one.counts[bucket] += 1
                one.seconds += seconds


class Meters:
    """One session's counters."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        """Count from zero; writers and Kafka tell times by a wall clock, in seconds."""
        self._wall_clock = wall_clock
        self.steps = Durations((*STEPS, COMMIT))
        self._tables, self._principals = OfKind(), OfKind()
        self._owned: dict[TableId, str] = {}
        """The names of tables that have one of their own: each commit asks for them often."""
        self._series: dict[tuple[object, ...], Series] = {}
        """Of commits, by principal and tables."""
        self._refusals = Series(self.steps)
        """Of all other transactions."""
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

    def acknowledged(self, events: Iterable[Event], now: float) -> None:
        """Count how long it took until Kafka had these outcomes."""
        wall_now = self._wall_clock()
        for event in events:
            event.acknowledged_at = now
            waited, read_at = max(0.0, now - event.decided_at), event.read_at
            took = {ACKNOWLEDGE: waited}
            record, appended = event.submitted.record, event.submitted.append_time_ms / 1e3
            if read_at:
                took[DECIDE] = max(0.0, event.decided_at - read_at)
                # It stood in the log for so long before this process had read it.
                took[QUEUE] = max(0.0, wall_now - (now - read_at) - appended)
            if isinstance(record, Transaction) and record.submitted_at_ms > 0:
                took[SUBMIT] = max(0.0, appended - record.submitted_at_ms / 1e3)
                if read_at:
                    event.began_at = read_at - took[QUEUE] - took[SUBMIT]
            self._series_of(event).took(took)
            if self._tracing is not None:
                name = event.outcome.transaction_id
                facts = {"status": str(event.outcome.status), "sequence": event.outcome.sequence}
                self._tracing.part(name, DECIDE, took.get(DECIDE, 0.0), ago=waited, **facts)
                self._tracing.part(name, ACKNOWLEDGE, waited)

    def filed(self, events: Iterable[Event], now: float) -> None:
        """Count how long their files took; events of another term aren't counted."""
        for event in events:
            if not event.acknowledged_at:
                continue
            took, series = max(0.0, now - event.acknowledged_at), self._series_of(event)
            series.took({FILES: took})
            outcome = event.outcome
            if outcome.status is not Status.COMMITTED or outcome.answers is not None:
                continue
            if event.began_at is not None:
                count_in(series.commits, BOUNDS, now - event.began_at)
            if self._tracing is not None:
                versions = ", ".join(
                    f"{format_table_id(one.table)} {one.version}" for one in outcome.results
                )
                self._tracing.part(outcome.transaction_id, FILES, took, versions=versions)

    def _series_of(self, event: Event) -> Series:
        """Return where an event is counted: a commit for its principal and its tables, too."""
        if event.counted_as is not None:
            found: Series = event.counted_as
            return found
        record, outcome = event.submitted.record, event.outcome
        series = self._refusals
        is_committed = outcome.status is Status.COMMITTED and outcome.answers is None
        if is_committed and isinstance(record, Transaction):
            series = self._commits_of(record)
        event.counted_as = series
        return series

    def _commits_of(self, record: Transaction) -> Series:
        key = (record.principal, *map(target, record.operations))
        found = self._series.get(key)
        if found is None:
            principal = self._principals.names.of(record.principal, is_new=True)
            tables = [self._own(one) for one in _tables_of(record)]
            by = ((self._principals, [principal]), (self._tables, tables))
            if len(self._series) >= SERIES_MAX:
                self._series.clear()
            found = self._series[key] = Series(self.steps, by)
        return found

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
                table = target(operation)
                said.add(table)
                self._wrote(self._own(table), principal, made.bytes_added, made.rows_added)
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
