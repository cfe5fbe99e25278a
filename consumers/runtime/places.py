"""Makes sure that a log's tables are where the log says, before anything is written there.

A log records its tables root as the place that it was at first, and a deployment may bind that to
another one. If a folder was moved or copied without that, or a mount is missing, a leader would
write manifests to a place without data, and commits would split between two places. So each tables
root holds a mark per log: it is written when the log is made, and looked for before a leader
starts. `consumers.partition.checkpoints.table_places` looks for the tables themselves.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commitlog.adapters import disk
from commitlog.adapters.places import TABLES, bound, is_moved, named_here
from commitlog.adapters.reading import end_of
from commitlog.adapters.storage import local_path, store_for
from commitlog.core.tables.lance_tables import normalize_location
from commitlog.errors import CommitLogError, WrongLog
from commitlog.model.records import Genesis
from commitlog.ports import Log
from consumers.runtime.config import Config, ConfigurationError
from consumers.runtime.endpoints import read_endpoints
from consumers.runtime.patience import told_if_slow
from consumers.runtime.roots import RootUnusable, unusable

logger = logging.getLogger(__name__)

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
        said = f"the tables root {root} cannot be written ({error.strerror or error})"
        advice = "choose another one with --tables-root, or change its permissions"
        raise unusable(f"{said}: {advice}; no log was made", error) from error
    return root


def check_tables_root(config: Config, genesis: Genesis) -> None:
    """Raise ConfigurationError if the settings name another tables root than a log has."""
    own = genesis.tables_root
    if not config.tables_root or not own:
        return
    if not _same(bound(own), given := config.need_tables_root()):
        where = f"{bound(own)}, to which {own} is bound" if is_moved(own) else own
        raise ConfigurationError(
            f"the tables root of log {genesis.log!r} is {where}, not {given}, which"
            f" {config.sources['tables_root']} says: it is fixed when a log is made. Leave that"
            f" out; or, if the tables were moved there, name both: --places"
            f" {shlex.quote(f'{own}={given}')}"
        )


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
        raise unusable(f"{root} cannot be written: {error}", error) from error


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
    if _is_empty(root) and has_transactions(log):
        where = f"{bound(root)}, to which {root} is bound" if is_moved(root) else root
        raise RootMoved(
            f"the tables of log {genesis.log!r} belong in {where}, and nothing is there: "
            "they were moved or deleted, or a disk isn't mounted. Put them back, or name "
            f"their new place: --places {named_here().get(root, root)}=NEW"
        )
    return False


def _is_empty(root: str) -> bool:
    """Return True if nothing is at a tables root."""
    folder = local_path(root)
    if folder is not None:
        return not (folder.is_dir() and any(folder.iterdir()))
    try:
        return next(store_for(root).walk(), None) is None
    except OSError as error:
        raise unusable(f"{bound(root)} cannot be read: {error}", error) from error


def is_marked(genesis: Genesis) -> bool:
    """Return True if the log's tables root is there, with its mark; RootUnusable."""
    return bool(genesis.tables_root) and _is_marked(genesis.tables_root, genesis.log_id)


def staying(genesis: Genesis) -> contextlib.AbstractContextManager[None]:
    """Have no other folder taken for a tables root of this machine, as long as it has its mark now.

    Where a disk isn't mounted any more, what is found and written in the folder that is there
    instead can't be seen once the disk is back.
    """
    folder = local_path(genesis.tables_root) if genesis.tables_root else None
    mark = "" if folder is None else os.fspath(folder / _mark(genesis.log_id))
    if folder is None or not os.path.exists(mark):
        return contextlib.nullcontext()
    return disk.expecting(os.fspath(folder), mark)


def holds_tables(genesis: Genesis, own: str, named: Mapping[str, str]) -> bool:
    """Return True if a tables root is where a log's is, that is bound to the root `tables`.

    What else may be bound to that root has no mark, so it counts as there.
    """
    root = genesis.tables_root
    prefix = next((place for place, name in named.items() if name == TABLES), "")
    if not own or not prefix:
        return False
    is_of_log = root == prefix or root.startswith(f"{prefix}/")
    return not is_of_log or _is_marked(own + root[len(prefix) :], genesis.log_id)


def noted_logs(tables_root: str) -> list[tuple[str, str]]:
    """Return what the marks in a tables root note: ids of logs, with the tables roots they record.

    Raises RootUnusable if it cannot be read.
    """
    store = store_for(tables_root)
    try:
        marks = [
            json.loads(store.read(f"{MARKS}/{name}"))
            for name in store.names(MARKS)
            if name.endswith(".json")
        ]
        return [(str(mark["log_id"]), str(mark["tables_root"])) for mark in marks]
    except OSError as error:
        raise unusable(f"the marks in {tables_root} cannot be read: {error!r}", error) from error
    except (ValueError, KeyError) as error:
        raise RootUnusable(f"the marks in {tables_root} cannot be read: {error!r}") from error


def logs_above(tables_root: str) -> dict[str, str]:
    """Return the ids of the logs whose marks are in folders above a tables root, and which folder.

    Where nothing may be read, none is known of.
    """
    found: dict[str, str] = {}
    folder = normalize_location(tables_root)
    while (folder := folder.rpartition("/")[0]) and not folder.endswith(":/"):
        with contextlib.suppress(RootUnusable, CommitLogError):
            found |= dict.fromkeys((log_id for log_id, _ in noted_logs(folder)), folder)
    return found


def check_own_place(recorded: str, log_id: str, own: str, root: Path) -> None:
    """Raise if a root holds tables that its log looks for elsewhere.

    Raises:
        RootMoved: the root was moved or copied.
    """
    if not recorded or _same(bound(recorded), bound(own)):
        return
    folder = local_path(own)
    if folder is None or not folder.is_dir():
        return
    is_ours = _is_marked(own, log_id)
    if not is_ours and (not any(folder.iterdir()) or _is_marked(recorded)):
        return  # another machine's committer, with a root of its own
    raise RootMoved(
        f"{root} was moved or copied: its log says that the tables are in "
        f"{bound(recorded)}, but {own} has them too. Commits would be split between both "
        f"places, so nothing was started. To work with what is in {own}, start with --places "
        f"{shlex.quote(f'{recorded}={own}')}, and then run `commitlog places bind "
        f"{shlex.quote(recorded)}`: that spares you the setting. Or move the root back"
    )


def another_log(what: str, found: Mapping[str, Any], here: Mapping[str, Any]) -> WrongLog | None:
    """Return the error of something that was made from another log; None if it is of this one.

    What `found` doesn't name isn't compared: older programs noted less.
    """
    differs = [
        f"{name} is {found[name]!r} there and {value!r} here"
        for name, value in here.items()
        if found.get(name, value) != value
    ]
    if not differs:
        return None
    names = [one.get("log", "?") for one in (found, here)]
    whose = f"log {names[0]!r}" if names[0] != names[1] else f"another log {names[0]!r}"
    return WrongLog(
        f"{what} belongs to {whose}, not to the log you are connected to "
        f"({'; '.join(differs)}): name its log (--log) and cluster, or the root of this log"
    )


def partitions_on(root: Path, log: Log) -> int:
    """Return how many partitions a log has, 0 if there is no such log.

    Raises WrongLog or RootMoved if it has no record, but the root says that it had some.
    """
    partitions = 0
    with contextlib.suppress(WrongLog):
        partitions = log.partitions()
        if log.last_outcome_records(0):
            return partitions
    check_unused(root, log.name)
    return partitions


def check_unused(root: Path, log: str) -> None:
    """Raise unless a new log may be made on a root: none was there whose cluster is gone.

    Raises:
        WrongLog: it is the root of logs with other names.
        RootMoved: it holds what a log of this name left.
    """
    left = [path for path in ("index.duckdb", "index") if (root / path).exists()]
    left += [str(path.relative_to(root)) for path in root.glob("checkpoints/*/*.json")]
    owners = set()
    for path in root.glob(f"tables/{MARKS}/*.json"):
        left.append(str(path.relative_to(root)))
        with contextlib.suppress(OSError, ValueError):
            owners.add(str(json.loads(path.read_text())["log"]))
    if left and owners and log not in owners:
        names = " and ".join(map(repr, sorted(owners)))
        raise WrongLog(
            f"{root} is the root of log {names}, and there is no log {log!r} yet: name that log by"
            " --log, or choose another root for a new one"
        )
    if left:
        noted = read_endpoints(root).get("bootstrap_servers")
        last = f" (--bootstrap-servers {noted}, where it was last)" if noted else ""
        raise RootMoved(
            f"{root} is the root of a log {log!r} ({', '.join(left[:3])}), but the cluster "
            "has no such log, or none of its records: the broker's disk was lost, or this is "
            f"another cluster. No log was made. Name the cluster that has it{last}; or move the "
            "root aside and "
            f"restore its backup: commitlog restore PLACE --root {shlex.quote(str(root))}"
            " --remains WHERE-IT-WAS-MOVED. For a new log, choose another root"
        )


def has_transactions(log: Log) -> bool:
    """Return True if a partition has more than the ProtocolVersion that it begins with."""
    return any(end_of(log.read_transactions(one)) > 1 for one in range(log.partitions()))


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

    def waits() -> str:
        return f"waiting for {tables_root}, where the tables are, which hasn't answered yet"

    try:
        with told_if_slow(logger.warning, waits):
            if log_id:
                return store.size(_mark(log_id)) >= 0
            return any(True for _ in store.names(MARKS))
    except OSError as error:
        raise unusable(f"{tables_root} cannot be read: {error}", error) from error
