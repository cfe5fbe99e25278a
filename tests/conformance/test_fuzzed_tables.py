"""No record makes a table unusable: what the machine accepts, plain pylance reads and writes.

Operations that would commit are changed at random, field by field of Lance's message, and handed
to the leader as they are, past the client's checks. After each commit a process of its own uses a
copy of the table: it reads, appends, updates, deletes and compacts. `FUZZ_SEED`, `FUZZ_STEPS` and
`FUZZ_SECONDS` look for more.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import lance
import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor as Descriptor
from google.protobuf.message import Message
from lance import LanceOperation
from lance.fragment import write_fragments

from commitlog.client.rows.rows import prepare_delete
from commitlog.client.rows.updating import prepare_update
from commitlog.codecs.lance_objects import to_transaction
from commitlog.codecs.lance_schema import schema_fields
from commitlog.codecs.manifest_file import decode_manifest, encode_manifest, manifest_name
from commitlog.core.conflicts.write_sets import kind_of
from commitlog.core.manifest.header import ManifestHeader
from commitlog.errors import InvalidTransaction
from commitlog.lancepb.table_pb2 import DataFragment, IndexSection, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.operations import CreateTable, CreateTableVersion, LanceCommit, Operation
from commitlog.model.records import Outcome, Status, Transaction
from tests.operations_world import column_file
from tests.service import SCHEMA, Service, rows

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
STEPS = int(os.environ.get("FUZZ_STEPS", "100"))
SEEDS = tuple(map(int, os.environ.get("FUZZ_SEED", "1 2").split()))
FINDINGS_MAX = int(os.environ.get("FUZZ_FINDINGS", "1"))
ANSWER_SECONDS = 120.0
_TEXTS: tuple[str, ...] = (
    "",
    "a\0b",
    "a.b",
    "`",
    "_rowid",
    "x" * 5_000,
    "id",
    "name",
    "\x01",
    "é",
    "int64",
)
_TEXTS += ("struct", "list", "map", "string", "fixed_size_list:float:0", "true", "../x", "0.1")
_NUMBERS = (0, 1, 2, 3, 7, 99, -1, -2, 2**31 - 1, 2**32 - 1, 2**63 - 1)
_BYTES = (b"", b"\xff\xff", b"x" * 16, b"\x3a\x30\0\0\0\0\0\0", b"1")
_LEFT = frozenset({"nullable", "physical_rows", "column_indices", "file_size_bytes"})
_LEFT |= {"file_major_version", "file_minor_version", "DataFile.fields"}
"""What a writer says of its own data files is taken on trust, and rows of null are written."""
_TRUSTED = ("row id index corrupt", "Empty structs", "buffers in array of type")
"""So are the stable ids of moved rows, and the types that an Overwrite says its new files have; of
a struct without fields Lance can't write a null."""


class Plain:
    """A process that uses tables as plain pylance does."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Plain:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def use(self, path: Path) -> str:
        """Use a copy of a table; return `ok`, or what failed."""
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.fuzz_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        step = "start"
        for line in process.stdout:
            what, _, rest = line.rstrip("\n").partition(" ")
            if what == "end":
                return rest
            step = rest
        return f"{step}: the process ended with {process.wait()}"


class Fuzz:
    """One service, its table, and the operations that are changed."""

    def __init__(self, running: Service, chance: random.Random) -> None:
        self.running = running
        self.chance = chance
        self.tables = 0
        self.new_table()

    def new_table(self) -> None:
        """Make another table of three fragments, a deletion and an index."""
        self.tables += 1
        self.name = f"t{self.tables}"
        client = self.running.client
        client.create_table(self.name, SCHEMA, stable_row_ids=self.chance.random() < 0.3)
        for first in (0, 4, 8):
            client.append(self.name, rows(*range(first, first + 4)))
        client.open(self.name).create_scalar_index("id", "BTREE", name="by_id")
        client.delete(self.name, "id = 1")
        self.path = self.running.location(self.name)

    def head(self) -> tuple[int, Manifest, list[DataFragment], IndexSection]:
        """Return the head's manifest in parts."""
        version = self.running.client.table(self.name).version
        data = (self.path / "_versions" / manifest_name(version)).read_bytes()
        state, _ = decode_manifest(data)
        manifest = Manifest.FromString(state.header.encoded)
        fragments = [DataFragment.FromString(f) for f in state.fragments.values()]
        return version, manifest, fragments, IndexSection.FromString(state.index_section or b"")

    def message(self) -> LanceMessage:
        """Return an operation that would commit."""
        while True:
            made = LanceMessage(uuid=str(uuid.uuid4()))
            version, manifest, fragments, section = self.head()
            made.read_version = version
            try:
                self.chance.choice(_OPERATIONS)(self, made, manifest, fragments, section)
            except (InvalidTransaction, IndexError):
                self.new_table()  # this one has no column or no fragment to do it with
            else:
                return made

    def of(self, made: LanceMessage, operation: Any) -> None:
        """Take one of pylance's operations."""
        message, _ = to_transaction(operation, read_version=made.read_version, uuid=made.uuid)
        made.CopyFrom(message)

    def written(self) -> list[Any]:
        """Write a file of two rows."""
        table = lance.dataset(str(self.path)).to_table().slice(0, 2)
        return list(write_fragments(table, str(self.path), schema=table.schema))

    def commit(self) -> Outcome:
        """Change an operation and submit it as a record."""
        message = self.message()
        kind = kind_of(message)
        changes = self.chance.choice((0, 1, 1, 1, 2, 3))
        for _ in range(changes):
            _change(self.chance, getattr(message, message.WhichOneof("operation") or ""))
        return self.submit(
            LanceCommit((self.name,), kind, message.read_version, message.SerializeToString())
        )

    def stage(self) -> Outcome:
        """Stage the head's manifest with a change, under an operation that may do such things."""
        message = self.message()
        version, manifest, fragments, section = self.head()
        data = (self.path / "_versions" / manifest_name(version)).read_bytes()
        state, _ = decode_manifest(data)
        for _ in range(self.chance.choice((1, 1, 2))):
            chosen = self.chance.choice((manifest, section, *fragments))
            _change(self.chance, chosen)
        state.header = ManifestHeader.of(manifest)
        state.index_section = section.SerializeToString() or None
        for fragment_id in list(state.fragments):
            state.fragments.remove(fragment_id)
        for fragment in fragments:
            if fragment.id not in state.fragments:
                state.fragments.put([(fragment.id, fragment.SerializeToString())])
        reader, writer = state.header.flags
        state.reader_feature_flags |= reader
        state.writer_feature_flags |= writer
        state.version = version + 1
        staged = f"_versions/{manifest_name(version + 1)}-{uuid.uuid4()}"
        encoded = encode_manifest(state, message.SerializeToString())
        (self.path / staged).write_bytes(encoded)
        return self.submit(
            CreateTableVersion(
                (self.name,),
                version + 1,
                staged,
                len(encoded),
                message=message.SerializeToString(),
                operation=kind_of(message),
            )
        )

    def create(self) -> Outcome:
        """Create a table of a changed schema."""
        fields, _ = schema_fields(_WIDE)
        manifest = Manifest(fields=fields)
        for _ in range(self.chance.choice((1, 1, 2))):
            _change(self.chance, self.chance.choice(manifest.fields))
        self.tables += 1
        self.name = f"c{self.tables}"
        self.path = self.running.root / "tables" / f"{self.name}-made"
        return self.submit(
            CreateTable(
                (self.name,),
                str(uuid.uuid4()),
                str(self.path),
                tuple(field.SerializeToString() for field in manifest.fields),
                data_storage_version=self.chance.choice(("2.1", "2.2")),
            )
        )

    def submit(self, operation: Operation) -> Outcome:
        """Append a record as it is."""
        record = Transaction(
            str(uuid.uuid4()), (operation,), submitted_at_ms=time.time_ns() // 10**6
        )
        ticket = self.running.client.runtime().submit(record, id_is_new=True)
        return ticket.result(ANSWER_SECONDS)


_WIDE = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("s", pa.struct([("x", pa.int32()), ("l", pa.list_(pa.float32()))])),
        ("v", pa.list_(pa.float32(), 2)),
        ("t", pa.timestamp("us", "UTC")),
    ]
)


def _append(fuzz: Fuzz, made: LanceMessage, *_: Any) -> None:
    fuzz.of(made, LanceOperation.Append(fuzz.written()))


def _overwrite(fuzz: Fuzz, made: LanceMessage, manifest: Manifest, *_: Any) -> None:
    schema = lance.dataset(str(fuzz.path)).schema
    fuzz.of(made, LanceOperation.Overwrite(schema, fuzz.written()))
    # Pylance counts the fields anew, and the files have the table's.
    del made.overwrite.schema[:]
    made.overwrite.schema.extend(manifest.fields)


def _delete(fuzz: Fuzz, made: LanceMessage, *_: Any) -> None:
    info = fuzz.running.client.table(fuzz.name)
    fuzz.of(made, prepare_delete(info, lance.dataset(str(fuzz.path)), "id % 3 = 2").operation)


def _update(fuzz: Fuzz, made: LanceMessage, *_: Any) -> None:
    info = fuzz.running.client.table(fuzz.name)
    dataset = lance.dataset(str(fuzz.path))
    fuzz.of(made, prepare_update(info, dataset, {"name": "'u'"}, "id % 3 = 0").operation)


def _project(fuzz: Fuzz, made: LanceMessage, manifest: Manifest, *_: Any) -> None:
    made.project.schema.extend(manifest.fields)


def _merge(
    fuzz: Fuzz, made: LanceMessage, manifest: Manifest, fragments: list[DataFragment], _: Any
) -> None:
    made.merge.schema.extend(manifest.fields)
    made.merge.fragments.extend(fragments)
    added = max(field.id for field in manifest.fields) + 1
    made.merge.schema.add(
        name=f"new{added}", id=added, parent_id=-1, logical_type="int64", nullable=True
    )


def _config(fuzz: Fuzz, made: LanceMessage, manifest: Manifest, *_: Any) -> None:
    body = made.update_config
    target = fuzz.chance.choice(
        (
            body.config_updates,
            body.table_metadata_updates,
            body.schema_metadata_updates,
            body.field_metadata_updates[fuzz.chance.choice(manifest.fields).id],
        )
    )
    key = fuzz.chance.choice(
        ("k", "ARROW:extension:name", "lance-encoding:compression", "lance-encoding:packed")
        + ("lance-encoding:structural-encoding", "lance.blob.managed", "lance-encoding:blob")
    )
    target.update_entries.add(key=key, value=fuzz.chance.choice(("v", "arrow.uuid", "true", "rle")))


def _index(
    fuzz: Fuzz, made: LanceMessage, manifest: Manifest, _: Any, section: IndexSection
) -> None:
    standing = next((i for i in section.indices if i.name == "by_id"), None)
    index = made.create_index.new_indices.add()
    if standing is None:
        return
    index.CopyFrom(standing)
    index.uuid.uuid = uuid.uuid4().bytes
    shutil.copytree(
        fuzz.path / "_indices" / str(uuid.UUID(bytes=standing.uuid.uuid)),
        fuzz.path / "_indices" / str(uuid.UUID(bytes=index.uuid.uuid)),
    )
    how = fuzz.chance.random()
    if how < 0.4:
        index.name = fuzz.chance.choice(("__lance_frag_reuse", "__lance_mem_wal", "__lance_x"))
    elif how < 0.7:
        made.create_index.removed_indices.append(standing)


def _bases(fuzz: Fuzz, made: LanceMessage, *_: Any) -> None:
    name = str(uuid.uuid4())
    made.update_bases.new_bases.add(name=name, path=f"{fuzz.running.root}/{name}")


def _replace(
    fuzz: Fuzz, made: LanceMessage, _: Any, fragments: list[DataFragment], __: Any
) -> None:
    dataset = lance.dataset(str(fuzz.path))
    fragment = dataset.get_fragments()[0]
    file = column_file(dataset, ["z"] * fragment.physical_rows)
    fuzz.of(
        made,
        LanceOperation.DataReplacement(
            [LanceOperation.DataReplacementGroup(fragment.fragment_id, file)]
        ),
    )


def _reserve(fuzz: Fuzz, made: LanceMessage, *_: Any) -> None:
    made.reserve_fragments.num_fragments = 2


def _restore(fuzz: Fuzz, made: LanceMessage, *_: Any) -> None:
    made.restore.version = fuzz.chance.randrange(2, made.read_version + 1)


_OPERATIONS: tuple[Callable[..., None], ...] = (
    *(_append, _overwrite, _delete, _update, _project, _merge, _config, _config),
    *(_index, _index, _index, _bases, _replace, _reserve, _restore),
)


def _change(chance: random.Random, message: Message) -> None:
    """Change one field somewhere below a message."""
    while True:
        name = message.DESCRIPTOR.name
        fields = [f for f in message.DESCRIPTOR.fields if not {f.name, f"{name}.{f.name}"} & _LEFT]
        present = [f for f in fields if f in [found for found, _ in message.ListFields()]]
        if not fields:
            return
        field = chance.choice(present if present and chance.random() < 0.8 else fields)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _change_map(chance, getattr(message, field.name), field)
            return
        if field.is_repeated:
            values = getattr(message, field.name)
            how = chance.random()
            if values and how < 0.15:
                del values[chance.randrange(len(values))]
                return
            if values and how < 0.25:
                one = values[0]
                values.append(one) if field.message_type is None else values.add().CopyFrom(one)
                return
            if field.message_type is None:
                if values and how < 0.8:
                    values[chance.randrange(len(values))] = _value(chance, field)
                else:
                    values.append(_value(chance, field))
                return
            message = chance.choice(values) if values and how < 0.95 else values.add()
            continue
        if field.message_type is not None:
            if message.HasField(field.name) and chance.random() < 0.1:
                message.ClearField(field.name)
                return
            message = getattr(message, field.name)
            message.SetInParent()
            continue
        if chance.random() < 0.15:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, _value(chance, field))
        return


def _change_map(chance: random.Random, target: Any, field: Any) -> None:
    assert field.message_type is not None
    key = field.message_type.fields_by_name["key"]
    value = field.message_type.fields_by_name["value"]
    if value.message_type is None:
        target[_value(chance, key)] = _value(chance, value)
    else:
        _change(chance, target[_value(chance, key)])


def _value(chance: random.Random, field: Any) -> Any:
    """Return some value of a field's type."""
    kind = field.cpp_type
    if kind == Descriptor.CPPTYPE_STRING:
        is_text = field.type == Descriptor.TYPE_STRING
        return chance.choice(_TEXTS) if is_text else chance.choice(_BYTES)
    if kind == Descriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if kind == Descriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        return chance.choice([value.number for value in field.enum_type.values])
    if kind in (Descriptor.CPPTYPE_FLOAT, Descriptor.CPPTYPE_DOUBLE):
        return chance.random()
    is_unsigned = kind in (Descriptor.CPPTYPE_UINT32, Descriptor.CPPTYPE_UINT64)
    is_small = kind in (Descriptor.CPPTYPE_INT32, Descriptor.CPPTYPE_UINT32)
    end = 2 ** (32 if is_unsigned else 31) if is_small else 2**63
    return chance.choice([n for n in _NUMBERS if n < end and (n >= 0 or not is_unsigned)])


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_accepted_can_be_used(running: Service, seed: int) -> None:
    chance = random.Random(seed)
    fuzz = Fuzz(running, chance)
    seen: Counter[str] = Counter()
    found: list[str] = []
    end = time.monotonic() + SECONDS
    with Plain() as plain:
        while time.monotonic() < end or (not SECONDS and seen.total() < STEPS):
            how = chance.choice((fuzz.commit, fuzz.commit, fuzz.commit, fuzz.stage, fuzz.create))
            outcome = how()
            seen[f"{how.__name__} {outcome.status}"] += 1
            assert running.running[0].failure is None
            answer = "ok"
            if outcome.status is Status.COMMITTED:
                answer = plain.use(fuzz.path)
            if any(words in answer for words in _TRUSTED):
                fuzz.new_table()
            elif answer != "ok":
                found.append(f"{how.__name__} {outcome.results[0].operation}: {answer}")
                if len(found) >= FINDINGS_MAX:
                    break
            if answer != "ok" or how == fuzz.create or seen.total() % 15 == 0:
                fuzz.new_table()
    assert not found, f"seed {seed}: " + "\n".join(found)
    assert {key.split()[1] for key in seen} >= {"committed", "rejected"}, seen
