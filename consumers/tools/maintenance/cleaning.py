"""`commitlog orphans`: lists unneeded files of all tables, of both formats, and removes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from commitlog import CommitLog
from commitlog.errors import Unavailable
from commitlog.model.table import DomainMap, parse_table_id
from commitlog.ports import Log
from consumers.runtime.progress import OnCount, Tally, untold
from consumers.tools.clocks import clock_difference
from consumers.tools.iceberg.leftovers import IcebergLeftovers
from consumers.tools.orphans.leftover import Leftover
from consumers.tools.orphans.orphans import Leftovers


def clean(
    log: Log,
    table: str | None,
    age_seconds: float,
    client: CommitLog | None = None,
    *,
    on_removed: Callable[[Leftover], None] = lambda leftover: None,
    on_progress: OnCount = untold,
) -> list[dict[str, Any]]:
    """List files unneeded for that long, of one table or of all; a client removes them too.

    Raises Unavailable if this machine's clock isn't right: files would seem old, or young.
    """
    if client is not None and age_seconds and (told := clock_difference(client)):
        raise Unavailable(f"nothing was removed: {told}")
    now_ms = time.time_ns() // 1_000_000
    newest = now_ms - age_seconds * 1000
    listed, tally = list[Leftover](), Tally(on_progress)
    removed = 0

    def count(one: Leftover) -> None:
        nonlocal removed
        removed += 1
        on_progress("files removed", removed)
        on_removed(one)

    for partition in _partitions(log, table):
        with closing(Leftovers(log, partition, tally=tally)) as leftovers:
            found = [one for one in leftovers.find(table) if one.since_ms <= newest]
            listed += found
            if client is not None:
                leftovers.remove(found, client, on_removed=count)
    if table is None and log.genesis().tables_root:
        with closing(IcebergLeftovers(log, tally=tally)) as iceberg:
            of_iceberg = [one for one, _ in iceberg.find() if one.since_ms <= newest]
            listed += of_iceberg
            if client is not None and of_iceberg:
                iceberg.remove(of_iceberg, client, on_removed=count)
    return [one.to_json(now_ms) for one in listed]


def _partitions(log: Log, table: str | None) -> Sequence[int]:
    """Return the partitions to look at."""
    if table is None:
        return range(log.partitions())
    return [DomainMap(log.genesis().domains).partition(parse_table_id(table))]
