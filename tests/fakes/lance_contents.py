"""What is in a made-up Lance table, and transactions that change it as Lance's do."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from commitlog.core.manifest.manifest_state import ManifestDelta
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import (
    DataFragment,
    DeletionFile,
    IndexMetadata,
    IndexSection,
    Manifest,
)
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.operations import Summary

SNAPSHOTS_KEPT = 20
KINDS = {
    "Append": 50,
    "Delete": 18,
    "Update": 12,
    "Rewrite": 8,
    "Merge": 4,
    "CreateIndex": 3,
    "UpdateConfig": 3,
    "Restore": 2,
}
FIELDS = ("id", "name", "amount", "note")


@dataclass
class Made:
    """A transaction on a table, and what it leaves when it commits."""

    kind: str
    message: LanceMessage
    after: dict[int, DataFragment]
    summary: Summary = Summary()
    next_id: int = 0
    first_id: int = -1
    fields: tuple[str, ...] | None = None
    indices: tuple[str, ...] | None = None
    origins: dict[int, list[int]] = field(default_factory=dict)
    """For new fragments: those whose rows they took over."""
    is_recorded: bool = True
    """Whether pylance builds it, so that the outcome carries a delta."""

    def delta(self, before: dict[int, DataFragment], version: int) -> bytes:
        """Return the delta that an outcome would record."""
        header = index_section = None
        if self.fields is not None:
            header = Manifest(fields=lance_fields(self.fields)).SerializeToString()
        if self.indices is not None:
            indices = [IndexMetadata(name=name, fields=[0]) for name in self.indices]
            index_section = IndexSection(indices=indices).SerializeToString()
        changed = {
            one: after.SerializeToString(deterministic=True)
            for one, after in sorted(self.after.items())
            if before.get(one) != after
        }
        return ManifestDelta(
            version,
            0,
            0,
            0,
            None,
            0,
            "x.txn",
            removed=tuple(one for one in before if one not in self.after),
            fragments=tuple(changed.items()),
            header=header,
            index_section=index_section,
        ).to_bytes()


def lance_fields(names: Sequence[str]) -> list[Field]:
    """Return fields of these names, each with its own id for ever."""
    return [
        Field(name=name, id=FIELDS.index(name), parent_id=-1, logical_type="int64", nullable=True)
        for name in names
    ]


@dataclass
class Contents:
    """A table's fragments, fields and indices now, and what they were lately."""

    fragments: dict[int, DataFragment] = field(default_factory=dict)
    next_id: int = 0
    fields: tuple[str, ...] = FIELDS[:2]
    indices: tuple[str, ...] = ()
    snapshots: list[dict[int, DataFragment]] = field(default_factory=list)

    def commit(self, made: Made) -> None:
        """Take over what a transaction leaves."""
        self.snapshots.append(self.fragments)
        del self.snapshots[:-SNAPSHOTS_KEPT]
        self.fragments, self.next_id = made.after, max(self.next_id, made.next_id)
        self.fields = made.fields if made.fields is not None else self.fields
        self.indices = made.indices if made.indices is not None else self.indices

    def operation(self, dice: random.Random) -> Made:
        """Return some transaction that fits the table as it is."""
        (kind,) = dice.choices(list(KINDS), list(KINDS.values()))
        makers: dict[str, Callable[[random.Random, Made], Made | None]] = {
            "Delete": self._delete,
            "Update": self._update,
            "Rewrite": self._rewrite,
            "Merge": self._merge,
            "CreateIndex": self._index,
            "UpdateConfig": self._configure,
            "Restore": self._restore,
        }
        made = Made(kind, LanceMessage(), dict(self.fragments), next_id=self.next_id)
        return (makers[kind](dice, made) if kind in makers else None) or self._append(dice)

    def _append(self, dice: random.Random) -> Made:
        made = Made("Append", LanceMessage(), dict(self.fragments), first_id=self.next_id)
        made.message.append.SetInParent()
        for number in range(dice.choice((1, 1, 2))):
            fragment = new_fragment(dice)
            made.message.append.fragments.append(fragment)
            made.after[self.next_id + number] = fragment
        made.next_id = self.next_id + len(made.message.append.fragments)
        made.is_recorded = False
        made.summary = _summary(made.message.append.fragments)
        return made

    def _delete(self, dice: random.Random, made: Made) -> Made | None:
        if not self.fragments:
            return None
        made.message.delete.predicate = "true"
        for one in dice.sample(sorted(self.fragments), min(2, len(self.fragments))):
            before = self.fragments[one]
            deleted = before.deletion_file.num_deleted_rows + dice.randrange(1, 40)
            if deleted >= before.physical_rows and dice.random() < 0.5:
                made.message.delete.deleted_fragment_ids.append(one)
                del made.after[one]
                continue
            image = DataFragment()
            image.CopyFrom(before)
            image.id = one
            count = min(deleted, before.physical_rows)
            image.deletion_file.CopyFrom(
                DeletionFile(id=dice.getrandbits(40), num_deleted_rows=count)
            )
            made.message.delete.updated_fragments.append(image)
            if count == before.physical_rows:
                del made.after[one]
            else:
                made.after[one] = image
        made.is_recorded = False
        return made

    def _update(self, dice: random.Random, made: Made) -> Made | None:
        touched = self._delete(dice, made)
        if touched is None:
            return None
        update = LanceMessage()
        update.update.updated_fragments.extend(touched.message.delete.updated_fragments)
        update.update.removed_fragment_ids.extend(touched.message.delete.deleted_fragment_ids)
        made.message, made.is_recorded = update, True
        fragment = new_fragment(dice)
        update.update.new_fragments.append(fragment)
        made.after[self.next_id] = fragment
        made.next_id = self.next_id + 1
        made.summary = _summary([fragment])
        removed = update.update.removed_fragment_ids
        made.origins[self.next_id] = sorted(
            {*(one.id for one in update.update.updated_fragments), *removed}
        )
        return made

    def _rewrite(self, dice: random.Random, made: Made) -> Made | None:
        if len(self.fragments) < 3:
            return None
        olds = dice.sample(sorted(self.fragments), 3)
        fragment = new_fragment(dice)
        fragment.id = self.next_id
        group = made.message.rewrite.groups.add(new_fragments=[fragment])
        for one in olds:
            group.old_fragments.add(id=one)
            del made.after[one]
        made.after[self.next_id] = fragment
        made.next_id = self.next_id + 1
        made.origins[fragment.id] = sorted(olds)
        return made

    def _merge(self, dice: random.Random, made: Made) -> Made:
        made.fields = FIELDS[: dice.randrange(1, len(FIELDS) + 1)]
        for one, before in self.fragments.items():
            image = DataFragment()
            image.CopyFrom(before)
            image.files.add(path=_path(dice), file_size_bytes=7)
            made.after[one] = image
        made.message.merge.SetInParent()
        return made

    def _index(self, dice: random.Random, made: Made) -> Made:
        made.message.create_index.SetInParent()
        made.indices = tuple(f"by_{name}" for name in self.fields[: dice.randrange(3)])
        return made

    def _configure(self, dice: random.Random, made: Made) -> Made:
        entry = made.message.update_config.config_updates.update_entries.add(key="owner")
        if dice.random() < 0.7:
            entry.value = f"writer-{dice.randrange(5)}"
        made.is_recorded = False
        return made

    def _restore(self, dice: random.Random, made: Made) -> Made | None:
        if not self.snapshots:
            return None
        made.message.restore.version = 1
        made.after = dict(dice.choice(self.snapshots))
        return made


def new_fragment(dice: random.Random) -> DataFragment:
    """Return a fragment with a file of its own and no id."""
    rows = dice.randrange(1, 100)
    fragment = DataFragment(physical_rows=rows)
    fragment.files.add(path=_path(dice), file_size_bytes=rows * 10)
    return fragment


def _path(dice: random.Random) -> str:
    return f"{uuid.UUID(int=dice.getrandbits(128), version=4)}.lance"


def _summary(fragments: Sequence[DataFragment]) -> Summary:
    return Summary(
        rows_added=sum(one.physical_rows for one in fragments),
        bytes_added=sum(file.file_size_bytes for one in fragments for file in one.files),
        fragments_added=len(fragments),
        data_files=tuple(file.path for one in fragments for file in one.files),
    )
