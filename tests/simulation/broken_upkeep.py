"""Broken maintenance: simulation has to notice each of them, too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from pyroaring import BitMap

from commitlog.adapters import lance_private
from consumers.tools.orphans.orphans import Leftovers

Break = Callable[[], AbstractContextManager[Any]]

_first_reserved = lance_private.first_reserved_id
_remove_of_table = Leftovers._remove_of_table


def _removed_at_once(
    self: Leftovers, life: Any, leftovers: Any, log: Any, on_removed: Any, go_on: Any
) -> bool:
    """Remove files, and say so behind that."""
    self._delete(life, leftovers, on_removed, go_on)
    return _remove_of_table(self, life, leftovers, log, on_removed, go_on)


def _next_ids(location: str, manifest_path: str, count: int) -> int:
    """Take the ids behind those that were reserved."""
    return _first_reserved(location, manifest_path, count) + count


BROKEN_UPKEEP: dict[str, Break] = {
    "versions with tags expire": lambda: mock.patch(
        "commitlog.client.upkeep.referenced_versions", return_value=frozenset()
    ),
    "versions that are held expire": lambda: mock.patch(
        "commitlog.core.catalogue.version_deletion.held_versions", return_value=[]
    ),
    "a Rewrite brings back rows that were deleted meanwhile": lambda: mock.patch(
        "commitlog.core.rebase.carried_rewrites._positions_gone", return_value=BitMap()
    ),
    "a compaction takes ids that it didn't reserve": lambda: mock.patch(
        "commitlog.adapters.lance_private.first_reserved_id", _next_ids
    ),
    "files are removed before the record": lambda: mock.patch.object(
        Leftovers, "_remove_of_table", _removed_at_once
    ),
}
