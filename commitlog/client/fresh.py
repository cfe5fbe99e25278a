"""Fresh reads: a table with the rows that are accepted and not applied yet.

The newest version is cloned without its files into a folder of this process, and the writes that
wait are applied there as a row writer will apply them. So a fresh read equals what a later version
holds, and it is a dataset of Lance's like any other, only that it can't be written.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import lance

from commitlog.client.host import Host
from commitlog.client.row_application import prepare_group
from commitlog.client.row_groups import RowsUnusable, Write, read_write
from commitlog.client.row_tail import AcceptedWrite, Tail, Waiting, accepted
from commitlog.client.runtime import Runtime
from commitlog.client.tables import TableInfo
from commitlog.errors import InvalidRequest, Unavailable
from commitlog.model.limits import ROWS_PENDING_MAX
from commitlog.model.table import TableId

TRIES_MAX = 20
PAUSE_SECONDS = 0.05
_WRITES = (
    *("add_bases", "add_columns", "alter_columns", "cleanup_old_versions", "create_branch"),
    *("create_index", "create_scalar_index", "delete", "delete_config_keys", "drop_columns"),
    *("drop_index", "insert", "merge", "merge_insert", "replace_field_metadata"),
    *("replace_schema", "replace_schema_metadata", "restore", "truncate_table", "update"),
    *("update_config", "update_field_metadata", "update_metadata", "update_schema_metadata"),
)


class FreshDataset(lance.LanceDataset):
    """A table as of a moment, with what was accepted by then; it can only be read."""

    position: int
    """The position of the last write of rows that it has."""

    @property
    def optimize(self) -> NoReturn:
        """Refuse: nothing here is the table's."""
        _refuse("optimize")


def _refuse(name: str) -> NoReturn:
    raise InvalidRequest(
        f"a fresh view can't be written, and {name} writes",
        field="fresh",
        value=True,
        advice="Write through log.open(table) without fresh=True",
    )


def _refused(name: str) -> Any:
    def refuse(self: FreshDataset, *given: Any, **more: Any) -> NoReturn:
        _refuse(name)

    refuse.__name__ = name
    return refuse


for _name in _WRITES:
    setattr(FreshDataset, _name, _refused(_name))


def open_fresh(log: Host, table: TableId) -> FreshDataset:
    """Return a table with all that is accepted by now."""
    for _ in range(TRIES_MAX):
        partition = log.runtime().domains.partition(table)
        limit = {"table": list(table), "limit": ROWS_PENDING_MAX}
        found = log.runtime().request(partition, "rows_pending", **limit)
        info = log.describe(table, fresh=True, readable=True)
        waiting = Waiting.of(found[0]) if found else None
        is_same = waiting is not None and waiting.incarnation == info.incarnation
        if waiting is None or not is_same or found[0]["version"] > info.version:
            time.sleep(PAUSE_SECONDS)
            continue
        at_head = found[0]["version"] == info.version
        dataset = log.opened.plain(info, found[0]["version"])
        if not at_head and dataset.lance_schema != info.lance_schema:
            continue  # its columns changed just now
        known = _tail(log.runtime(), partition, waiting)
        return _view(info, dataset, waiting, accepted(waiting, known, info.location))
    raise Unavailable(f"the table {'$'.join(table)} changes all the time; make the same call again")


def _view(
    info: TableInfo,
    dataset: lance.LanceDataset,
    waiting: Waiting,
    writes: Sequence[AcceptedWrite],
) -> FreshDataset:
    folder = Path(tempfile.mkdtemp(prefix="commitlog-fresh-"))
    try:
        made = dataset.shallow_clone(str(folder / "view.lance"), dataset.version)
        here = replace(info, location=str(folder / "view.lance"), version=made.version)
        for group in _groups(here, writes):
            prepared = prepare_group(here, made, group)
            if prepared is not None:
                made = lance.LanceDataset.commit(
                    made, prepared.operation, read_version=made.version
                )
                here = replace(here, version=made.version)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    made.__class__ = FreshDataset
    view = cast(FreshDataset, made)
    view.position = writes[-1].sequence if writes else waiting.applied
    weakref.finalize(view, shutil.rmtree, str(folder), ignore_errors=True)
    return view


def _groups(info: TableInfo, writes: Sequence[AcceptedWrite]) -> list[list[Write]]:
    """Return the writes that can be applied, in groups of one key each."""
    groups: list[list[Write]] = []
    key: tuple[str, ...] = ()
    for one in writes:
        try:
            write = read_write(info, one.operation, one.payload)
        except RowsUnusable:
            continue  # a row writer refuses it by record
        own = one.operation.on
        if not groups or (own and key and own != key):
            groups.append([])
            key = ()
        key = key or own
        groups[-1].append(write)
    return groups


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
