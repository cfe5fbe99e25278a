"""Takes the rows of small writes out of the archive, once they are as old as a table's policy says.

What a write's record says stays: its columns, its counts, its key's name and the hash of its rows,
so the chain holds and every decision can be made again. Only rows that a version has go: what was
refused keeps its rows.

A record comes first, which sets a property of the table to the position through which its rows have
expired. A run that was killed after that is finished by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from commitlog import CommitLog
from commitlog.client.leader.tables import TableInfo
from commitlog.errors import Unavailable
from commitlog.model.names import REASON, ROWS_EXPIRED_THROUGH
from commitlog.model.operations import AlterProperties
from commitlog.ports import ArchivableLog
from consumers.tools.archive.proof import Archive
from consumers.tools.archive.row_notes import RowNotes, held_rows
from consumers.tools.archive.rows import take_out
from consumers.tools.archive.writer import ArchiveRun, give_up
from consumers.tools.clocks import clock_difference
from consumers.tools.erasure.acts import Position
from consumers.tools.maintenance.maintenance_policy import Policies

RECORD_SECONDS = 120.0
_DAY_MS = 86_400_000


@dataclass(slots=True)
class _Held:
    """A table whose rows may expire, and what the archive has of them."""

    info: TableInfo
    days: float
    """0: no more rows than those that have expired."""
    through: int
    """The position through which rows have expired."""
    writes: set[Position] = field(default_factory=set)
    """Applied writes whose rows are in the archive."""


def expire_rows(
    client: CommitLog,
    log: ArchivableLog,
    folder: Path,
    run: ArchiveRun,
    *,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> None:
    """Take out rows that are old enough, of one partition's segments that were given up.

    A segment's rows of one table go together, once the last outcome in it is old enough, so its
    file is rewritten once.

    Raises InvalidSettings if a table's policy isn't one, CorruptLog if a segment isn't what was
    archived, Unavailable if Kafka or the leader doesn't answer, or if a clock isn't right.
    """
    held = _tables(client, run.partition)
    if not held:
        return
    if told := clock_difference(client):
        raise Unavailable(f"no rows expired: {told}")
    kept = Archive.open(folder, log.identity(), log.genesis(run.partition))
    notes = RowNotes(kept)
    _look(kept, notes, held, now_ms())
    gone: dict[int, set[int]] = {}
    for one in held.values():
        new = [at for at in one.writes if at.sequence > one.through]
        if new:
            run.expired.append(_record(client, one, max(new).sequence, len(new)))
        for at in one.writes:
            gone.setdefault(at.sequence, set()).add(at.operation)
    take_out(kept, gone)
    # The log knows segments by their digests: it is told the new ones, also after a kill.
    give_up(log, run.partition, folder, ArchiveRun(run.partition), through=0)
    notes.save()


def _tables(client: CommitLog, partition: int) -> Mapping[str, _Held]:
    policies = Policies(client, {})
    policies.refresh()
    found = {}
    for info in client.tables():
        if client.runtime().domains.partition(info.table_id) != partition:
            continue
        days = policies.of(info).expire_rows_days
        said = info.properties.get(ROWS_EXPIRED_THROUGH, "")
        through = int(said) if said.isdecimal() else 0
        if days or through:
            found[info.incarnation] = _Held(info, days, through)
    return found


def _look(kept: Archive, notes: RowNotes, held: Mapping[str, _Held], now_ms: int) -> None:
    """Find the rows that are old enough, reading only segments that may have some.

    Segments that were given up are the first ones: all that was written in them is applied.
    """
    refused = notes.refused()
    given_up = [one for one in takewhile(lambda one: one.given_up, kept.segments)]
    ends = [(one.end.sequence, notes.of(one).newest_ms) for one in given_up]
    through = {
        name: max([0, *(end for end, ms in ends if one.days and ms < now_ms - one.days * _DAY_MS)])
        for name, one in held.items()
    }
    for segment in kept.segments:
        rows = notes.of(segment)
        wanted = {
            name: max(through[name], one.through)
            for name, one in held.items()
            if rows.held.get(name) and name not in rows.settled
        }
        if not any(end >= segment.first_sequence for end in wanted.values()):
            continue
        found = {name for name, end in wanted.items() if end < segment.end.sequence}
        for at, name in held_rows(kept, segment):
            if at.sequence <= wanted.get(name, 0) and at not in refused:
                held[name].writes.add(at)
                found.add(name)
        rows.settled += sorted(wanted.keys() - found)


def _record(client: CommitLog, one: _Held, through: int, writes: int) -> str:
    said = (ROWS_EXPIRED_THROUGH, str(through))
    operation = AlterProperties(one.info.table_id, upserts=(said,))
    reason = f"the rows of {writes:,} writes are older than {one.days:g} days"
    ticket = client.submit(None, operation, properties={REASON: reason})
    outcome = ticket.result(RECORD_SECONDS)
    outcome.raise_for_conflict()
    return f"{one.info.name}, through position {through}: {reason}; record {outcome.sequence}"
