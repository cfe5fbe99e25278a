"""Sees that the tables which a checkpoint knows are where they belong, before a leader starts."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from commitlog.adapters.places import bindings, bound, is_moved, moved_prefix, own_tables
from commitlog.adapters.reading import end_of
from commitlog.adapters.storage import local_path, store_for
from commitlog.client.history.roots import PARTITION, roots_of, use_roots
from commitlog.core.log.chain import ChainPlace
from commitlog.core.partition.machine import Machine
from commitlog.core.partition.snapshot import MACHINE
from commitlog.core.tables.lance_tables import Table
from commitlog.errors import CorruptLog
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.records import Genesis
from commitlog.model.table import format_table_id
from commitlog.ports import Log
from consumers.partition.checkpoints.checkpoint import Checkpoint, Checkpoints
from consumers.runtime.places import RootMoved, check_place, holds_tables, is_in_place

NAMED_MAX = 5
LOOKED_AT_MAX = 1_000
"""Tables whose newest file is looked for, those changed last: a bucket takes a request for each."""
LOOKS_AT_ONCE = 16


def find_roots(log: Log, root: Path | None, *, needs_checkpoint: bool = True) -> None:
    """Bind the places that the log says are relative to named roots, before files are opened.

    What a checkpoint in the root knows isn't read again. Who doesn't need it reads all of the log
    where it is damaged. The deployment's own tables root is the log's only if it holds the log's
    mark: it may be the root of a part that has no tables.

    Raises:
        InvalidSettings: nothing says where one of these roots is.
        WrongLog: the checkpoint is another log's.
        CorruptLog: what is read of it is damaged.
    """
    saved = None
    if root is not None:
        # The log's own properties are there: to read all its tables takes seconds.
        try:
            saved = Checkpoints(root, log.identity(), log.genesis(PARTITION)).load(MACHINE)
        except CorruptLog:
            if needs_checkpoint:
                raise
    if saved is None or saved.outcome_offset < 0:
        named = roots_of(log)
    else:
        chain = saved.chain
        place = ChainPlace(chain.sequence, saved.outcome_offset + 1, chain.epoch, chain.hash)
        named = roots_of(log, saved.machine.catalogue.namespaces.get((), ()), place)
    settle_roots(log.genesis(), named)


def settle_roots(genesis: Genesis, named: Mapping[str, str]) -> None:
    """Bind what is relative to named roots, the own tables root among them if it holds the log's.

    Raises InvalidSettings if nothing says where one of these roots is.
    """
    use_roots(named, has_tables=bool(named) and holds_tables(genesis, own_tables(), named))


def check_all(log: Log, root: Path, known: Mapping[int, Checkpoints] | None = None) -> None:
    """Raise unless the log's tables are where they belong; mark their root if it has no mark yet.

    Who loads a partition's checkpoint afterwards gives it as `known`, so that it is read once.

    Raises as `check_place` and `check_tables` do.
    """
    is_in_place(log)
    check_tables(log, root, known)
    check_place(log)  # it marks what has no mark: only what holds the tables


def check_tables(log: Log, root: Path, known: Mapping[int, Checkpoints] | None = None) -> int:
    """Raise unless the tables that the root's checkpoints know are where they belong; count them.

    What came after a checkpoint may have no folder yet, so it isn't looked for.

    Raises:
        RootMoved: a table's folder is gone, or its files name a place of before.
        WrongLog: a checkpoint is another log's.
        CorruptLog: checkpoints are damaged; it names all of them.
    """
    count = 0
    damaged: list[str] = []
    for partition in range(log.partitions()):
        kept = (known or {}).get(partition)
        kept = kept or Checkpoints(root, log.identity(), log.genesis(partition))
        try:
            saved = kept.look()
        except CorruptLog as error:
            damaged.append(str(error))
            continue
        if saved is not None:
            count += len(saved.machine.tables) + len(saved.machine.iceberg.tables)
            check_followed(saved.machine)
            _check_folders(saved)
            if _is_current(log, partition, saved):
                _check_files(saved.machine)
    if damaged:
        raise CorruptLog("; ".join(damaged))
    return count


def _is_current(log: Log, partition: int, saved: Checkpoint) -> bool:
    """Return True if nothing came after a checkpoint: heads of before may have lost files since."""
    end = end_of(log.read_outcomes(partition, saved.outcomes_position))
    return end <= saved.outcomes_position


def _check_files(machine: Machine) -> None:
    """Refuse tables at a bound place that lack their newest data file, as an older copy does."""
    moved = [(n, t) for n, t in machine.tables.items() if t.manifest and is_moved(t.location)]
    moved.sort(key=lambda one: one[1].changed_at, reverse=True)
    newest = {name: (table.location, _newest_file(table)) for name, table in moved[:LOOKED_AT_MAX]}
    wanted = {name: place for name, place in newest.items() if place[1]}

    def is_gone(place: tuple[str, str]) -> bool:
        return store_for(place[0]).size(place[1]) < 0

    with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
        gone = [
            name
            for name, one in zip(wanted, pool.map(is_gone, wanted.values()), strict=True)
            if one
        ]
    if gone:
        location, path = wanted[gone[0]]
        raise RootMoved(
            f"{_named(gone)}: the newest data is missing, for example {path} in "
            f"{bound(location)}: this is an older or incomplete copy. Copy the rest, or name the "
            "place that has it (--places OLD=NEW); to continue without the data, create empty "
            "files in its place"
        )


def _newest_file(table: Table) -> str:
    """Return the path of a data file that the table's newest fragment has in its own location."""
    assert table.manifest is not None
    fragments = table.manifest.fragments
    if not fragments:
        return ""
    files = DataFragment.FromString(fragments[fragments.last_id]).files
    return next((f"data/{file.path}" for file in files if not file.HasField("base_id")), "")


def check_followed(machine: Machine) -> None:
    """Refuse tables whose files name places that are bound to others: readers would go there.

    Raises:
        RootMoved: there are some.
    """
    if not bindings():
        return
    places = {name: one.location for name, one in machine.iceberg.tables.items()}
    found = {name: place for name, place in places.items() if is_moved(place)}
    for name, table in machine.tables.items():
        bases = table.manifest.header.message.base_paths if table.manifest is not None else ()
        for base in bases:
            if is_moved(base.path):
                found[name] = base.path
    if found:
        old, new = moved_prefix(next(iter(found.values())))
        raise RootMoved(
            f"{_named(list(found))} can't be moved by binding places: Iceberg's metadata, and"
            " manifests of shallow clones and branches, name absolute places. Link the old place"
            f" to the new one (ln -s {new} {old}), and say that it is where it was"
            f" (--places {old}={old}). Or start at the old place, keep what you need elsewhere (a"
            " deep clone; a copy of an Iceberg table's rows), and drop them"
        )


def _check_folders(saved: Checkpoint) -> None:
    """Refuse tables whose local folders aren't there."""
    gone = []
    # Not even their first versions had files yet.
    new = {owed.incarnation for owed in saved.owed if not owed.base}
    for name, table in saved.machine.tables.items():
        has_files = table.manifest is not None and table.incarnation not in new
        folder = local_path(table.location) if has_files else None
        # Writers make the folder anew, for their data, where a disk isn't mounted.
        if folder is not None and not (folder / "_versions").is_dir():
            gone.append((name, folder))
    if gone:
        raise RootMoved(
            f"{_named([name for name, _ in gone])}: the files are missing, for example in "
            f"{gone[0][1]}. Put them back (`commitlog restore`), or name the place where "
            "they are now (--places OLD=NEW); to continue without them, create their "
            "folders, and _versions in each"
        )


def _named(names: list[tuple[str, ...]]) -> str:
    shown = ", ".join(map(format_table_id, sorted(names)[:NAMED_MAX]))
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{'table' if len(names) == 1 else 'tables'} {shown}{more}"
