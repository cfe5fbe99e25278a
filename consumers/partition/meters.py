"""What a partition's leader counts of what it decides: by table, by principal, by step.

A label must have few values, but writers choose the names of tables and principals. So the first
`NAMES_MAX` names that commit get a value of their own, and all others share `OTHERS`. A name keeps
its value, so counters never fall; but a term may last for years, so tables that are gone make room
for others. Only the loop may use these meters.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from commitlog.adapters.tracing import tracing
from commitlog.codecs.iceberg_changes import read_changes
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.operations import IcebergChange, LanceCommit, target
from commitlog.model.records import Outcome, Status, Transaction, is_commit
from commitlog.model.table import TableId, format_table_id
from consumers.partition.files.events import Event, tables_of
from consumers.partition.histograms import BOUNDS, COARSE_BOUNDS, Durations

NAMES_MAX = 100
SERIES_MAX = 1_000
"""Of principals with tables, so many are kept as they are counted."""
OTHERS = "(others)"
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

    def forget(self, names: set[str]) -> None:
        """Count nothing more under names that have a value of their own."""
        self.names.known -= names
        for pairs in (self.outcomes, self.rules):
            for pair in [one for one in pairs if one[0] in names]:
                del pairs[pair]
        for name in names:
            for counts in (self.rebased, self.bytes, self.rows):
                counts.pop(name, None)
            for durations in (self.commits, *self.steps.values()):
                durations.forget(name)

    def steps_to_json(self) -> dict[str, Any]:
        """Return the histograms by step."""
        return {step: found.to_json() for step, found in self.steps.items()}


class Series:
    """What was counted of transactions that have the same principal and tables, and not told yet.

    Each commit is counted here, in one place, and under all its labels once somebody asks.
    """

    def __init__(self, principal: str = "", tables: Sequence[str] = ()) -> None:
        """Count under these values of the labels; without tables, under none."""
        self.principal, self.tables = principal, tables
        self.counts = {step: [0] * (len(BOUNDS) + 1) for step in (*STEPS, COMMIT)}
        self.seconds = dict.fromkeys(self.counts, 0.0)
        self.commits = self.rebased = self.bytes = self.rows = 0
        """Of commits to a single table."""
        self.is_gone = False
        """Whether what is counted here would be told no more."""

    def took(self, step: str, seconds: float) -> None:
        """Count how long a step of a transaction took."""
        seconds = seconds if seconds > 0 else 0.0
        self.counts[step][bisect_left(BOUNDS, seconds)] += 1
        self.seconds[step] += seconds

    def tell(self, whole: Durations, by: Sequence[tuple[OfKind, Sequence[str]]]) -> None:
        """Count all in `whole`, and of each kind of label under these values; begin anew."""
        labels = [(kind, name) for kind, names in by for name in names]
        for step, counts in self.counts.items():
            if not any(counts):
                continue
            found = [whole.of(step)]
            coarse = [kind.steps[step].of(name) for kind, name in labels if step != COMMIT]
            found += [kind.commits.of(name) for kind, name in labels if step == COMMIT]
            for bucket, count in enumerate(counts):
                for one in found:
                    one.counts[bucket] += count
                for one in coarse:
                    one.counts[_COARSE[bucket]] += count
            for one in (*found, *coarse):
                one.seconds += self.seconds[step]
            self.counts[step], self.seconds[step] = [0] * len(counts), 0.0
        if self.commits:
            for kind, name in labels:
                kind.outcomes[name, str(Status.COMMITTED)] += self.commits
                kind.bytes[name] += self.bytes
                kind.rows[name] += self.rows
                if self.rebased:
                    kind.rebased[name] += self.rebased
            self.commits = self.rebased = self.bytes = self.rows = 0


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
        self._refusals = Series()
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
        if self._count_plainly(event, record):
            return
        is_committed = outcome.status is Status.COMMITTED
        kind = "repeated" if outcome.answers is not None else str(outcome.status)
        principal = self._principals.names.of(record.principal, is_new=is_committed)
        self._principals.outcomes[principal, kind] += 1
        tables = tables_of(record)
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

    def _count_plainly(self, event: Event, record: Transaction) -> bool:
        """Count a commit to one table, whose operation says what it added; False if it isn't."""
        if len(record.operations) != 1:
            return False
        [operation], outcome = record.operations, event.outcome
        series = self._series_of(event)
        if not isinstance(operation, LanceCommit) or len(series.tables) != 1:
            return False
        if (summary := operation.summary) is None:
            return False
        series.commits += 1
        series.rebased += any([result.rebased_over for result in outcome.results])
        series.bytes += summary.bytes_added
        series.rows += summary.rows_added
        return True

    def acknowledged(self, events: Iterable[Event], now: float) -> None:
        """Count how long it took until Kafka had these outcomes."""
        wall_now = self._wall_clock()
        for event in events:
            event.acknowledged_at = now
            read_at, decided_at = event.read_at, event.decided_at
            took = self._series_of(event).took
            took(ACKNOWLEDGE, now - decided_at)
            record, appended = event.submitted.record, event.submitted.append_time_ms / 1e3
            # It stood in the log for so long before this process had read it.
            queued = max(0.0, wall_now - (now - read_at) - appended) if read_at else 0.0
            if read_at:
                took(DECIDE, decided_at - read_at)
                took(QUEUE, queued)
            if isinstance(record, Transaction) and record.submitted_at_ms > 0:
                submitting = max(0.0, appended - record.submitted_at_ms / 1e3)
                took(SUBMIT, submitting)
                if read_at:
                    event.began_at = read_at - queued - submitting
            if self._tracing is not None:
                name, waited = event.outcome.transaction_id, max(0.0, now - decided_at)
                facts = {"status": str(event.outcome.status), "sequence": event.outcome.sequence}
                deciding = max(0.0, decided_at - read_at) if read_at else 0.0
                self._tracing.part(name, DECIDE, deciding, ago=waited, **facts)
                self._tracing.part(name, ACKNOWLEDGE, waited)

    def filed(self, events: Iterable[Event], now: float) -> None:
        """Count how long their files took; events of another term aren't counted."""
        for event in events:
            if not event.acknowledged_at:
                continue
            took, series = max(0.0, now - event.acknowledged_at), self._series_of(event)
            series.took(FILES, took)
            outcome = event.outcome
            if not is_commit(outcome):
                continue
            if event.began_at is not None:
                series.took(COMMIT, now - event.began_at)
            if self._tracing is not None:
                versions = ", ".join(
                    f"{format_table_id(one.table)} {one.version}" for one in outcome.results
                )
                self._tracing.part(outcome.transaction_id, FILES, took, versions=versions)

    def _series_of(self, event: Event) -> Series:
        """Return where an event is counted: a commit for its principal and its tables, too."""
        found: Series | None = event.counted_as
        if found is not None and not found.is_gone:
            return found
        record, outcome = event.submitted.record, event.outcome
        series = self._refusals
        if is_commit(outcome) and isinstance(record, Transaction):
            series = self._commits_of(record)
        event.counted_as = series
        return series

    def _commits_of(self, record: Transaction) -> Series:
        key = (record.principal, *map(target, record.operations))
        found = self._series.get(key)
        if found is None:
            principal = self._principals.names.of(record.principal, is_new=True)
            tables = [self._own(one) for one in tables_of(record)]
            if len(self._series) >= SERIES_MAX:
                self._close_series()
            found = self._series[key] = Series(principal, tables)
        return found

    def make_room(self, *standing: Container[TableId]) -> None:
        """If no table can get a value any more, forget those that are in none of these."""
        if len(self.tables) < NAMES_MAX:
            return
        owned = self._owned.items()
        gone = {table: name for table, name in owned if not any(table in one for one in standing)}
        if gone:
            self._close_series()
            self._tables.forget(set(gone.values()))
            for table in gone:
                del self._owned[table]

    def _close_series(self) -> None:
        self._tell()
        for one in self._series.values():
            one.is_gone = True
        self._series.clear()

    def _tell(self) -> None:
        """Count what the series have under all their labels."""
        self._refusals.tell(self.steps, ())
        for one in self._series.values():
            by = ((self._principals, [one.principal]), (self._tables, one.tables))
            one.tell(self.steps, by)

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
        self._tell()
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


def _rule(outcome: Outcome) -> str:
    """Return what an attempt was refused by: a rule of conflicts, or a code."""
    if outcome.conflict is not None:
        return outcome.conflict.rule
    return str(outcome.code or outcome.status)
