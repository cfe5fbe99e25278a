"""Columns of files that a version shares with the one before it.

An Overwrite or a Restore may give a field's id to another field. A file that stays still has the
columns that it was written with, so their fields keep their types.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Set
from itertools import chain

from commitlog.core.manifest.data_files import (
    data_files,
    is_blob,
    is_blob_v2,
    is_legacy_blob,
    is_packed,
)
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFile, DataFragment


def fields_of_other_type(before: ManifestHeader, after: ManifestHeader) -> list[int]:
    """Return the ids that both schemas have, for fields of other types, parents or encodings."""
    return [
        field_id
        for field_id, old in before.fields.items()
        if (new := after.fields.get(field_id)) is not None and _shape(old) != _shape(new)
    ]


def renewed_blobs(before: ManifestHeader, after: ManifestHeader) -> set[int]:
    """Return the columns of blobs that a new schema has as blobs of the second kind."""
    return {
        field_id
        for field_id, old in before.fields.items()
        if is_legacy_blob(old)
        and (new := after.fields.get(field_id)) is not None
        and is_blob_v2(new)
        and (new.name, new.parent_id, new.nullable) == (old.name, old.parent_id, old.nullable)
    }


def only_renews_blobs(before: ManifestHeader, after: ManifestHeader) -> bool:
    """Return True if two schemas are the same but for blobs that became those of the second kind.

    Such a column stays where it is, and what it then has inside is new.
    """
    renewed = renewed_blobs(before, after)
    old = [_unless(renewed, field) for field in before.message.fields]
    new = [
        _unless(renewed, field)
        for field in after.message.fields
        if not (field.parent_id in renewed and field.id not in before.fields)
    ]
    return old == new


def _unless(renewed: Container[int], field: Field) -> Field | int:
    """Return a field, or just the id of one that was renewed."""
    return field.id if field.id in renewed else field


def _shape(field: Field) -> tuple[str, int, bool, bool]:
    return field.logical_type, field.parent_id, is_blob(field), is_packed(field)


def changed_columns(before: ManifestHeader, after: ManifestHeader) -> set[int]:
    """Return the fields whose columns would be read as something else.

    A column is read by the types of what it is inside of, and, where all of a struct is one column,
    by those of the struct's parts.
    """
    others = set(fields_of_other_type(before, after))
    columns: set[int] = set()
    for field_id in after.fields if others else ():
        above = list(_upward(after, field_id))
        if not others.isdisjoint(field.id for field in above):
            columns.add(field_id)
            columns.update(field.id for field in above if is_packed(field) or is_blob(field))
    return columns


def _upward(header: ManifestHeader, field_id: int) -> Iterator[Field]:
    field = header.fields.get(field_id)
    while field is not None:
        yield field
        field = header.fields.get(field.parent_id)


def columns_that_stay(
    location: str,
    state: ManifestState,
    header: ManifestHeader,
    delta: ManifestDelta,
    wanted: Set[int],
) -> set[int]:
    """Return those of the wanted fields of which both versions name one column of one file."""
    layouts: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for file in _files(state.fragments.values()):
        if not wanted.isdisjoint(file.fields):
            place = state.header.place_of(location, file, file.path, "data")
            layouts.setdefault(place, set()).add(tuple(file.fields))
    replaced = {*delta.removed, *(fragment_id for fragment_id, _ in delta.fragments)}
    kept = (encoded for i, encoded in state.fragments.items() if i not in replaced)
    new = (encoded for _, encoded in delta.fragments)
    held: set[int] = set()
    for file in _files(chain(kept, new)):
        place = header.place_of(location, file, file.path, "data")
        for layout in layouts.get(place, ()):
            pairs = zip(layout, file.fields, strict=False)
            held.update(old for old, now in pairs if old == now)
    return held & wanted


def _files(fragments: Iterable[bytes]) -> Iterator[DataFile]:
    for encoded in fragments:
        yield from data_files(DataFragment.FromString(encoded))
