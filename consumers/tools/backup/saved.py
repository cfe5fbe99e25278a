"""What a backup holds, as its `backup.json` says: written last, so it names only what is there."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TypeGuard

import pyarrow.parquet as pq

from commitlog.adapters.disk import TEMPORARY
from commitlog.adapters.storage import LocalStore, local_path, sha256_of, store_for
from commitlog.adapters.storage_remote import RemoteStore
from commitlog.errors import CommitLogError, CorruptLog, Unavailable
from commitlog.model.records import Outcome
from commitlog.ports import RawRecord
from consumers.runtime.locks import is_alive
from consumers.tools.archive.files import records_in, table_of
from consumers.tools.from_json import from_json

NAME = "backup.json"
FORMAT = 1
TABLES, ARCHIVE = "tables", "archive"
LISTS = "files"
"""The folder of lists of copied files."""
LISTS_AT_ONCE = 16
"""Each run adds one, and in a bucket each takes a request."""
_CHUNK = ".parquet"
Store = LocalStore | RemoteStore


class BadBackup(CommitLogError):
    """A backup that isn't there, isn't whole, or is of another log; the message says which."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One file of records."""

    path: str
    sha256: str
    rows: int
    end_offset: int
    """The offset after its last record."""


@dataclass(slots=True)
class SavedPartition:
    """One partition, as far as it was copied."""

    partition: int
    transactions: list[Chunk] = field(default_factory=list)
    outcomes: list[Chunk] = field(default_factory=list)
    sequence: int = 0
    """The last valid outcome."""
    hash: str = ""
    time_ms: int = 0


def follows(record: object, sequence: int, head: str) -> TypeGuard[Outcome]:
    """Return True if a record is the outcome after a position; not if it is a deposed leader's."""
    if not isinstance(record, Outcome) or record.sequence != sequence + 1:
        return False
    return head in ("", record.previous_hash.hex())


@dataclass(slots=True)
class Backup:
    """A whole backup."""

    log: str
    log_id: str
    cluster_id: str
    tables_root: str
    partitions: list[SavedPartition]
    file_lists: list[str] = field(default_factory=list)
    """Lists of copied files, each naming those that came or changed in one run."""
    elsewhere: list[str] = field(default_factory=list)
    """Places of tables outside the tables root, which are not copied."""
    made_at_ms: int = 0
    format: int = FORMAT
    roots: dict[str, str] = field(default_factory=dict)
    """Names of roots by the places that the log's records bind to them."""

    def to_bytes(self) -> bytes:
        """Encode it; programs that don't know of roots read it if there are none."""
        body = {name: value for name, value in asdict(self).items() if name != "roots" or value}
        return json.dumps(body, indent=1).encode() + b"\n"

    @classmethod
    def read(cls, store: Store, place: str) -> Backup | None:
        """Read a place's backup, None if there is none."""
        try:
            found = json.loads(store.read(NAME))
            if found["format"] != FORMAT:
                raise BadBackup(
                    f"the backup at {place} has format {found['format']}, and this program reads"
                    f" {FORMAT}: use the program that made it"
                )
            return from_json(cls, found)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise BadBackup(f"{NAME} at {place} cannot be read: {error}") from error


def need_backup(store: Store, place: str) -> Backup:
    """Read a place's backup; BadBackup if there is none."""
    backup = Backup.read(store, place)
    if backup is None:
        raise BadBackup(f"there is no backup at {place}: {place}/{NAME} is missing")
    return backup


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A copied file, by its place below `tables/` or `archive/`."""

    path: str
    size: int
    modified_ms: int
    sha256: str


def files_of(store: Store, backup: Backup) -> dict[str, SavedFile]:
    """Return the copied files by path, as their last copy left them."""
    with ThreadPoolExecutor(LISTS_AT_ONCE) as pool:
        lists = pool.map(lambda path: list(read_list(store, path)), backup.file_lists)
        return {one.path: one for files in lists for one in files}


def leftovers(store: Store, known: Mapping[str, SavedFile]) -> list[str]:
    """Return what runs that were killed had begun to write; a store of objects has none."""
    if not isinstance(store, LocalStore):
        return []
    here = os.getpid()  # of a container, say, where each run has the same number
    found = ((path, TEMPORARY.fullmatch(path)) for path in store.walk() if path not in known)
    return [path for path, of in found if of and (int(of[1]) == here or not is_alive(int(of[1])))]


def read_list(store: Store, path: str) -> Iterator[SavedFile]:
    """Yield the files of a list; BadBackup if it isn't the list that was written."""
    data = read_copy(store, path)
    if not path.endswith(f"-{_short(data)}.jsonl"):
        raise damaged(path)
    yield from (SavedFile(*json.loads(line)) for line in data.splitlines())


def write_list(store: Store, files: Sequence[SavedFile]) -> str:
    """Put a list of copied files; its name has the time and what it must hold."""
    lines = "".join(f"{json.dumps(list(asdict(one).values()))}\n" for one in files).encode()
    name = f"{LISTS}/{time.time_ns():020}-{_short(lines)}.jsonl"
    write_checked(store, name, lines)
    return name


def begun_lists(store: Store, backup: Backup) -> list[str]:
    """Return the lists of runs that didn't come to their end, the oldest first."""
    found = (f"{LISTS}/{name}" for name in store.names(LISTS) if name.endswith(".jsonl"))
    return sorted({*found} - {*backup.file_lists})


def _short(data: bytes) -> str:
    return sha256_of(data)[:16]


def read_copy(store: Store, path: str) -> bytes:
    """Read a file of the backup; BadBackup if it is gone."""
    try:
        return store.read(path)
    except FileNotFoundError:
        raise missing(path) from None


def read_whole(store: Store, path: str, sha256: str) -> bytes:
    """Read a file of the backup; BadBackup if it is gone, or isn't what was written."""
    data = read_copy(store, path)
    if sha256_of(data) != sha256:
        raise damaged(path)
    return data


def missing(path: str) -> BadBackup:
    """Return the error of a file that is gone."""
    return BadBackup(f"the backup's file {path} is missing")


def damaged(path: str) -> BadBackup:
    """Return the error of a file whose content isn't the one that was written."""
    return BadBackup(f"the backup's file {path} isn't what was written: its sha256 differs")


def part(place: str, name: str = "") -> Store:
    """Open a place, or a folder of it; a file there is on the disk before it has its name."""
    location = f"{place.rstrip('/')}/{name}" if name else place
    folder = local_path(location)
    return store_for(location) if folder is None else LocalStore(folder, durable=True)


def check_copy(store: Store, path: str, one: SavedFile) -> None:
    """Read a copy, as `path` of a store; BadBackup if it is gone or isn't what was written."""
    try:
        is_same = digest(store, path) == one.sha256
    except FileNotFoundError:
        raise missing(one.path) from None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise BadBackup(f"the backup's file {one.path} can't be read: {error.strerror}") from error
    if not is_same:
        raise damaged(one.path)


def take_checked(target: Store, path: str, copies: Store, one: SavedFile) -> None:
    """Put a backup's file back, and read it again; BadBackup if it isn't what was written."""
    try:
        target.take(path, copies)
        check_copy(target, path, one)
    except (BadBackup, OSError) as error:
        target.delete(path)
        check_copy(copies, path, one)
        if isinstance(error, OSError):
            raise
        raise CorruptLog(
            f"{path} was restored with other bytes than the backup's: look at that disk, then run"
            " this again"
        ) from error


def digest(store: Store, path: str) -> str:
    """Return the sha256 of a file as it can be read."""
    made = hashlib.sha256()
    for chunk in store.chunks(path):
        made.update(chunk)
    return made.hexdigest()


def write_checked(store: Store, path: str, data: bytes, *, over: str | None = None) -> None:
    """Put a file, and read it back; CorruptLog if it came out otherwise.

    In an object store, which has no locks, it takes the place of a file with the digest `over` and
    of no other (empty: there is none); Unavailable if another run has put one.
    """
    if over is None or isinstance(store, LocalStore):
        store.write(path, data)
    elif not (store.replace(path, data, over) if over else store.create(path, data)):
        raise Unavailable(
            f"another `commitlog backup` has written {path} since this one began: the backup has"
            " what that one copied. Run this again for the rest, and let one run at a time"
        )
    if store.read(path) != data:
        raise CorruptLog(f"{path} has other bytes than were just written: don't rely on this store")


def write_chunk(store: Store, folder: str, records: Sequence[RawRecord]) -> Chunk:
    """Put records into a file that is named by its content, and read it back."""
    sink = io.BytesIO()
    pq.write_table(table_of(records), sink, compression="zstd")
    data = sink.getvalue()
    sha256 = sha256_of(data)
    path = f"{folder}/{records[0].offset:020}-{sha256[:16]}{_CHUNK}"
    write_checked(store, path, data)
    return Chunk(path, sha256, len(records), records[-1].offset + 1)


def read_chunk(store: Store, chunk: Chunk) -> Iterator[RawRecord]:
    """Yield a file's records; BadBackup if it isn't the file that was written."""
    data = read_whole(store, chunk.path, chunk.sha256)
    yield from records_in(pq.ParquetFile(io.BytesIO(data)))


def transactions_there(
    store: Store, backup: Backup, partition: int, start: float
) -> Iterator[RawRecord]:
    """Yield the transactions from an offset on in a backup's files, those that it doesn't name too.

    Such files are what is left of runs that were killed. The same record may come more than once.
    """
    named = {
        chunk.path: chunk
        for saved in backup.partitions
        if saved.partition == partition
        for chunk in saved.transactions
    }
    folder = f"log/{partition}/transactions"
    for path in (f"{folder}/{name}" for name in store.names(folder) if name.endswith(_CHUNK)):
        chunk = named.get(path)
        if chunk is None:
            yield from records_in(pq.ParquetFile(io.BytesIO(store.read(path))))
        elif chunk.end_offset > start:
            yield from read_chunk(store, chunk)
