"""`commitlog backup PLACE --check`: would this backup restore? It reads all of it, and no log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from commitlog.adapters.storage import store_for
from commitlog.ports import RawRecord
from consumers.runtime.progress import OnCount, untold
from consumers.tools.backup import checkpoints
from consumers.tools.backup.cut import Heads, follow
from consumers.tools.backup.saved import (
    BadBackup,
    Chunk,
    SavedFile,
    SavedPartition,
    Store,
    check_copy,
    leftovers,
    need_backup,
    read_chunk,
    read_list,
)


@dataclass(slots=True)
class Checked:
    """What was read of a backup, and what is wrong with it."""

    place: str
    log: str
    made_at_ms: int
    positions: dict[int, int] = field(default_factory=dict)
    """The last outcome of each partition, by `backup.json`."""
    records: int = 0
    files: int = 0
    bytes: int = 0
    damage: list[str] = field(default_factory=list)
    """Each file that is gone or isn't what was written, in words."""
    leftovers: list[str] = field(default_factory=list)
    """Half written files of runs that were killed."""


def check(place: str, on_progress: OnCount = untold) -> Checked:
    """Read every file of a backup and compare it with what was written.

    Raises BadBackup if there is none; what is wrong with its files is in the result.
    """
    store = store_for(place)
    backup = need_backup(store, place)
    done = Checked(place, backup.log, backup.made_at_ms)
    for saved in backup.partitions:
        done.positions[saved.partition] = saved.sequence
        _check_records(store, saved, done, on_progress)
    files: dict[str, SavedFile] = {}
    for path in backup.file_lists:
        try:
            files |= {one.path: one for one in read_list(store, path)}
        except BadBackup as error:
            done.damage.append(f"{error}: the files that it names were not checked")
    for path, one in files.items():
        done.files += 1
        done.bytes += one.size
        try:
            check_copy(store, path, one)
        except BadBackup as error:
            done.damage.append(str(error))
        on_progress("files", done.files)
    done.leftovers = leftovers(store, files)
    done.damage += map(str, checkpoints.damage(place, len(backup.partitions)))
    return done


def _check_records(
    store: Store, saved: SavedPartition, done: Checked, on_progress: OnCount
) -> None:
    """Note what is wrong with a partition's records; with whole files, with their chain."""

    def read(chunks: list[Chunk]) -> Iterator[RawRecord]:
        for chunk in chunks:
            try:
                for raw in read_chunk(store, chunk):
                    done.records += 1
                    yield raw
            except BadBackup as error:
                done.damage.append(str(error))
            on_progress("records", done.records)

    before = len(done.damage)
    end = follow(read(saved.outcomes), saved.partition, Heads())
    is_whole = len(done.damage) == before
    if is_whole and (end.sequence, end.hash) != (saved.sequence, saved.hash):
        done.damage.append(
            f"the outcomes of partition {saved.partition} end with position {end.sequence} and"
            f" hash {end.hash[:16]}, where backup.json has {saved.sequence} and {saved.hash[:16]}"
        )
    for _ in read(saved.transactions):
        pass
