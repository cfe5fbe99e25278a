"""Judges tables beside maintenance: what is missing may have expired while it was looked for.

Before files of a version go, a record says so. So whatever was missing is judged once more with
what the log says by then, and where it moved on, the tables' newest versions of now are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from commitlog.core.tables.lance_tables import is_in
from commitlog.model.table import TableId, format_table_id
from consumers.tools.verify.findings import Problem
from consumers.tools.verify.versions import LifeManifests

AGAIN_MAX = 3
"""How often tables are looked at again whose versions expire while they are read."""


def settled(
    compare: Callable[[Collection[str] | None], Iterable[Problem]],
    read_on: Callable[[], bool],
    lives: Collection[LifeManifests],
    iceberg: Collection[TableId],
) -> list[Problem]:
    """Return the problems that are none of a log that has moved on.

    `compare` looks at all tables, or at those of some names; `read_on` reads the log to its present
    end and returns whether it can be followed and has more records. `lives` and `iceberg` are the
    tables of both formats, as of what was read.
    """
    found = list(compare(None))
    for _ in range(AGAIN_MAX):
        if not found or not read_on():
            return found
        found = list(compare({one.table for one in found}))
    read_on()
    return [one for one in found if not _is_gone(one, lives, iceberg)]


def _is_gone(
    problem: Problem, lives: Collection[LifeManifests], iceberg: Collection[TableId]
) -> bool:
    """Return True if a problem's table was dropped by now, or its version deleted."""
    shown = [one for one in lives if one.is_shown({problem.table})]
    if problem.version is None or not shown:
        return not shown and problem.table not in map(format_table_id, iceberg)
    return all(is_in(problem.version, one.deleted) for one in shown)
