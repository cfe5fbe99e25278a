"""Which tables lack files after a restore, because no run of `backup` found these any more.

An earlier position may need a file that maintenance removed before the next run came. The log has
the table all the same, at a version that can't be read in whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from commitlog.adapters.places import plain
from commitlog.adapters.storage import store_for
from commitlog.core.partition.machine import Machine
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.table import format_table_id
from commitlog.ports import ArchivableLog
from consumers.tools.backup.cut import RestorePoint
from consumers.tools.moved_proof import state_at
from consumers.tools.verify.missing import files_of


@dataclass(frozen=True, slots=True)
class Lacking:
    """A Lance table whose newest version names files that aren't there."""

    table: str
    version: int
    rows: int
    """How many rows of it can't be read."""
    files: tuple[str, ...]


def lacking_in(
    log: ArchivableLog, root: Path, tables_root: str, ends: Mapping[int, RestorePoint]
) -> Iterator[Lacking]:
    """Look for the files of each partition's Lance tables, as they are where it was cut."""
    identity = log.identity()
    for number, end in ends.items():
        genesis = log.genesis(number)
        machine = state_at(log, genesis, identity, end.outcomes_end, end.sequence, root)
        yield from lacking(machine, tables_root)


def lacking(machine: Machine, tables_root: str) -> Iterator[Lacking]:
    """Look for the files of the newest version of each Lance table below a tables root.

    Raises what the store raises: OSError, or the error of its library.
    """
    below = f"{plain(tables_root)}/"
    for name, table in sorted(machine.tables.items()):
        if table.manifest is None or not plain(table.location).startswith(below):
            continue
        rows, gone = 0, list[str]()
        for encoded in table.manifest.fragments.values():
            fragment = DataFragment.FromString(encoded)
            header = table.manifest.header
            places = (header.place_of(table.location, *one) for one in files_of(fragment))
            found = [one for one in places if _is_gone(*one)]
            if found:
                rows += fragment.physical_rows - fragment.deletion_file.num_deleted_rows
                gone += (f"{location}/{path}" for location, path in found)
        if gone:
            yield Lacking(format_table_id(name), table.manifest.version, rows, tuple(gone))


def _is_gone(location: str, path: str) -> bool:
    return store_for(location).size(path) < 0
