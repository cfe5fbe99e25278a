"""Finds what holds rows, records that they are erased, and carries it out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from commitlog import CommitLog
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.rows import hashes_of, scan
from commitlog.core.catalogue.version_deletion import without
from commitlog.errors import InvalidRequest, Unavailable
from commitlog.model.operations import AlterProperties
from commitlog.model.table import parse_table_id
from commitlog.ports import ArchivableLog
from consumers.runtime.progress import OnProgress, untold
from consumers.tools.erasure.acts import (
    SAID,
    Position,
    RecordedErasure,
    act_in,
    done_in,
    property_of,
)
from consumers.tools.erasure.carrying import Carrying, Copy, OnStep, Places, erased_by
from consumers.tools.erasure.older import version_with
from consumers.tools.erasure.writes import TableWrites, decided_in

APPLY_SECONDS = 60.0
ACT_SECONDS = 600.0
POLL_SECONDS = 0.1
REASON_CHARACTERS = 1_000


@dataclass(slots=True)
class Erasure:
    """What one run found and did."""

    table: str
    rows: int = 0
    """Rows of the newest version that it deleted, or would."""
    writes: int = 0
    """Writes whose rows it takes out of the log, or would."""
    unreadable: int = 0
    """Writes whose rows can't be read, so what they hold is unknown."""
    versions: int = 0
    """Older versions, which go as well."""
    older: int = 0
    """The newest older version that has such rows, if the newest one and the log have none."""
    record: int = 0
    """The position of the act; 0: there was nothing new to erase."""
    copies: list[Copy] = field(default_factory=list)
    """What was carried out; empty in a dry run."""

    @property
    def is_done(self) -> bool:
        """Whether no copy has what was erased."""
        return all(copy.is_gone for copy in self.copies)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object; in a dry run, `done` says that there is nothing to do."""
        copies = [{"copy": one.name, "gone": one.is_gone, "said": one.said} for one in self.copies]
        names = ("table", "rows", "writes", "unreadable", "versions", "older", "record")
        is_due = not self.copies and bool(self.rows or self.writes or self.older)
        found = {name: getattr(self, name) for name in names}
        return {"done": self.is_done and not is_due, **found, "copies": copies}


def erase(
    client: CommitLog,
    open_log: Callable[[], ArchivableLog],
    table: str | Sequence[str],
    where: str,
    places: Places,
    *,
    reason: str = "",
    dry_run: bool = False,
    on_step: OnStep = lambda step: None,
    on_progress: OnProgress = untold,
) -> Erasure:
    """Erase the rows of a Lance table for which a SQL predicate holds, wherever they are.

    All that was accepted before it begins. Without `where`, what was recorded before is carried
    out. `open_log` connects to the log, together with the archive in its root. Killed anywhere, it
    is called again; each of its steps looks at what is there.

    Raises:
        InvalidTransaction: the predicate isn't SQL over the table's columns.
        InvalidRequest: the reason is too long, or there is neither a predicate nor an erasure to
            continue.
        Unavailable: writes to the table wait, and no row writer applies them.
    """
    info = client.describe(parse_table_id(table), fresh=True, readable=True)
    if len(reason) > REASON_CHARACTERS:
        raise InvalidRequest(
            f"the reason has {len(reason):,} characters",
            field="reason",
            value=reason[:40],
            advice=f"Use at most {REASON_CHARACTERS:,}",
        )
    found = Erasure(info.name)
    on_step("reading the log's records of erasures")
    acts, done = recorded(client, open_log, info, on_progress)
    if where:
        on_step("searching the newest version and the log's writes")
        fresh, writes = _look(client, open_log, info, where, found, on_progress)
        named = erased_by(acts)
        new = {at for at in writes if at.operation not in named.get(at.sequence, ())}
        found.writes = len(new)
        goes_on = bool(acts) and acts[-1].sequence > done  # older versions go by that act
        if not (found.rows or new or goes_on):
            on_step("searching older versions")
            found.older = version_with(client, fresh, where, on_progress)
        if dry_run:
            return found
        if found.rows or new or found.older:
            on_step("appending the record")
            found.record = _record(client, fresh, where, reason, new, has_rows=bool(found.rows))
            acts, done = recorded(client, open_log, info, on_progress)
    elif not acts:
        raise InvalidRequest(
            f"no erasure of {info.name} is recorded, so there is none to continue",
            field="where",
            value=where,
            advice="Name the rows with a predicate (--where)",
        )
    elif dry_run:
        return found
    carrying = Carrying(client, open_log, info, places, on_step)
    found.copies = carrying.run(acts, done)
    return found


def recorded(
    client: CommitLog,
    open_log: Callable[[], ArchivableLog],
    info: TableInfo,
    on_progress: OnProgress = untold,
) -> tuple[list[RecordedErasure], int]:
    """Return the acts on a table, and the last one that its own files are done with."""
    acts: list[RecordedErasure] = []
    done = 0
    with closing(open_log()) as log:
        partition = client.runtime().domains.partition(info.table_id)
        for decided in decided_in(log, partition, on_progress):
            made = {result.incarnation for result in decided.outcome.results}
            if info.incarnation not in made:
                continue
            done = max(done, done_in(decided))
            act = act_in(decided)
            acts += [act] if act is not None else []
    return acts, done


def _look(
    client: CommitLog,
    open_log: Callable[[], ArchivableLog],
    info: TableInfo,
    where: str,
    found: Erasure,
    on_progress: OnProgress,
) -> tuple[TableInfo, set[Position]]:
    """Find such rows in the newest version, once all that was accepted is in it, and in the log."""
    _await_rows(client, info)
    info = client.describe(info.table_id, fresh=True, readable=True)
    rows = scan(client.opened.newest(info), list(info.primary_key), where, info)
    keys = set(hashes_of(info, info.primary_key, rows)) if info.primary_key else set()
    found.rows = rows.num_rows
    found.versions = sum(b - a + 1 for a, b in without([(1, info.version - 1)], info.deleted))
    others = {one.incarnation for one in client.tables()} - {info.incarnation}
    with closing(open_log()) as log:
        partition = client.runtime().domains.partition(info.table_id)
        held = TableWrites(log, partition, info, others).find(where, keys, on_progress)
    found.unreadable = held.unreadable
    return info, held.writes


def _await_rows(client: CommitLog, info: TableInfo) -> None:
    """Wait until what is accepted by now is applied."""
    runtime, deadline = client.runtime(), time.monotonic() + APPLY_SECONDS
    partition = runtime.domains.partition(info.table_id)
    last = 0
    while True:
        [waiting] = runtime.request(partition, "rows_pending", table=list(info.table_id))
        last = last or waiting["position"]
        if not any(sequence <= last for sequence, *_ in waiting["pending"]):
            return
        if time.monotonic() > deadline:
            raise Unavailable(
                f"writes to {info.name} have waited {APPLY_SECONDS:g} s for a row writer; nothing"
                " was erased. Start one (`commitlog rows`), then run this again"
            )
        time.sleep(POLL_SECONDS)


def _record(
    client: CommitLog,
    info: TableInfo,
    where: str,
    reason: str,
    writes: set[Position],
    *,
    has_rows: bool,
) -> int:
    """Delete the rows and name the writes in one transaction; return its position."""
    properties = dict([property_of(reason, writes)])
    if has_rows:
        outcome = client.delete(
            info.table_id, where, said=SAID, properties=properties, timeout=ACT_SECONDS
        )
    else:
        ticket = client.submit(None, AlterProperties(info.table_id), properties=properties)
        outcome = ticket.result(ACT_SECONDS)
    return outcome.raise_for_conflict().sequence
