"""What writers ask: real records of real messages, each with what it is meant to do.

A view is a table as a writer read it: a version, its fragments, and the rows that live in them.
Files that a transaction names are put into the store before it is appended, as writers do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa
from pyroaring import BitMap

from commitlog.codecs.keys import key_hashes
from commitlog.core.conflicts.write_sets import kind_of
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.core.manifest.roaring import portable
from commitlog.core.tables.creation import STORAGE_VERSIONS
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFragment, DeletionFile
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import NAMES_CHECKED_SINCE, PROTOCOL_SUPPORTED
from commitlog.model.operations import (
    AffectedRows,
    CreateTable,
    DropTable,
    KeyHashes,
    LanceCommit,
    Operation,
    RenameTable,
)
from commitlog.model.table import Policy
from tests.simulation.rows import Intent, Row

FILE_BYTES = bytes(100)
ROOT = "/tables"


def _column(name: str, field_id: int) -> bytes:
    message = Field(name=name, id=field_id, parent_id=-1, logical_type="int64", nullable=True)
    return message.SerializeToString(deterministic=True)


FIELDS = (_column("k", 0), _column("v", 1))


@dataclass(frozen=True, slots=True)
class View:
    """A table at the version that a writer read."""

    name: str
    incarnation: str
    location: str
    version: int
    fragments: dict[int, bytes]
    rows: dict[int, dict[int, Row]]
    has_key: bool
    keys: frozenset[int]


@dataclass(slots=True)
class Request:
    """Operations, what they mean, and the files to put first."""

    operations: list[Operation] = field(default_factory=list)
    intents: list[Intent] = field(default_factory=list)
    files: list[tuple[str, str, bytes]] = field(default_factory=list)
    """(location, path, bytes)"""

    def add(self, operation: Operation, intent: Intent) -> None:
        """Add an operation."""
        self.operations.append(operation)
        self.intents.append(intent)


class Requests:
    """Makes requests out of chance; every name in them follows from the seed."""

    def __init__(self, chance: random.Random) -> None:
        """Take the run's randomness."""
        self.random = chance
        self.protocol = PROTOCOL_SUPPORTED
        """The log's, as it is made."""
        self.properties: Callable[[], tuple[tuple[str, str], ...]] = tuple
        """Return those that a new table gets."""
        self._made = 0

    def uuid(self) -> str:
        """Return a new UUID (of version 4, so that it tells no time)."""
        bits = self.random.getrandbits(128)
        text = f"{bits:032x}"
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"

    def rows(self, view_keys: Iterable[int] = (), *, is_keyed: bool = False) -> tuple[Row, ...]:
        """Return rows for a new fragment; keyed ones have keys that the view doesn't."""
        taken = set(view_keys) if is_keyed else set()
        count = self.random.randrange(1, 7)
        keys: dict[int, None] = {}
        while len(keys) < count:
            # Few keys, so that writers meet.
            key = self.random.randrange(40 + 2 * len(taken))
            if key not in taken:
                keys[key] = None
        self._made += 1
        return tuple((key, self._made * 10 + i) for i, key in enumerate(keys))

    def create(self, request: Request, name: str, *, incarnation: str, location: str) -> None:
        """Create a table."""
        has_key = self.random.random() < 0.5
        operation = CreateTable(
            table=(name,),
            incarnation=incarnation,
            location=location,
            fields=FIELDS,
            primary_key=("k",) if has_key else (),
            policy=self.random.choice((Policy.EVERY, Policy.EVERY, Policy.LATEST)),
            stable_row_ids=self.random.random() < 0.2,
            data_storage_version=STORAGE_VERSIONS[0],
            properties=self.properties(),
        )
        meant = Intent("create", name, incarnation, has_key=has_key, location=location)
        request.add(operation, meant)

    def drop(self, request: Request, view: View) -> None:
        """Drop a table, or what has its name."""
        incarnation = self.random.choice((view.incarnation, ""))
        request.add(DropTable((view.name,), incarnation), Intent("drop", view.name, incarnation))

    def rename(self, request: Request, view: View, new_name: str) -> None:
        """Give a table another name."""
        meant = Intent("rename", view.name, new_table=new_name)
        request.add(RenameTable((view.name,), (new_name,)), meant)

    def append(self, request: Request, view: View, *, at_head: bool = False) -> None:
        """Add fragments."""
        is_keyed = view.has_key and not at_head and self.random.random() < 0.8
        message = self._message(view)
        message.append.SetInParent()
        adds = [self.rows(view.keys, is_keyed=is_keyed)]
        if self.random.random() < 0.2 and not is_keyed:
            adds.append(self.rows())
        for rows in adds:
            message.append.fragments.append(self.fragment(request, view, rows))
        if at_head:
            message.read_version = 0
        self._commit(
            request, view, message, Intent("append", view.name, adds=tuple(adds)), is_keyed
        )

    def delete(self, request: Request, view: View) -> None:
        """Delete rows of some fragments, and sometimes a fragment whole."""
        message = self._message(view)
        message.delete.predicate = "k > 0"
        removes, drops, affected, images = [], [], [], []
        for fragment_id in self._some(view):
            living = view.rows[fragment_id]
            chosen = self._choose(living)
            if len(chosen) == len(living):
                message.delete.deleted_fragment_ids.append(fragment_id)
                drops.append((fragment_id, chosen))
                continue
            image = self.with_deletions(request, view, fragment_id, chosen)
            message.delete.updated_fragments.append(image)
            images.append((fragment_id, image.deletion_file.num_deleted_rows))
            removes.append((fragment_id, chosen))
            affected.append(AffectedRows(fragment_id, portable(BitMap(chosen))))
        intent = Intent(
            "delete",
            view.name,
            removes=tuple(removes),
            drops=tuple(drops),
            images=tuple(images),
        )
        # Without affected rows the log derives them from the staged deletion files.
        rows = tuple(affected) if self.random.random() < 0.7 else ()
        self._commit(request, view, message, intent, False, rows)

    def update(self, request: Request, view: View) -> None:
        """Move rows with new values into a new fragment."""
        message = self._message(view)
        message.update.update_mode = LanceTransaction.REWRITE_ROWS
        removes, drops, affected, images = [], [], [], []
        moved: list[Row] = []
        for fragment_id in self._some(view):
            living = view.rows[fragment_id]
            chosen = self._choose(living)
            moved += [(living[o][0], living[o][1] + 1_000_000) for o in chosen]
            if len(chosen) == len(living):
                message.update.removed_fragment_ids.append(fragment_id)
                drops.append((fragment_id, chosen))
                continue
            image = self.with_deletions(request, view, fragment_id, chosen)
            message.update.updated_fragments.append(image)
            images.append((fragment_id, image.deletion_file.num_deleted_rows))
            removes.append((fragment_id, chosen))
            affected.append(AffectedRows(fragment_id, portable(BitMap(chosen))))
        adds = tuple(moved)
        message.update.new_fragments.append(self.fragment(request, view, adds))
        intent = Intent(
            "update",
            view.name,
            adds=(adds,),
            removes=tuple(removes),
            drops=tuple(drops),
            images=tuple(images),
        )
        self._commit(request, view, message, intent, False, tuple(affected))

    def config(self, request: Request, view: View) -> None:
        """Set one of a few config keys."""
        key = f"key{self.random.randrange(4)}"
        message = self._message(view)
        entry = message.update_config.config_updates.update_entries.add()
        entry.key, entry.value = key, str(self.random.randrange(100))
        self._commit(request, view, message, Intent("config", view.name, config=key), False)

    def _message(self, view: View) -> LanceTransaction:
        return LanceTransaction(read_version=view.version, uuid=self.uuid())

    def _some(self, view: View) -> list[int]:
        # The oldest fragments are hot.
        fragments = sorted(view.rows)[:4]
        count = min(len(fragments), self.random.choice((1, 1, 2)))
        return sorted(self.random.sample(fragments, count))

    def _choose(self, living: dict[int, Row]) -> tuple[int, ...]:
        offsets = sorted(living)
        if self.random.random() < 0.1:
            return tuple(offsets)
        count = min(len(offsets), self.random.choice((1, 1, 2)))
        return tuple(sorted(self.random.sample(offsets, count)))

    def fragment(self, request: Request, view: View, rows: tuple[Row, ...]) -> DataFragment:
        """Return a new fragment, whose file is to be put first."""
        path = f"{self.uuid()}.lance"
        fragment = DataFragment(physical_rows=len(rows))
        fragment.files.add(
            path=path,
            fields=[0, 1],
            column_indices=[0, 1],
            file_major_version=2,
            file_minor_version=0,
            file_size_bytes=len(FILE_BYTES),
        )
        request.files.append((view.location, f"data/{path}", FILE_BYTES))
        return fragment

    def with_deletions(
        self, request: Request, view: View, fragment_id: int, chosen: tuple[int, ...]
    ) -> DataFragment:
        """Return a fragment without the chosen rows; its deletion file is to be put first."""
        image = DataFragment.FromString(view.fragments[fragment_id])
        gone = set(range(image.physical_rows)) - set(view.rows[fragment_id])
        rows = BitMap(gone | set(chosen))
        deletion_file = DeletionFile(
            file_type=DeletionFile.BITMAP,
            read_version=view.version,
            id=self.random.getrandbits(62),
            num_deleted_rows=len(rows),
        )
        path = deletion_file_path(fragment_id, deletion_file)
        image.deletion_file.CopyFrom(deletion_file)
        request.files.append((view.location, path, portable(rows)))
        return image

    def _commit(
        self,
        request: Request,
        view: View,
        message: LanceTransaction,
        intent: Intent,
        is_keyed: bool,
        affected: tuple[AffectedRows, ...] = (),
    ) -> None:
        keys = None
        if is_keyed:
            hashes = [_key_hash(row[0]) for rows in intent.adds for row in rows]
            keys = KeyHashes((0,), b"".join(sorted(hashes)))
        incarnation = view.incarnation if self.random.random() < 0.8 else ""
        if self.protocol < NAMES_CHECKED_SINCE and any("_deletions" in f[1] for f in request.files):
            # Such a log takes a deletion file that a table made again under this name hasn't.
            incarnation = view.incarnation
        operation = LanceCommit(
            table=(view.name,),
            operation=kind_of(message),
            read_version=message.read_version,
            message=message.SerializeToString(deterministic=True),
            incarnation=incarnation,
            affected_rows=affected,
            inserted_keys=keys,
        )
        meant = Intent(
            intent.kind,
            intent.table,
            incarnation,
            message.read_version,
            intent.adds,
            intent.removes,
            intent.drops,
            intent.config,
            is_keyed,
            images=intent.images,
        )
        request.add(operation, meant)


@cache
def _key_hash(key: int) -> bytes:
    return key_hashes([pa.array([key], pa.int64())])[0]
