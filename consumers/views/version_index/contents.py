"""Rows about what is in tables: what an operation made of fragments, schema and indices.

What pylance built is recorded in the outcome, as a delta of the manifest; an Append or a Delete
without a recording is read as the direct builder reads it. Nothing else is needed: not the table,
not its earlier versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from commitlog.codecs.field_names import full_name
from commitlog.core.lance.versions import recorded
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.core.manifest.manifest_state import ManifestDelta
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFragment, IndexSection, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.limits import INT64_MAX
from commitlog.model.operations import CreateTable, CreateTableVersion, IcebergChange, LanceCommit
from commitlog.model.records import Outcome
from consumers.views.version_index.operation_results import DoneOperation

ORIGINS_MAX = 4_000_000
"""So many fragments are named as what an operation's new ones were made of. All that it removed may
be in each new one: a record of 1 MB with 20,000 of both would name 400 million."""

Row = tuple[Any, ...]
Recordings = Callable[[Outcome], Mapping[bytes, bytes]]
"""Reads what an outcome recorded outside itself, by sha256."""


class Contents:
    """What one committed operation left in its table."""

    def __init__(
        self, place: Row, one: DoneOperation, outcome: Outcome, recordings: Recordings
    ) -> None:
        """Decode what there is to decode."""
        assert one.result is not None
        self._head = (*place, one.ordinal, one.table, one.incarnation)
        self._one, self._result = one, one.result
        self._message = _message(one)
        self._delta: ManifestDelta | None = None
        if one.result.delta is not None and not isinstance(one.operation, IcebergChange):
            # Small ones are in the outcome; the others are read when they are needed.
            outside = {} if one.result.delta.inline is not None else recordings(outcome)
            self._delta = ManifestDelta.from_bytes(recorded(one.result.delta, outside))

    def fragments(self) -> Iterator[Row]:
        """Yield a row of `fragment_changes` for each fragment that it touched."""
        head = (*self._head, self._one.version)
        if self._delta is not None:
            origins = _origins(self._message, [one for one, _ in self._delta.fragments])
            for fragment_id in self._delta.removed:
                yield (*head, *without_fragment(fragment_id))
            for fragment_id, encoded in self._delta.fragments:
                fragment = DataFragment.FromString(encoded)
                yield (*head, *_whole(fragment_id, fragment, origins.get(fragment_id)))
            return
        message = self._message
        if message is None:
            return
        if message.HasField("append"):
            first = self._result.first_fragment_id
            for fragment_id, fragment in enumerate(message.append.fragments, start=first):
                yield (*head, *_whole(fragment_id, fragment, None))
        elif message.HasField("delete"):
            delete = message.delete
            changed = self._changed(delete.updated_fragments, delete.deleted_fragment_ids)
            yield from ((*head, *row) for row in changed)
        elif message.HasField("update"):
            update, first = message.update, self._result.first_fragment_id
            changed = self._changed(update.updated_fragments, update.removed_fragment_ids)
            yield from ((*head, *row) for row in changed)
            ids = range(first, first + len(update.new_fragments))
            origins = _origins(message, ids)
            for fragment_id, fragment in zip(ids, update.new_fragments, strict=True):
                yield (*head, *_whole(fragment_id, fragment, origins.get(fragment_id)))

    def _changed(self, updated: Iterable[DataFragment], removed: Iterable[int]) -> Iterator[Row]:
        """Yield a row for each fragment that lost rows, as it was rebased."""
        images = {image.id: image for image in updated}
        gone: dict[int, DataFragment | None] = dict.fromkeys(removed)
        for rebased in self._result.images:
            if rebased.image is None:
                gone[rebased.fragment_id] = images.pop(rebased.fragment_id, None)
            else:
                images[rebased.fragment_id] = DataFragment.FromString(rebased.image)
        for fragment_id in sorted(gone):
            yield without_fragment(fragment_id)
        for fragment_id, image in sorted(images.items()):
            deleted = image.deletion_file.num_deleted_rows
            if deleted and deleted == image.physical_rows:
                yield without_fragment(fragment_id)
            elif image.HasField("deletion_file"):
                path = deletion_file_path(fragment_id, image.deletion_file)
                yield (fragment_id, False, None, deleted, None, None, path, None)

    def fields(self) -> Iterator[Row]:
        """Yield a row of `field_changes` for each field, if it wrote the schema."""
        operation, head = self._one.operation, (*self._head, self._one.version)
        if self._one.iceberg is not None:
            for position, field in enumerate(self._one.iceberg.fields):
                place = (field.field_id, field.parent_id, position)
                yield (*head, *place, field.name, field.type, field.nullable)
        elif isinstance(operation, CreateTable):
            yield from _lance_fields(head, [Field.FromString(one) for one in operation.fields])
        elif self._delta is not None and self._delta.header is not None:
            yield from _lance_fields(head, Manifest.FromString(self._delta.header).fields)

    def indices(self) -> Iterator[Row]:
        """Yield a row of `index_changes` for each index, if it changed one."""
        if self._delta is None or self._delta.index_section is None:
            return
        head = (*self._head, self._one.version)
        indices = IndexSection.FromString(self._delta.index_section).indices
        for index in indices:
            covered = _count(index.fragment_bitmap) if index.fragment_bitmap else None
            size = sum(file.size_bytes for file in index.files) if index.files else None
            about = (index.name, index.uuid.uuid.hex(), list(index.fields), index.dataset_version)
            yield (*head, *about, covered, size)
        if not indices:
            yield (*head, None, None, None, None, None, None)

    def settings(self) -> Iterator[tuple[str, str | None, str | None]]:
        """Yield (scope, key, value) for each of Lance's settings that it changed."""
        if self._message is None or not self._message.HasField("update_config"):
            return
        update = self._message.update_config
        for key, value in sorted(update.upsert_values.items()):
            yield "config", key, value
        for key in update.delete_keys:
            yield "config", key, None
        for key, value in sorted(update.schema_metadata.items()):
            yield "schema_metadata", key, value
        for scope in ("config", "table_metadata", "schema_metadata"):
            name = "config_updates" if scope == "config" else f"{scope}_updates"
            changes = getattr(update, name)
            if changes.replace:
                yield scope, None, None
            for entry in changes.update_entries:
                yield scope, entry.key, entry.value if entry.HasField("value") else None


def _message(one: DoneOperation) -> LanceMessage | None:
    if not isinstance(one.operation, LanceCommit | CreateTableVersion):
        return None
    try:
        return LanceMessage.FromString(one.operation.message)
    except DecodeError:
        return None  # the leader commits none; without it a row says less


def without_fragment(fragment_id: int) -> Row:
    """Return what a row says of a fragment that is no longer there."""
    return (fragment_id, True, None, None, None, None, None, None)


def _whole(fragment_id: int, fragment: DataFragment, made_from: Sequence[int] | None) -> Row:
    deleted, path = 0, None
    if fragment.HasField("deletion_file"):
        deleted = fragment.deletion_file.num_deleted_rows
        path = deletion_file_path(fragment_id, fragment.deletion_file)
    files = [*fragment.files, *(one.data_file for one in fragment.overlays)]
    return (
        fragment_id,
        False,
        min(fragment.physical_rows, INT64_MAX),
        min(deleted, INT64_MAX),
        min(sum(file.file_size_bytes for file in files), INT64_MAX),
        [file.path for file in files],
        path,
        made_from,
    )


def _origins(
    message: LanceMessage | None, fragment_ids: Sequence[int]
) -> Mapping[int, Sequence[int]]:
    """Return which fragments' rows went into each of the new ones; none if they are too many."""
    found = _all_origins(message, fragment_ids)
    return found if sum(map(len, found.values())) <= ORIGINS_MAX else {}


def _all_origins(
    message: LanceMessage | None, fragment_ids: Sequence[int]
) -> Mapping[int, Sequence[int]]:
    if message is None:
        return {}
    if message.HasField("rewrite"):
        groups = [(g.old_fragments, g.new_fragments) for g in message.rewrite.groups]
        groups.append((message.rewrite.old_fragments, message.rewrite.new_fragments))
        groups = [group for group in groups if group[0]]
        named: dict[int, list[int]] = {}
        for olds, news in groups:
            named |= {new.id: sorted(old.id for old in olds) for new in news if new.id}
        everything = sorted(old.id for olds, _ in groups for old in olds)
        return {one: named.get(one, everything) for one in fragment_ids}
    if message.HasField("update"):
        update = message.update
        changed = {one.id for one in update.updated_fragments}
        taken = sorted(changed | set(update.removed_fragment_ids))
        if taken:
            return {one: taken for one in fragment_ids if one not in changed}
    return {}


def _lance_fields(head: Row, fields: Sequence[Field]) -> Iterator[Row]:
    names: dict[int, str] = {}
    for position, field in enumerate(fields):
        names[field.id] = full_name(names.get(field.parent_id, ""), field.name)
        parent_id = field.parent_id if field.parent_id >= 0 else None
        place = (field.id, parent_id, position)
        yield (*head, *place, names[field.id], field.logical_type, field.nullable)


def _count(bitmap: bytes) -> int | None:
    try:
        return len(BitMap.deserialize(bitmap))
    except ValueError:
        return None
