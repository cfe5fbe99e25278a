"""What stands at a position of a log, folded from its outcomes: tables, and namespaces."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from commitlog.client.history.feed import PartitionFeed
from commitlog.client.history.feed_events import Selection, Start
from commitlog.client.leader.runtime import Runtime
from commitlog.core.catalogue.namespaces import Namespaces, altered
from commitlog.core.log.chain import BEGINNING
from commitlog.errors import Unavailable
from commitlog.model.operations import (
    AlterProperties,
    CreateTable,
    DeclareTable,
    DropNamespace,
    Operation,
    RegisterTable,
    RenameTable,
    target,
)
from commitlog.model.records import OperationResult, Outcome, Status, Submitted, is_commit
from commitlog.model.table import TableId, format_table_id
from commitlog.newest import Newest

_DROP = "DropTable"
_ENDING = (_DROP, "DeregisterTable")
_KEPT = 8
"""How many places of a partition are kept to continue from."""


@dataclass(frozen=True, slots=True)
class TableAt:
    """One table as it stands at a position."""

    name: str
    incarnation: str
    version: int = 0
    """0 if it has none: declared only, or an Iceberg table."""
    location: str = ""
    metadata_location: str = ""
    """An Iceberg table's metadata file; "" for a Lance table."""
    is_view: bool = False
    """Whether it is an Iceberg view; its metadata file is a view's then."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """A Lance table's; not known where an index was asked."""

    @property
    def is_iceberg(self) -> bool:
        """Whether it is an Iceberg table."""
        return bool(self.metadata_location)


class Fold:
    """What stands in one partition, outcome by outcome."""

    def __init__(self) -> None:
        """Start from an empty partition."""
        self.place = BEGINNING
        self.tables: dict[TableId, TableAt] = {}
        self.namespaces = Namespaces()

    def copy(self) -> Fold:
        """Return one that continues by itself."""
        made = Fold()
        made.place, made.tables = self.place, dict(self.tables)
        made.namespaces = Namespaces(self.namespaces)
        return made

    def apply(self, outcome: Outcome, submitted: Submitted) -> None:
        """Take the next outcome."""
        if not is_commit(outcome):
            return
        for operation, result in zip(submitted.operations, outcome.results, strict=True):
            self._result(result, outcome.sequence)
            self.namespaces.apply(operation)
            if isinstance(operation, RenameTable):
                self._rename(operation)
            elif isinstance(operation, DropNamespace):
                self._drop_all(operation.namespace, outcome.sequence)
            elif isinstance(operation, AlterProperties) and operation.is_namespace:
                continue
            elif (known := self.tables.get(target(operation))) is not None:
                self.tables[target(operation)] = self._altered(known, operation)

    def _result(self, result: OperationResult, sequence: int) -> None:
        if not result.incarnation:
            return  # a namespace
        if result.operation in _ENDING:
            self._end(result.table, sequence, is_drop=result.operation == _DROP)
            return
        known = self.tables.get(result.table)
        if known is None or known.incarnation != result.incarnation:
            known = self._begun(format_table_id(result.table), result.incarnation)
        self.tables[result.table] = replace(
            known,
            version=result.version or known.version,
            location=result.location or known.location,
            metadata_location=result.metadata_location or known.metadata_location,
            is_view=known.is_view or result.operation == "IcebergView",
        )

    def _begun(self, name: str, incarnation: str) -> TableAt:
        """Return a table that stands from here on."""
        return TableAt(name, incarnation)

    def _end(self, table: TableId, sequence: int, *, is_drop: bool) -> None:
        """End a table, by a drop or by a deregistration."""
        del sequence, is_drop
        self.tables.pop(table, None)

    def _altered(self, known: TableAt, operation: Operation) -> TableAt:
        """Return a table with what its results don't tell of an operation."""
        if isinstance(operation, CreateTable | DeclareTable | RegisterTable):
            # Another one may have existed, and that was fine.
            is_its = known.incarnation == operation.incarnation
            return replace(known, properties=dict(operation.properties)) if is_its else known
        if isinstance(operation, AlterProperties):
            return replace(
                known, properties=dict(altered(tuple(known.properties.items()), operation))
            )
        return known

    def _rename(self, operation: RenameTable) -> None:
        known = self.tables.pop(operation.table, None)
        if known is not None:
            name = format_table_id(operation.new_table)
            self.tables[operation.new_table] = replace(known, name=name)

    def _drop_all(self, namespace: TableId, sequence: int) -> None:
        for table in [one for one in self.tables if one[: len(namespace)] == namespace]:
            self._end(table, sequence, is_drop=True)


class Moments:
    """The times of committed outcomes, in milliseconds; they never run backwards."""

    def __init__(self) -> None:
        self._times = array("q")
        self._sequences = array("q")
        self._lock = threading.Lock()

    def note(self, outcome: Outcome) -> None:
        """Add the next committed outcome; one that was added before is ignored."""
        with self._lock:
            if not self._sequences or outcome.sequence > self._sequences[-1]:
                self._times.append(outcome.time_ms)
                self._sequences.append(outcome.sequence)

    def at(self, time_ms: int) -> int:
        """Return the sequence of the last outcome up to a time; 0 if there is none."""
        with self._lock:
            count = bisect_right(self._times, time_ms)
            return self._sequences[count - 1] if count else 0

    def newest_ms(self) -> int:
        """Return the time of the last outcome; 0 if there is none."""
        with self._lock:
            return self._times[-1] if self._times else 0


class Folds:
    """Catalogues at positions that this client read; later ones are folded from them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, Newest[int, Fold]] = {}
        """By partition and sequence, the one that was used last at the end."""
        self._moments: dict[int, Moments] = {}

    def at(self, runtime: Runtime, partition: int, sequence: int, deadline: float) -> Fold:
        """Return what existed in a partition right after a sequence."""
        with self._lock:
            known = self._known.setdefault(partition, Newest(_KEPT))
            self._moments.setdefault(partition, Moments())
            nearest = max((one for one in known if one <= sequence), default=-1)
            fold = known[nearest].copy() if nearest >= 0 else Fold()
        try:
            if fold.place.sequence < sequence:
                self._go_on(runtime, partition, fold, sequence, deadline)
        except Unavailable:
            self._keep(known, fold)  # who asks again goes on from there
            raise
        self._keep(known, fold)
        return fold

    def _keep(self, known: Newest[int, Fold], fold: Fold) -> None:
        with self._lock:
            known[fold.place.sequence] = fold.copy()

    def at_time(self, partition: int, time_ms: int) -> int:
        """Return the sequence of the last commit by a time, as far as was looked; 0: none."""
        return self._moments[partition].at(time_ms)

    def newest_ms(self, partition: int) -> int:
        """Return the time of a partition's last commit, as far as was looked; 0: none."""
        return self._moments[partition].newest_ms()

    def _go_on(
        self, runtime: Runtime, partition: int, fold: Fold, sequence: int, deadline: float
    ) -> None:
        feed = PartitionFeed(runtime.log, partition, Start(fold.place, fold.place.sequence))
        committed = Selection(statuses=(Status.COMMITTED,))
        try:
            for outcome, submitted in feed.read_to(sequence, deadline, committed):
                fold.apply(outcome, submitted)
                self._moments[partition].note(outcome)
        finally:
            fold.place = feed.told  # what was told until then is applied
