"""What a snapshot says of itself once it is put upon another one: its parent, time and totals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from commitlog.core.iceberg.iceberg_table import Value
from commitlog.model.limits import DIGITS_MAX

_TOTALS = {
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}
_DIGITS = re.compile(rf"[0-9]{{1,{DIGITS_MAX}}}")
_OF_THE_LIST = ("manifests-kept", "manifests-replaced")
"""Counts of a summary that another list doesn't have."""


def renewed(snapshot: Value, before: Value | None, since_ms: int) -> dict[str, Any]:
    """Return a snapshot as it is upon another one, no earlier than a time."""
    after = dict(snapshot)
    if before is None:
        after["summary"] = dict(snapshot["summary"])
        return after
    after["parent-snapshot-id"] = before["snapshot-id"]
    after["timestamp-ms"] = max(snapshot["timestamp-ms"], before["timestamp-ms"], since_ms)
    after["summary"] = _summary(snapshot["summary"], summary_of(before))
    return after


def parent_of(snapshot: Value) -> int | None:
    """Return the snapshot before; some writers say -1 where there is none."""
    parent = snapshot.get("parent-snapshot-id", -1)
    try:
        return None if parent == -1 else int(parent)
    except (TypeError, ValueError, OverflowError):  # null, say, where it was registered so
        return None


def summary_of(snapshot: Value) -> Value:
    """Return what a snapshot says of its change: nothing, if it was registered without that."""
    summary = snapshot.get("summary")
    return summary if isinstance(summary, Mapping) else {}


def _summary(summary: Value, before: Value) -> dict[str, Any]:
    after = {name: value for name, value in summary.items() if name not in _OF_THE_LIST}
    for total, (more, less) in _TOTALS.items():
        known = (before.get(total), summary.get(more, "0"), summary.get(less, "0"))
        if total not in after:
            continue
        numbers = [int(one) for one in known if isinstance(one, str) and _DIGITS.fullmatch(one)]
        if len(numbers) == len(known):
            then, added, removed = numbers
            now = max(0, then + added - removed)
        if len(numbers) < len(known) or now >= 10**DIGITS_MAX:
            del after[total]
        else:
            after[total] = str(now)
    return after
