"""Sees that the tables which a checkpoint knows are where they belong, before a leader starts."""

from __future__ import annotations

from pathlib import Path

from commitlog.adapters.places import bindings, is_moved
from commitlog.adapters.storage import local_path
from commitlog.core.partition.machine import Machine
from commitlog.model.table import format_table_id
from commitlog.ports import Log
from consumers.partition.checkpoint import Checkpoints
from consumers.runtime.places import RootMoved, check_place

NAMED_MAX = 5


def check_all(log: Log, root: Path) -> None:
    """Raise unless the log's tables are where they belong; mark their root if it has no mark yet.

    Raises as `check_place` and `check_tables` do.
    """
    check_place(log)
    check_tables(log, root)


def check_tables(log: Log, root: Path) -> int:
    """Raise unless the tables that the root's checkpoints know are where they belong; count them.

    What came after a checkpoint may have no folder yet, so it isn't looked for.

    Raises:
        RootMoved: a table's folder is gone, or its files name a place of before.
        WrongLog: a checkpoint is another log's.
        CorruptLog: a checkpoint is damaged.
    """
    count = 0
    for partition in range(log.partitions()):
        saved = Checkpoints(root, log.identity(), log.genesis(partition)).load()
        if saved is not None:
            count += len(saved.machine.tables) + len(saved.machine.iceberg.tables)
            check_followed(saved.machine)
            _check_folders(saved.machine)
    return count


def check_followed(machine: Machine) -> None:
    """Refuse tables whose files name places that are bound to others: who reads them goes there.

    Raises:
        RootMoved: there are some.
    """
    if not bindings():
        return
    found = [name for name, one in machine.iceberg.tables.items() if is_moved(one.location)]
    for name, table in machine.tables.items():
        bases = table.manifest.header.message.base_paths if table.manifest is not None else ()
        if any(is_moved(base.path) for base in bases):
            found.append(name)
    if found:
        raise RootMoved(
            f"{_named(found)} can't be moved by binding places: Iceberg's metadata, and manifests"
            " of shallow clones and branches, name absolute places. Link the old place to the new"
            " one (ln -s NEW OLD) and leave --places out. Or start at the old place, keep what you"
            " need elsewhere (a deep clone; a copy of an Iceberg table's rows), and drop them"
        )


def _check_folders(machine: Machine) -> None:
    """Refuse tables whose local folders aren't there."""
    gone = []
    for name, table in machine.tables.items():
        folder = local_path(table.location) if table.manifest is not None else None
        if folder is not None and not folder.is_dir():
            gone.append((name, folder))
    if gone:
        raise RootMoved(
            f"{_named([name for name, _ in gone])}: no files are there, as in {gone[0][1]}. Put"
            " them back (`commitlog restore`), or name the place where they are now"
            " (--places OLD=NEW); to go on without them, make their folders"
        )


def _named(names: list[tuple[str, ...]]) -> str:
    shown = ", ".join(map(format_table_id, sorted(names)[:NAMED_MAX]))
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{'table' if len(names) == 1 else 'tables'} {shown}{more}"
