"""Is whatever meets a history decided? Operations that fit some version, some a little wrong.

Each reads one of the last versions and names what that one has: its fragments, their rows, its
deletion files. So they meet what others did since, rebases and all, and a record may have several.
"""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from google.protobuf.message import Message
from pyroaring import BitMap

from commitlog.codecs.avro import seal_outcome
from commitlog.core.decisions import BuildWanted, Found, Need, Refused, Wanted
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.manifest.roaring import portable
from commitlog.core.partition.driving import next_step
from commitlog.core.schema_check.schema import FIELD_ID_END
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFragment, IndexMetadata, IndexSection
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import FIELD_IDS_SINCE, PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import (
    COLUMNS,
    COLUMNS_AWAITED,
    ROW_ORDER,
    ROW_ORDER_KEPT,
    AffectedRows,
)
from commitlog.model.records import LogRecord, Observation, Outcome, Submitted
from tests.core_world import (
    ROOT,
    World,
    append,
    column,
    commit,
    new_fragment,
    replayed_from_parts,
)
from tests.properties.test_arbitrary_transactions import fill, value

WORLDS, RECORDS, ROWS = 25, 40, 10
_REFUSED = Found(Observation("", -1), error="pylance refused")
_KINDS = (
    *("append", "delete", "delete", "update", "update", "rewrite", "rewrite", "merge", "project"),
    *("data_overlay", "data_overlay", "create_index", "reserve_fragments", "update_config"),
)


class Histories(World):
    """Builds what pylance does of overlays and indices, too, and knows all versions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.versions: dict[int, ManifestState] = {}
        self.written: dict[str, dict[int, str]] = {}
        """The columns of files as they were written: names by id."""

    def build(self, wanted: BuildWanted) -> Found:
        transaction = LanceTransaction.FromString(wanted.message)
        kind, state = transaction.WhichOneof("operation"), self.state(wanted.table).fork()
        try:
            if kind in ("merge", "project", "rewrite", "update"):
                found = super().build(wanted)
                assert found.state is not None
                ids = found.state.max_fragment_id or 0, *found.state.fragments
                return found if max(ids) < 2**32 else _REFUSED  # no manifest holds more
            if kind == "create_index":
                section = IndexSection.FromString(state.index_section or b"")
                section.indices.extend(transaction.create_index.new_indices)
                state.index_section = section.SerializeToString(deterministic=True)
            for group in transaction.data_overlay.groups:
                fragment = DataFragment.FromString(state.fragments[group.fragment_id])
                fragment.overlays.extend(group.overlays)
                for overlay in fragment.overlays[-len(group.overlays) :]:
                    overlay.committed_version = wanted.version
                state.fragments.put([(fragment.id, fragment.SerializeToString())])
        except (KeyError, ValueError):
            return _REFUSED
        state.version = wanted.version
        return Found(Observation("_versions/9.manifest-built", 1, bytes(32)), state=state)

    def deleted_in(self, fragment: DataFragment) -> BitMap:
        """Return the rows that a fragment's deletion file names, if it is there."""
        path = deletion_file_path(fragment.id, fragment.deletion_file)
        return self.vectors.get((f"{ROOT}/t", path), BitMap())

    def run(self, record: LogRecord) -> Outcome:
        if len(self.log) % 10 == 0:
            self.check(Submitted(0, len(self.log), self.now_ms + 1, record))
        outcome = super().run(record)
        if self.rules.protocol >= FIELD_IDS_SINCE:
            self.check_columns()
        return outcome

    def check_columns(self) -> None:
        """No file's column is read as one of another name: nobody renames one here."""
        state = self.state()
        for encoded in state.fragments.values():
            for file in DataFragment.FromString(encoded).files:
                wrote = self.written.get(file.path, {})
                for field in state.header.message.fields:
                    assert (
                        field.id not in file.fields or wrote.get(field.id, field.name) == field.name
                    )

    def check(self, submitted: Submitted) -> None:
        """Decide twice, and on a restored machine."""
        seen: dict[Wanted, Found] = {}
        while isinstance(step := next_step(self.machine, submitted, seen), Need):
            seen.update((wanted, self.observe(wanted)) for wanted in step.wanted)
        assert self.machine.decide(submitted, seen) == step
        assert replayed_from_parts(self.machine).decide(submitted, seen) == step


class Writer:
    """Makes operations that read a version of the world's table."""

    def __init__(self, chance: random.Random, world: Histories) -> None:
        self._chance, self._world, self._made = chance, world, 0
        self._columns: dict[int, str] = {}
        """Of the version that an operation read: names by id."""

    def operation(self) -> Any:
        """Return an operation, right or wrong."""
        chance, self._made = self._chance, self._made + 1
        head = self._world.state().version
        read = chance.choice([v for v in self._world.versions if head - 6 <= v] or [head])
        state = self._world.versions.get(read, self._world.state())
        self._columns = {field.id: field.name for field in state.header.message.fields}
        kind = chance.choice(_KINDS)
        made = LanceTransaction(read_version=read, uuid=f"u{self._made}")
        body = getattr(made, kind)
        body.SetInParent()
        images = [DataFragment.FromString(encoded) for encoded in state.fragments.values()]
        chosen = [one for one in images if chance.random() < 0.5]
        rows = getattr(self, f"_{kind}", self._plain)(made, body, chosen, images)
        if kind in ("merge", "project"):
            schema = self._schema(kind, state)
            body.schema.extend(schema)
            body.preserves_nullability = chance.random() < 0.8
            if chance.random() < 0.5:
                made.transaction_properties[COLUMNS] = COLUMNS_AWAITED
        if chance.random() < 0.25:
            self._mutate(made)
            if kind in ("merge", "project") and [(f.id, f.name) for f in body.schema] != [
                (f.id, f.name) for f in schema
            ]:
                # Whoever gives a column another name or id says that it is that one.
                del body.schema[:]
                body.schema.extend(schema)
        try:
            return commit(made, affected_rows=rows or ())
        except Refused:  # by who encodes it
            return append(read, f"a{self._made}.lance")

    def _schema(self, kind: str, state: ManifestState) -> list[Field]:
        """Return a version's columns, without one or with a new one, which gets a free id."""
        fields = list(state.header.message.fields)
        if kind == "project" and len(fields) > 1 and self._chance.random() < 0.6:
            fields.pop(self._chance.randrange(1, len(fields)))
        if kind == "merge" and self._chance.random() < 0.6:
            self._made += 1
            # As Lance gives it: the ids of its fragments' files aren't free.
            images = map(DataFragment.FromString, state.fragments.values())
            taken = {i for image in images for file in image.files for i in file.fields}
            taken.update(field.id for field in fields)
            number = max(i for i in taken if i < FIELD_ID_END - 1) + 1
            fields.append(Field.FromString(column(f"c{self._made}", number)))
        return fields

    def _new(self, rows: int = ROWS) -> DataFragment:
        self._made += 1
        path, columns = f"f{self._made}.lance", self._columns
        self._world.written[path] = columns
        return new_fragment(path, rows, columns)

    def _plain(self, made: Any, body: Any, chosen: Any, images: Any) -> None:
        if hasattr(body, "fragments"):
            body.fragments.extend(images if made.HasField("merge") else [self._new()])

    def _delete(self, made: Any, body: Any, chosen: Any, images: Any) -> tuple[AffectedRows, ...]:
        chance, affected = self._chance, []
        for image in chosen:
            before = set(self._world.deleted_in(image))
            most = chance.choice([ROWS, ROWS, ROWS + 5])
            rows = set(range(most)) if chance.random() < 0.2 else {chance.randrange(most)}
            self._made += 1
            vector = self._world.staged_vector(image.id, before | rows, self._made)
            image.deletion_file.CopyFrom(vector)
            body.updated_fragments.append(image)
            if chance.random() < 0.7:
                affected.append(AffectedRows(image.id, portable(BitMap(rows - before))))
        return tuple(affected)

    def _update(self, made: Any, body: Any, chosen: Any, images: Any) -> tuple[AffectedRows, ...]:
        body.new_fragments.append(self._new())
        return self._delete(made, body, chosen, images)

    def _rewrite(self, made: Any, body: Any, chosen: Any, images: Any) -> None:
        made.transaction_properties[ROW_ORDER] = ROW_ORDER_KEPT
        for olds in (chosen[::2], chosen[1::2]):
            live = sum(f.physical_rows - f.deletion_file.num_deleted_rows for f in olds)
            new = [self._new(live)] if 0 < live < 2**60 and self._chance.random() < 0.8 else []
            body.groups.add(old_fragments=olds, new_fragments=new)

    def _data_overlay(self, made: Any, body: Any, chosen: Any, images: Any) -> None:
        for image in chosen:
            overlay = body.groups.add(fragment_id=image.id).overlays.add()
            overlay.data_file.CopyFrom(self._new().files[0])
            overlay.shared_offset_bitmap = portable(BitMap([self._chance.randrange(ROWS)]))

    def _create_index(self, made: Any, body: Any, chosen: Any, images: Any) -> None:
        name = self._chance.choice(["a", "b", "__lance_mem_wal"])
        index = IndexMetadata(name=name, fields=[0])
        index.uuid.uuid = UUID(int=self._made).bytes
        index.fragment_bitmap = portable(BitMap(f.id for f in chosen if f.id < 2**32))
        index.index_details.type_url = "/lance.table.MemWalIndexDetails"
        body.new_indices.append(index)

    def _update_config(self, made: Any, body: Any, chosen: Any, images: Any) -> None:
        body.config_updates.update_entries.add(key=self._chance.choice("ab"), value="1")

    def _reserve_fragments(self, made: Any, body: Any, chosen: Any, images: Any) -> None:
        body.num_fragments = 2

    def _mutate(self, made: Message) -> None:
        """Change a field of one of the messages in it."""
        chance = self._chance
        message = chance.choice(_messages(made))
        fields = [field for field, _ in message.ListFields()] or [*message.DESCRIPTOR.fields]
        field: Any = chance.choice(fields) if fields else None
        if field is None or field.containing_oneof is not None or field.message_type is not None:
            fill(chance, message, 0.1, 5)
        elif field.is_repeated:
            listed = getattr(message, field.name)
            listed.extend([*listed] if chance.random() < 0.5 else [value(chance, field)])
        else:
            setattr(message, field.name, value(chance, field))


def _messages(message: Any) -> list[Any]:
    found = [message]
    for field, held in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for one in held if field.is_repeated else [held]:
            found.extend(_messages(one))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("protocol", range(1, PROTOCOL_SUPPORTED + 1))
def test_whatever_meets_a_history_is_decided(protocol: int, seed: int) -> None:
    chance = random.Random(f"{seed} {protocol}")
    for number in range(WORLDS):
        world = Histories(rules=Rules(protocol, history_versions=chance.choice([3, 1_000])))
        world.create(columns=3, stable_row_ids=number % 5 == 0)
        world.ask("first", append(1, *(f"{one}.lance" for one in range(4))))
        writer = Writer(chance, world)
        for step in range(RECORDS):
            world.versions[world.state().version] = world.state().copy()
            operations = [writer.operation() for _ in range(chance.choice([1, 1, 1, 2]))]
            outcome = world.ask(f"t{step}", *operations)
            seal_outcome(outcome, previous_hash=bytes(32), epoch=0, node="n")
        assert world.replayed().digest() == world.machine.digest()
