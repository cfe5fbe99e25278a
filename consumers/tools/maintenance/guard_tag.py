"""A tag on each table's oldest version, which keeps Lance's own cleanup off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from commitlog.adapters.lance_refs import GUARD_TAG, guarded_version, line_of, versions_with_files
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.opening import is_there
from commitlog.core.tables.lance_tables import is_in


def keep_guard(info: TableInfo, tags: Callable[[], Any], *, is_on: bool) -> None:
    """Have the tag name the oldest version that has a file, or take it away.

    `tags` returns those of a dataset at the table's location that no other code uses. A branch gets
    none: its tags are its table's, and a name can be only one version's.
    """
    if line_of(info.location)[1]:
        return
    guarded = guarded_version(info.location)
    if not is_on:
        if guarded:
            tags().delete(GUARD_TAG)
        return
    if guarded and not is_in(guarded, info.deleted) and is_there(info.location, guarded):
        return
    found = versions_with_files(info.location)
    oldest = next((v for v in found if not is_in(v, info.deleted)), 0)
    if guarded and oldest:
        tags().update(GUARD_TAG, oldest)
    elif oldest:
        tags().create(GUARD_TAG, oldest)
