"""How long it took until the index showed a transaction, counted for `/metrics`.

The keeper writes what it counted beside the index after each publication, and the HTTP server reads
it, in the form in which leaders tell of their steps.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from typing import Any

from commitlog.core.log.replica import Decided
from commitlog.model.operations import target
from commitlog.model.records import Transaction, is_commit
from commitlog.model.table import format_table_id
from consumers.partition.histograms import (
    BOUNDS,
    COARSE_BOUNDS,
    Durations,
    Histogram,
    count_in,
)
from consumers.partition.meters import SERIES_MAX, Names
from consumers.views.version_index.layout import Layout

INDEX = "index"
"""The step: from Kafka's having a transaction until the index shows it."""
FILE = "lateness.json"


class Lateness:
    """One keeper's histograms: of all, by table, by principal. Those of commits alone."""

    def __init__(self, layout: Layout) -> None:
        self._path = layout.folder / FILE
        self._unshown: list[tuple[float, list[Histogram]]] = []
        """When each was appended, in milliseconds, and where it counts for its labels."""
        self._all = Durations((INDEX,))
        self._by = {kind: (Names(), Durations(bounds=COARSE_BOUNDS)) for kind in _KINDS}
        self._labels: dict[tuple[object, ...], list[Histogram]] = {}
        """By principal and tables."""

    def took(self, decided: Iterable[Decided]) -> None:
        """Remember what the next publication will show."""
        for one in decided:
            record, outcome = one.submitted.record, one.outcome
            if is_commit(outcome) and isinstance(record, Transaction):
                labels = self._labels_of(record)
                self._unshown.append((one.submitted.append_time_ms, labels))

    def _labels_of(self, record: Transaction) -> list[Histogram]:
        tables = [table for operation in record.operations if (table := target(operation))]
        key = (record.principal, *tables)
        found = self._labels.get(key)
        if found is None:
            named = {"principal": [record.principal], "table": map(format_table_id, tables)}
            found = []
            for kind, values in named.items():
                names, durations = self._by[kind]
                known = dict.fromkeys(names.of(value, is_new=True) for value in values)
                found += map(durations.of, known)
            if len(self._labels) >= SERIES_MAX:
                self._labels.clear()
            self._labels[key] = found
        return found

    def shown(self) -> None:
        """Count what was published just now."""
        if not self._unshown:
            return
        now, of_all = time.time(), [self._all.of(INDEX)]
        for append_time_ms, labels in self._unshown:
            seconds = now - append_time_ms / 1e3
            count_in(of_all, BOUNDS, seconds)
            count_in(labels, COARSE_BOUNDS, seconds)
        self._unshown = []
        staged = self._path.with_suffix(".tmp")
        # A full disk is no reason to stop for a metric: the next publication tells of all.
        with contextlib.suppress(OSError):
            staged.write_text(json.dumps(self._to_json()), encoding="utf-8")
            staged.replace(self._path)

    def _to_json(self) -> dict[str, Any]:
        by = {f"{kind}_steps": {INDEX: one.to_json()} for kind, (_, one) in self._by.items()}
        bounds = {"bounds": list(BOUNDS), "coarse_bounds": list(COARSE_BOUNDS)}
        return {**bounds, "steps": self._all.to_json(), **by}


_KINDS = ("table", "principal")


def noted_lateness(root: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what the keeper of a root's index counted, {} if there is nothing to read."""
    try:
        found = json.loads((Layout(root).folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("bounds") == list(BOUNDS) else {}
