"""A machine, a store in memory, and the shortest way to say what is asked of them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyroaring import BitMap

from commitlog.core.decisions import (
    BuildWanted,
    BytesWanted,
    Change,
    Decision,
    FileWanted,
    Found,
    ManifestWanted,
    PlaceWanted,
    RootWanted,
    VectorWanted,
    Wanted,
)
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.core.manifest.feature_flags import FLAG_STABLE_ROW_IDS
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState, apply_delta
from commitlog.core.manifest.roaring import portable
from commitlog.core.partition.driving import drive
from commitlog.core.partition.machine import Machine
from commitlog.core.partition.snapshot import IDS
from commitlog.core.tables.creation import STORAGE_VERSIONS
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFragment, DeletionFile, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import Rules
from commitlog.model.operations import (
    AffectedRows,
    CreateTable,
    KeyHashes,
    LanceCommit,
    Operation,
)
from commitlog.model.records import (
    Application,
    Expect,
    Genesis,
    LogRecord,
    Observation,
    Outcome,
    Submitted,
    Transaction,
)

ROOT = "/tables"
FORMAT = STORAGE_VERSIONS[0]
GENESIS = Genesis("log", "00000000-0000-0000-0000-000000000000", "cluster", 0, tables_root=ROOT)
DAY_MS = 24 * 3600 * 1000


def column(name: str, field_id: int, logical_type: str = "int64") -> bytes:
    """Return a nullable column's `lance.file.Field`."""
    message = Field(name=name, id=field_id, parent_id=-1, logical_type=logical_type, nullable=True)
    return message.SerializeToString()


def new_fragment(path: str, rows: int = 10, fields: Iterable[int] = (0,)) -> DataFragment:
    """Return a fragment of one file that isn't committed yet."""
    fragment = DataFragment(physical_rows=rows)
    listed = list(fields)
    fragment.files.add(
        path=path,
        fields=listed,
        column_indices=list(range(len(listed))),
        file_major_version=2,
        file_minor_version=0,
        file_size_bytes=100,
    )
    return fragment


def content_hash(*parts: Any) -> bytes:
    """Stand in for the hash that the codec makes of a record's content."""
    return hashlib.sha256(repr(parts).encode()).digest()


@dataclass
class World:
    """One partition: its machine, its log, and the files of its tables."""

    genesis: Genesis = GENESIS
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        """Start with an empty log."""
        self.machine = Machine(self.genesis, self.rules)
        self.log: list[tuple[Submitted, Outcome]] = []
        self.changes: list[Change] = []
        self.vectors: dict[tuple[str, str], BitMap] = {}
        self.manifests: dict[tuple[str, str], Found] = {}
        self.missing: set[str] = set()
        self.roots: dict[str, str] = {}
        """Where the leader's named roots are."""
        self.built: dict[BuildWanted, Found] = {}
        self.recordings: dict[bytes, bytes] = {}
        self.now_ms = 1_000_000
        self.attempts = 0

    def submitted(self, record: LogRecord) -> Submitted:
        """Return the record as the log's next one."""
        self.now_ms += 1
        return Submitted(0, len(self.log), self.now_ms, record)

    def decide(self, submitted: Submitted) -> Decision:
        """Decide, observing whatever is asked for."""
        return drive(self.machine, submitted, self.observe)

    def run(self, record: LogRecord) -> Outcome:
        """Decide the next record and apply it."""
        submitted = self.submitted(record)
        decision = self.decide(submitted)
        for file in decision.files:
            self.vectors[file.location, file.path] = BitMap.deserialize(file.data)
        for data in decision.recordings:
            self.recordings[hashlib.sha256(data).digest()] = data
        changes = self.machine.apply(submitted, decision.outcome, changes=decision.changes)
        assert changes == decision.changes
        self.log.append((submitted, decision.outcome))
        self.changes.extend(changes)
        return decision.outcome

    def ask(
        self,
        transaction_id: str,
        *operations: Operation,
        attempt: int = 0,
        application: Application | None = None,
        expects: tuple[Expect, ...] = (),
        submitted_at_ms: int = 0,
    ) -> Outcome:
        """Run a transaction of these operations."""
        return self.run(
            Transaction(
                transaction_id,
                operations,
                attempt=attempt,
                submitted_at_ms=submitted_at_ms,
                application=application,
                expects=expects,
                payload_hash=content_hash(application, expects, operations),
            )
        )

    def observe(self, wanted: Wanted) -> Found:
        """Look into the store."""
        if isinstance(wanted, BuildWanted):
            return self.build(wanted)
        gone = Found(Observation(wanted.path, -1), error="there is no such file")
        if isinstance(wanted, PlaceWanted):
            is_allowed = wanted.path.startswith(f"{ROOT}/")
            return Found(Observation(wanted.path, 0)) if is_allowed else gone
        if isinstance(wanted, RootWanted):
            stays = wanted.location in (wanted.path, self.roots.get(wanted.path))
            return Found(Observation(wanted.path, 0)) if stays else gone
        if isinstance(wanted, BytesWanted):
            return gone
        if isinstance(wanted, FileWanted):
            return gone if wanted.path in self.missing else Found(Observation(wanted.path, 100))
        if isinstance(wanted, VectorWanted):
            vector = self.vectors.get((wanted.location, wanted.path))
            if vector is None:
                return gone
            data = portable(vector)
            seen = Observation.of(wanted.path, data)
            return Found(seen, vector=vector)
        assert isinstance(wanted, ManifestWanted)
        return self.manifests.get((wanted.location, wanted.path), gone)

    def build(self, wanted: BuildWanted) -> Found:
        """Build what pylance would, as far as tests need it."""
        transaction = LanceTransaction.FromString(wanted.message)
        assert transaction.read_version == wanted.version - 1
        state = self.state(wanted.table).fork()
        apply_delta(state, _simple_delta(state, transaction))
        path = f"_versions/{2**64 - 1 - wanted.version:020}.manifest-built"
        return Found(Observation(path, 1, b"x" * 32), state=state)

    def state(self, table: tuple[str, ...] = ("t",)) -> ManifestState:
        """Return a table's manifest."""
        manifest = self.machine.tables[table].manifest
        assert manifest is not None
        return manifest

    def create(self, name: str = "t", *, columns: int = 1, **more: Any) -> Outcome:
        """Create a table of integer columns."""
        fields = tuple(column(f"c{i}", i) for i in range(columns))
        options: dict[str, Any] = {"data_storage_version": FORMAT, **more}
        operation = CreateTable(
            tuple(name.split("$")), f"i-{name}", f"{ROOT}/{name}", fields, **options
        )
        return self.ask(f"create-{name}-{len(self.log)}", operation)

    def staged_vector(self, fragment_id: int, rows: Iterable[int], name: int) -> DeletionFile:
        """Put a deletion file into table t's location."""
        vector = BitMap(rows)
        deletion_file = DeletionFile(
            file_type=DeletionFile.BITMAP, read_version=1, id=name, num_deleted_rows=len(vector)
        )
        path = deletion_file_path(fragment_id, deletion_file)
        self.vectors[f"{ROOT}/t", path] = vector
        return deletion_file

    def deleted_rows(self, fragment_id: int, state: ManifestState | None = None) -> BitMap:
        """Return a fragment's deleted rows as the manifest has them."""
        fragment = DataFragment.FromString((state or self.state()).fragments[fragment_id])
        if not fragment.HasField("deletion_file"):
            return BitMap()
        path = deletion_file_path(fragment_id, fragment.deletion_file)
        return self.vectors[f"{ROOT}/t", path]

    def replayed(self) -> Machine:
        """Return a machine that applied the log, told nothing but records and outcomes."""
        machine = Machine(self.genesis, self.rules)
        for submitted, outcome in self.log:
            machine.apply(submitted, outcome, recordings=self.recordings)
        return machine


def _simple_delta(state: ManifestState, transaction: LanceTransaction) -> ManifestDelta:
    field_name = transaction.WhichOneof("operation")
    new: list[DataFragment] = []
    changed: dict[int, bytes] = {}
    removed: list[int] = []
    header: bytes | None = None
    if schema := getattr(getattr(transaction, str(field_name)), "schema", ()):
        manifest = Manifest.FromString(state.header.encoded)
        del manifest.fields[:]
        manifest.fields.extend(schema)
        header = ManifestHeader.of(manifest).encoded
    if field_name == "overwrite":
        removed = list(state.fragments)
        new = list(transaction.overwrite.fragments)
    elif field_name == "merge":
        changed = {
            f.id: f.SerializeToString(deterministic=True) for f in transaction.merge.fragments
        }
        removed = [i for i in state.fragments if i not in changed]
    elif field_name == "rewrite":
        # Ids that were reserved are kept.
        for group in transaction.rewrite.groups:
            removed += [old.id for old in group.old_fragments]
            for fragment in group.new_fragments:
                if fragment.id:
                    changed[fragment.id] = fragment.SerializeToString(deterministic=True)
                else:
                    new.append(fragment)
    elif field_name != "project":
        assert field_name == "update", field_name
        removed = list(transaction.update.removed_fragment_ids)
        new = list(transaction.update.new_fragments)
        for image in transaction.update.updated_fragments:
            changed[image.id] = image.SerializeToString(deterministic=True)
    maximum = -1 if state.max_fragment_id is None else state.max_fragment_id
    maximum = max([maximum, *changed])
    # As Lance does, an overwrite counts its fragments from 0.
    first = 0 if field_name == "overwrite" else maximum + 1
    for fragment_id, fragment in enumerate(new, first):
        fragment.id = fragment_id
        changed[fragment_id] = fragment.SerializeToString(deterministic=True)
        maximum = max(maximum, fragment_id)
    return ManifestDelta(
        state.version + 1,
        0,
        state.reader_feature_flags & FLAG_STABLE_ROW_IDS,
        state.writer_feature_flags & FLAG_STABLE_ROW_IDS,
        maximum if maximum >= 0 else None,
        state.next_row_id,
        f"{transaction.read_version}-{transaction.uuid}.txn",
        removed=tuple(i for i in removed if i not in changed),
        fragments=tuple(sorted(changed.items())),
        header=header,
    )


def commit(
    transaction: LanceTransaction, *, table: tuple[str, ...] = ("t",), **more: Any
) -> LanceCommit:
    """Wrap a Lance transaction as the writer's encoder does."""
    from commitlog.core.conflicts.write_sets import kind_of

    return LanceCommit(
        table,
        kind_of(transaction),
        transaction.read_version,
        transaction.SerializeToString(deterministic=True),
        **more,
    )


def append(
    read_version: int,
    *paths: str,
    rows: int = 10,
    fields: Iterable[int] = (0,),
    keys: Iterable[bytes] | None = None,
    table: tuple[str, ...] = ("t",),
) -> LanceCommit:
    """Append a fragment per path."""
    listed = tuple(fields)
    transaction = LanceTransaction(
        read_version=read_version, uuid=f"a{'-'.join(paths)}".replace(".", "")
    )
    transaction.append.SetInParent()
    transaction.append.fragments.extend(new_fragment(path, rows, listed) for path in paths)
    return commit(transaction, table=table, inserted_keys=key_hashes(keys))


def key_hashes(keys: Iterable[bytes] | None) -> KeyHashes | None:
    """Return keys as exact hashes."""
    if keys is None:
        return None
    return KeyHashes((0,), b"".join(sorted(hashlib.md5(key).digest() for key in keys)))


def delete(
    world: World,
    read_version: int,
    rows: Mapping[int, Iterable[int]],
    *,
    whole: Iterable[int] = (),
    state: ManifestState | None = None,
    with_rows: bool = True,
    name: int = 0,
    base: Mapping[int, Iterable[int]] | None = None,
) -> LanceCommit:
    """Delete rows of fragments, and whole fragments; `base` rows were deleted when it read."""
    world.attempts += 1
    name = name or world.attempts
    transaction = LanceTransaction(read_version=read_version, uuid=f"d{name}")
    transaction.delete.predicate = "x"
    transaction.delete.deleted_fragment_ids.extend(whole)
    for fragment_id, deleted in rows.items():
        image = DataFragment.FromString((state or world.state()).fragments[fragment_id])
        before = set((base or {}).get(fragment_id, ()))
        image.deletion_file.CopyFrom(
            world.staged_vector(fragment_id, before | set(deleted), name * 1000 + fragment_id)
        )
        transaction.delete.updated_fragments.append(image)
    affected = tuple(AffectedRows(f, portable(BitMap(r))) for f, r in rows.items())
    return commit(transaction, affected_rows=affected if with_rows else ())


FEW_IDS = 8


def replayed_from_parts(machine: Machine) -> Machine:
    """Return a machine restored from another one's parts, after a trial with and without hints.

    The hashes of restored parts are taken as they are, so the parts themselves are compared. Of a
    long history one of both ways is tried, and a few ids are looked up: chance chooses them by the
    number of ids, so one that grows is tried in many ways.
    """
    parts = {name: part.saved() for name, part in machine.to_parts().items()}
    without = {name: part._replace(hint=None) for name, part in parts.items()}
    chunks = (json.loads(part.data)["ids"] for name, part in parts.items() if name.startswith(IDS))
    ids = [row[0] for chunk in chunks for row in chunk]
    chance, ways = random.Random(len(ids)), [without, parts]
    if len(ids) > FEW_IDS:
        ids, ways = chance.sample(ids, FEW_IDS), [chance.choice(ways)]
    for way in ways:
        tried = Machine.from_parts(machine.genesis, way)
        for transaction_id in ids:
            known = machine.deduplication.get(transaction_id)
            assert tried.deduplication.get(transaction_id) == known
        assert {name: part.saved() for name, part in tried.to_parts().items()} == parts
    return Machine.from_parts(machine.genesis, parts)


def with_attempt(record: Transaction, attempt: int) -> Transaction:
    """Return the same transaction as another attempt."""
    return replace(record, attempt=attempt)
