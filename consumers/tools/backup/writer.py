"""`commitlog backup`: copies what is new of a running log and its tables, and reads it back.

The log's end is noted first, then files are copied: whatever an outcome names is there before the
outcome is, so a backup has every file of every version up to its position. A run that was killed
leaves `backup.json` as it was, and lists of what it copied: the next one copies only the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from commitlog.adapters.log_records import to_answered
from commitlog.adapters.places import named_here, plain
from commitlog.adapters.reading import read_to, record_at
from commitlog.adapters.storage import FileFound, local_path, sha256_of, store_for
from commitlog.errors import CorruptLog
from commitlog.ports import ArchivableLog, RawRecord
from consumers.runtime.locks import exclusive, taken
from consumers.runtime.places import is_in_place
from consumers.runtime.progress import OnCount, untold
from consumers.tools.archive.proof import PROOF
from consumers.tools.backup.checkpoints import FOLDER as CHECKPOINTS
from consumers.tools.backup.checkpoints import save_checkpoints
from consumers.tools.backup.saved import (
    ARCHIVE,
    NAME,
    TABLES,
    Backup,
    BadBackup,
    SavedFile,
    SavedPartition,
    Store,
    begun_lists,
    digest,
    files_of,
    follows,
    leftovers,
    part,
    read_chunk,
    read_list,
    write_checked,
    write_chunk,
    write_list,
)

CHUNK_RECORDS = 20_000
CHUNK_BYTES = 64 * 1024 * 1024
READ_SECONDS = 120.0
"""How long the cluster may deliver nothing of what it has."""
SAVE_SECONDS = 15.0
"""So much copying is lost at most if a run is killed."""
LOCK = f"{NAME}.lock"
SKIPPED = ("_quarantine",)
PARTS = frozenset({"log", "files", ARCHIVE, CHECKPOINTS, TABLES})
"""The folders of a backup."""


@dataclass(slots=True)
class Copied:
    """What one run did."""

    place: str
    positions: dict[int, int]
    """The last outcome of each partition that the backup has."""
    outcomes: int = 0
    transactions: int = 0
    files: int = 0
    bytes: int = 0
    files_in_all: int = 0
    checkpoint_files: int = 0
    gone: int = 0
    """Files that were deleted while they were copied, as maintenance does."""
    leftovers: int = 0
    """Half written files of runs that were killed, which were removed."""
    elsewhere: tuple[str, ...] = ()


def back_up(
    log: ArchivableLog, place: str, root: Path | None, on_progress: OnCount = untold
) -> Copied:
    """Copy what is new; the backup at `place` has all or nothing of it.

    Raises BadBackup if another log's backup is there, or something else, Unavailable while another
    run writes to it, and RootMoved if the tables aren't where they belong.
    """
    if log.genesis().tables_root:
        is_in_place(log)  # what isn't mounted would be left out, and the backup called whole
    store = part(place)
    if Backup.read(store, place) is None:
        _check_free(store, place)
    with _alone(place):
        return _copy_all(log, place, store, root, on_progress)


def _alone(place: str) -> AbstractContextManager[None]:
    """Keep other runs off a folder, from other machines too where its file system has locks."""
    folder = local_path(place)
    if folder is None:
        return nullcontext()
    folder.mkdir(parents=True, exist_ok=True)
    return exclusive(
        folder / LOCK,
        busy=f"another `commitlog backup` writes to {place}: wait for its end, or name another"
        " place",
        unlocked="let one backup run at a time",
    )


def is_being_written(place: str) -> bool:
    """Return True if a run writes to a folder now; of an object store nobody knows."""
    folder = local_path(place)
    if folder is not None:
        with suppress(OSError), open(folder / LOCK, "rb") as lock:
            return not taken(lock)
    return False


def _copy_all(
    log: ArchivableLog, place: str, store: Store, root: Path | None, on_progress: OnCount
) -> Copied:
    genesis = log.genesis()
    before = sha256_of(store.read(NAME)) if store.size(NAME) >= 0 else ""
    backup = Backup.read(store, place)
    if backup is None:
        backup = Backup(
            log=genesis.log,
            log_id=genesis.log_id,
            cluster_id=genesis.cluster_id,
            tables_root=genesis.tables_root,
            partitions=[],
        )
    elif backup.log_id != genesis.log_id:
        raise BadBackup(
            f"{place} has a backup of another log ({backup.log}, {backup.log_id}): name another"
            " place"
        )
    known = files_of(store, backup)
    left = leftovers(store, known)
    for path in left:
        store.delete(path)
    copied = Copied(place, {}, leftovers=len(left))
    elsewhere = set(backup.elsewhere)
    for number in range(log.partitions()):
        if number == len(backup.partitions):
            backup.partitions.append(SavedPartition(number))
        _check_goes_on(log, store, backup.partitions[number], place)
    # Before the log's end is looked for: a restored log goes at least as far.
    copied.checkpoint_files = save_checkpoints(place, root, log.partitions())
    for number, saved in enumerate(backup.partitions):
        # Outcomes first: the transactions that they answer are there by then.
        for count in _outcomes(log, store, saved, backup.tables_root, elsewhere):
            copied.outcomes += count
            on_progress("outcomes", copied.outcomes)
        for count in _transactions(log, store, saved):
            copied.transactions += count
            on_progress("transactions", copied.transactions)
        copied.positions[number] = saved.sequence
    begun = begun_lists(store, backup)
    files = _Files(
        place=place,
        known=known,
        begun=_in_lists(store, begun),
        copied=copied,
        on_progress=on_progress,
    )
    fresh = list(_listed(store, files.copy(backup.tables_root, root), begun))
    if fresh:
        backup.file_lists.append(write_list(store, fresh))
    backup.elsewhere = sorted(elsewhere)
    backup.roots = named_here()
    backup.made_at_ms = time.time_ns() // 1_000_000
    write_checked(store, NAME, backup.to_bytes(), over=before)
    for path in begun:
        store.delete(path)
    copied.files_in_all = len(known.keys() | {one.path for one in fresh})
    copied.elsewhere = tuple(backup.elsewhere)
    return copied


def _check_free(store: Store, place: str) -> None:
    """Raise BadBackup if a place has anything but what a first run that was killed left there."""
    for path in store.walk():
        if path.partition("/")[0] not in PARTS and not path.startswith(f"{NAME}."):
            raise BadBackup(
                f"{place} has something else in it ({path}): name an empty place, or one that has"
                " a backup of this log"
            )


def _check_goes_on(log: ArchivableLog, store: Store, saved: SavedPartition, place: str) -> None:
    """Raise BadBackup unless the log still has the last outcome record that was copied."""
    if not saved.outcomes:
        return
    last = saved.outcomes[-1].end_offset - 1
    *_, copied = read_chunk(store, saved.outcomes[-1])
    found = record_at(log.read_raw(saved.partition, last, is_transactions=False), last)
    if found is None or found[2:] != copied[2:]:
        raise BadBackup(
            f"partition {saved.partition} of the log doesn't have the record at offset {last} that"
            f" the backup at {place} ends with: the log was restored to an earlier time, or lost"
            " records. Keep that backup, and name another place for this log's"
        )


def _outcomes(
    log: ArchivableLog, store: Store, saved: SavedPartition, tables_root: str, elsewhere: set[str]
) -> Iterator[int]:
    """Copy outcomes; yield how many came with each file of them."""
    start = saved.outcomes[-1].end_offset if saved.outcomes else 0
    below = f"{plain(tables_root)}/"
    for records in _batches(log, saved.partition, start, is_transactions=False):
        saved.outcomes.append(write_chunk(store, f"log/{saved.partition}/outcomes", records))
        count = 0
        for raw in records:
            record = to_answered(saved.partition, *raw).record
            if not follows(record, saved.sequence, saved.hash):
                continue
            saved.sequence, saved.hash = record.sequence, record.hash.hex()
            saved.time_ms = record.time_ms
            count += 1
            places = (result.location for result in record.results)
            elsewhere |= {one for one in places if one and not plain(one).startswith(below)}
        yield count


def _transactions(log: ArchivableLog, store: Store, saved: SavedPartition) -> Iterator[int]:
    """Copy transactions; yield how many came with each file of them."""
    start = saved.transactions[-1].end_offset if saved.transactions else 0
    for records in _batches(log, saved.partition, start, is_transactions=True):
        saved.transactions.append(
            write_chunk(store, f"log/{saved.partition}/transactions", records)
        )
        yield len(records)


def records_of(
    log: ArchivableLog, partition: int, start: int = 0, *, is_transactions: bool
) -> Iterator[RawRecord]:
    """Yield what a topic has from an offset to its present end."""
    reader = log.read_raw(partition, start, is_transactions=is_transactions)
    return read_to(reader, silence_seconds=READ_SECONDS)


def _batches(
    log: ArchivableLog, partition: int, start: int, *, is_transactions: bool
) -> Iterator[list[RawRecord]]:
    """Yield what a topic has from an offset to its present end, some at a time."""
    batch: list[RawRecord] = []
    size = 0
    for one in records_of(log, partition, start, is_transactions=is_transactions):
        batch.append(one)
        size += len(one.value or b"")
        if len(batch) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _in_lists(store: Store, paths: Iterable[str]) -> dict[str, SavedFile]:
    """Return what runs that were killed had copied, as far as it can be read."""
    found: dict[str, SavedFile] = {}
    for path in paths:
        with suppress(BadBackup):
            found |= {one.path: one for one in read_list(store, path)}
    return found


def _listed(store: Store, files: Iterable[SavedFile], lists: list[str]) -> Iterator[SavedFile]:
    """Pass files on; list those that were copied by now, for the run after a killed one."""
    fresh: list[SavedFile] = []
    save_at = time.monotonic() + SAVE_SECONDS
    for one in files:
        fresh.append(one)
        if time.monotonic() >= save_at:
            lists.append(write_list(store, fresh))
            fresh, save_at = [], time.monotonic() + SAVE_SECONDS
        yield one


@dataclass(frozen=True, slots=True)
class _Files:
    """Copies the files that are new or others than before."""

    place: str
    known: Mapping[str, SavedFile]
    """What the backup has."""
    begun: Mapping[str, SavedFile]
    """What runs that were killed had copied."""
    copied: Copied
    on_progress: OnCount

    def copy(self, tables_root: str, root: Path | None) -> Iterator[SavedFile]:
        """Copy, and yield each."""
        if tables_root:
            source = store_for(tables_root)
            yield from self._copy_part(TABLES, source, source.files())
        if root is not None:
            source = store_for(str(root / ARCHIVE))
            yield from self._copy_part(ARCHIVE, source, _proofs_first(source))

    def _copy_part(
        self, name: str, source: Store, files: Iterable[FileFound]
    ) -> Iterator[SavedFile]:
        target, copied = part(self.place, name), self.copied
        for found in files:
            path = f"{name}/{found.path}"
            if _is_same(self.known.get(path), found) or not _is_wanted(found):
                continue
            before = self.begun.get(path)
            if _is_same(before, found) and target.size(found.path) == found.size:
                yield before
                continue
            try:
                sha256 = _copy(source, target, found.path)
            except FileNotFoundError:
                copied.gone += 1
                continue
            copied.files += 1
            copied.bytes += found.size
            self.on_progress("files", copied.files)
            yield SavedFile(path, found.size, found.modified_ms, sha256)


def _is_wanted(found: FileFound) -> bool:
    return not any(one in found.path.split("/") for one in SKIPPED)


def _is_same(before: SavedFile | None, found: FileFound) -> TypeGuard[SavedFile]:
    """Return True if a file is the one that was copied before."""
    return before is not None and (before.size, before.modified_ms) == found[1:]


def _proofs_first(source: Store) -> Iterator[FileFound]:
    """Yield an archive's files; what a proof names is listed once that is copied."""
    yield from (one for one in source.files() if one.path.endswith(PROOF))
    yield from (one for one in source.files() if not one.path.endswith(PROOF))


def _copy(source: Store, target: Store, path: str) -> str:
    target.take(path, source)
    sha256 = digest(source, path)
    if digest(target, path) != sha256:
        # It may have been replaced meanwhile, as hints and tags are; once more.
        target.take(path, source)
        sha256 = digest(source, path)
        if digest(target, path) != sha256:
            raise CorruptLog(f"the copy of {path} in the backup has other bytes: run this again")
    return sha256
