"""Fresh reads: a table with the rows that are accepted and not applied yet.

The newest version is cloned without its files into a folder of this process, and the writes that
wait are applied there as a row writer will apply them. So a fresh read equals what a later version
holds, and it is a dataset of Lance's like any other, only that it can't be written.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import lance

from commitlog.adapters.storage import store_for
from commitlog.adapters.temporary_folders import new_folder, use_folder
from commitlog.client.accepted.row_application import prepare_group
from commitlog.client.accepted.row_reading import Given, read_writes
from commitlog.client.accepted.row_tail import AcceptedWrite, Tail, Waiting, accepted
from commitlog.client.leader.repeats import outcomes_before, version_made
from commitlog.client.leader.runtime import Runtime
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.host import Host
from commitlog.client.rows.opening import materialize
from commitlog.client.rows.read_only import ReadOnlyDataset
from commitlog.client.rows.row_groups import RowsUnusable, Write, base_scan
from commitlog.codecs.manifest_file import decode_manifest
from commitlog.core.rows.deciding import dropped_columns
from commitlog.errors import InvalidRequest, NoSuchVersion, Unavailable
from commitlog.lancepb.file_pb2 import Field
from commitlog.model.limits import ROWS_PENDING_MAX
from commitlog.model.operations import WriteRows
from commitlog.model.table import TableId

TRIES_MAX = 20
PAUSE_SECONDS = 0.05


class FreshDataset(ReadOnlyDataset):
    """A table as of a moment, with what was accepted by then; it can only be read."""

    what = "a fresh view"
    advice = "Write through log.open(table) without fresh=True"
    position: int
    """The view's position in the log: given again, it makes the same view."""
    _first: FreshDataset
    """The view that this one is a copy of: the folder is removed with it."""

    def __copy__(self) -> Self:
        """Return a view of the same folder, which stays as long as one of them is used."""
        made = super().__copy__()
        made.position, made._first = self.position, self
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel with the position; the folder has to be there when it arrives."""
        _, state = super().__reduce__()  # type: ignore[no-untyped-call]
        return _received, (self.position, state)


def _received(position: int, state: tuple[Any, ...]) -> FreshDataset:
    view = cast(FreshDataset, FreshDataset.__deserialize__(*state))
    view.position = position
    use_folder(Path(view.uri).parent, view)
    return view


def open_fresh(log: Host, table: TableId, position: int | None = None) -> FreshDataset:
    """Return a table with all that is accepted by now, or was as of a position."""
    for _ in range(TRIES_MAX):
        partition = log.runtime().domains.partition(table)
        asked = {"table": list(table), "limit": ROWS_PENDING_MAX, "position": position or 0}
        found = log.runtime().request(partition, "rows_pending", **asked)
        info = log.describe(table, fresh=True, readable=True)
        waiting = Waiting.of(found[0]) if found else None
        is_same = waiting is not None and waiting.incarnation == info.incarnation
        if waiting is None or not is_same:
            time.sleep(PAUSE_SECONDS)
            continue
        if position is not None or not found[0]["is_settled"]:
            # What is decided and not acknowledged yet is left out by reading the log.
            return _as_of(log, info, partition, found[0], position or found[0]["position"])
        if found[0]["version"] > info.version:
            time.sleep(PAUSE_SECONDS)
            continue
        at_head = found[0]["version"] == info.version
        dataset = log.opened.plain(info, found[0]["version"])
        if not at_head and dataset.lance_schema != info.lance_schema:
            continue  # its columns changed just now
        known = _tail(log.runtime(), partition, waiting)
        writes = accepted(waiting, known, info.location)
        return _view(info, dataset, writes, found[0]["position"])
    raise Unavailable(
        f"the table {'$'.join(table)} changed too often while it was being read; make the "
        "same call again"
    )


def _as_of(
    log: Host, info: TableInfo, partition: int, found: Mapping[str, Any], position: int
) -> FreshDataset:
    """Return a table as of a position, from what the log has up to there."""
    applied = found["applied_at"]
    if position > found["position"] or applied is None:
        problem = "is in the future" if applied is not None else "is too long ago for a fresh view"
        raise InvalidRequest(
            f"position {position} {problem}: the log's position is {found['position']}",
            field="position",
            value=position,
            advice="Give the position of a fresh view, or the sequence of an outcome",
        )
    version, waiting, changes = 0, [], {}
    for outcome in outcomes_before(log.runtime().log, partition, position):
        if version and outcome.sequence <= applied:
            break
        made = version_made(outcome, info.incarnation)
        version = version or made
        if made and any(result.operation in _OF_COLUMNS for result in outcome.results):
            changes[outcome.sequence] = made
        is_new = outcome.answers is None and outcome.sequence > applied
        written = tuple(
            number
            for number, result in enumerate(outcome.results)
            if result.incarnation == info.incarnation and result.operation == WriteRows.__name__
        )
        if is_new and written:
            waiting.append((outcome.sequence, outcome.transaction_offset, written))
    if not version:
        raise NoSuchVersion(f"{info.name} had no version at position {position}")
    fields = _fields(log, info, version)
    then = replace(
        info, version=version, fields=tuple(one.SerializeToString() for one in fields.values())
    )
    pending = Waiting(info.table_id, info.incarnation, applied, tuple(reversed(waiting)))
    known = _tail(log.runtime(), partition, pending)
    writes = accepted(pending, known, info.location)
    for sequence, made in changes.items() if writes else ():
        gone = dropped_columns(_fields(log, info, made - 1), _fields(log, info, made))
        writes = [
            one._replace(is_stale=True) if one.sequence < sequence and _names(one, gone) else one
            for one in writes
        ]
    return _view(then, log.opened.plain(info, version), writes, position)


_OF_COLUMNS = frozenset({"Merge", "Project", "Overwrite", "Restore"})
"""Operations that may drop columns."""


def _fields(log: Host, info: TableInfo, version: int) -> Mapping[int, Field]:
    """Return the fields of a version's schema, by id."""
    path = materialize(log.runtime(), info, version)
    return decode_manifest(store_for(info.location).read(path))[0].header.fields


def _names(write: AcceptedWrite, columns: Set[int]) -> bool:
    return any(column.field_id in columns for column in write.operation.columns)


def _view(
    info: TableInfo, dataset: lance.LanceDataset, writes: Sequence[AcceptedWrite], position: int
) -> FreshDataset:
    folder = new_folder("commitlog-fresh-")
    place = str(folder.path / "view.lance")
    try:
        made = dataset.shallow_clone(place, dataset.version)
        here = replace(info, location=place, version=made.version)
        for group in _groups(here, writes):
            prepared = prepare_group(here, made, group, base_scan(here, group))
            if prepared is not None:
                made = lance.LanceDataset.commit(
                    made, prepared.operation, read_version=made.version
                )
                here = replace(here, version=made.version)
    except BaseException:
        folder.remove()
        raise
    made.__class__ = FreshDataset
    view = cast(FreshDataset, made)
    view.position = position
    folder.remove_with(view)
    return view


def _groups(info: TableInfo, writes: Sequence[AcceptedWrite]) -> Iterator[list[Write]]:
    """Yield the writes that can be applied, in groups of one key each.

    If they are too large together, the first half of them comes first, and so on.
    """
    given = [Given(one.operation, one.payload, one.is_stale) for one in writes]
    try:
        read = read_writes(info, given)
    except MemoryError:
        if len(writes) == 1:
            raise
        half = len(writes) // 2
        yield from _groups(info, writes[:half])
        yield from _groups(info, writes[half:])
        return
    group: list[Write] = []
    key: tuple[str, ...] = ()
    for write in read:
        if isinstance(write, RowsUnusable):
            continue  # a row writer refuses it by record
        own = write.operation.on
        if own and key and own != key:
            yield group
            group, key = [], ()
        key = key or own
        group.append(write)
    if group:
        yield group


_tails: weakref.WeakKeyDictionary[Runtime, dict[int, Tail]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _tail(runtime: Runtime, partition: int, waiting: Waiting) -> dict[int, Any]:
    """Return the transactions that wait; a reader is kept, since making one takes a while."""
    offsets = [offset for _, offset, _ in waiting.pending]
    if not offsets:
        return {}
    with _lock:
        tails = _tails.setdefault(runtime, {})
        tail = tails.setdefault(partition, Tail(runtime.log, partition))
        return dict(tail.read(offsets))
