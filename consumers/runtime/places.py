"""Makes sure that a log's tables are where the log says, before anything is written there.

A log records its tables root as an absolute place. If the folder was moved or copied, or a mount
is missing, a leader would write manifests to a place without data, and commits would split
between two places. So each tables root holds a mark per log: it is written when the log is made,
and looked for before a leader starts.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from commitlog.adapters.storage import local_path, store_for
from commitlog.core.tables.lance_tables import normalize_location
from commitlog.errors import CommitLogError
from commitlog.model.records import Genesis
from commitlog.ports import Log
from consumers.runtime.config import Config
from consumers.runtime.roots import RootUnusable

MARKS = "_commitlog/logs"


class RootMoved(CommitLogError):
    """The log's tables aren't where the log says: put them back, then start again."""


def writable_tables_root(config: Config) -> str:
    """Return where a new log's tables go, tried before the log records it.

    Raises:
        RootUnusable: it cannot be written.
    """
    root = config.need_tables_root()
    store, probe = store_for(root), f"{MARKS}/.probe-{uuid.uuid4()}"
    try:
        store.create(probe, b"")
        store.delete(probe)
    except OSError as error:
        raise RootUnusable(
            f"the tables root {root} cannot be written ({error.strerror or error}): choose another"
            " one with --tables-root, or change its permissions; no log was made"
        ) from error
    return root


def check_place(log: Log) -> None:
    """Raise unless the tables root holds the log's mark; write it where it is missing.

    Raises:
        RootMoved: the log has tables, and its folder is gone or empty.
        RootUnusable: it cannot be looked at or written.
    """
    genesis = log.genesis()
    root = genesis.tables_root
    if not root or is_in_place(log):
        return
    mark = json.dumps({"log": genesis.log, "log_id": genesis.log_id, "tables_root": root})
    try:
        store_for(root).create(_mark(genesis.log_id), f"{mark}\n".encode())
    except OSError as error:
        raise RootUnusable(f"{root} cannot be written: {error}") from error


def is_in_place(log: Log) -> bool:
    """Return True if the tables root holds the log's mark; a log that has none yet may get one.

    A log that was made before there were marks has its place as long as something is there.

    Raises:
        RootMoved: the log has tables, and its folder is gone or empty.
        RootUnusable: it cannot be looked at.
    """
    genesis = log.genesis()
    root = genesis.tables_root
    if _is_marked(root, genesis.log_id):
        return True
    folder = local_path(root)
    is_gone = folder is not None and not (folder.is_dir() and any(folder.iterdir()))
    if is_gone and _has_transactions(log):
        raise RootMoved(
            f"the tables of log {genesis.log!r} belong in {root}, and nothing is there: the folder"
            " was moved or deleted, or its disk isn't mounted. Put it back, or link the place where"
            " it is now (ln -s NEW OLD), then start again"
        )
    return False


def check_own_place(genesis: Genesis, own: str, root: Path) -> None:
    """Raise if a root holds tables that its log looks for elsewhere.

    Raises:
        RootMoved: the root was moved or copied.
    """
    if not genesis.tables_root or _same(genesis.tables_root, own):
        return
    folder = local_path(own)
    if folder is None or not folder.is_dir():
        return
    is_ours = _is_marked(own, genesis.log_id)
    if not is_ours and (not any(folder.iterdir()) or _is_marked(genesis.tables_root)):
        return  # another machine's committer, with a root of its own
    recorded = genesis.tables_root
    raise RootMoved(
        f"{root} was moved or copied: its log says that the tables lie in {recorded}, and they are"
        f" in {own} too. Commits would be split between both places, so nothing was started. Move"
        f" the root back; or, if {recorded} is gone for good, link it (ln -s {own} {recorded}) and"
        f" start with --tables-root {recorded}"
    )


def _has_transactions(log: Log) -> bool:
    """Return True if a partition has more than the ProtocolVersion that it begins with."""
    for partition in range(log.partitions()):
        reader = log.read_transactions(partition)
        try:
            if reader.end_offset() > 1:
                return True
        finally:
            reader.close()
    return False


def _same(recorded: str, own: str) -> bool:
    if normalize_location(recorded) == normalize_location(own):
        return True
    ours, theirs = local_path(own), local_path(recorded)
    return (
        ours is not None
        and theirs is not None
        and ours.exists()
        and theirs.exists()
        and ours.samefile(theirs)
    )


def _mark(log_id: str) -> str:
    return f"{MARKS}/{log_id}.json"


def _is_marked(tables_root: str, log_id: str = "") -> bool:
    """Return True if a tables root holds the mark of a log, or of any log."""
    store = store_for(tables_root)
    try:
        if log_id:
            return store.size(_mark(log_id)) >= 0
        return any(True for _ in store.names(MARKS))
    except OSError as error:
        raise RootUnusable(f"{tables_root} cannot be read: {error}") from error
