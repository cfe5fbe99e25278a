"""A table's first version, made of nothing but what CreateTable says.

The manifest equals what pylance 14.0.2 writes for an empty table, and the transaction in it is the
Overwrite that pylance would have made, under an id that follows from the table's incarnation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from commitlog.core.decisions import rejected
from commitlog.core.manifest.feature_flags import FLAG_STABLE_ROW_IDS
from commitlog.core.manifest.fragments import Fragments
from commitlog.core.manifest.header import WRITER
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState, apply_delta
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import Manifest
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import CreateTable
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code

STORAGE_VERSIONS = ("2.0", "2.1", "2.2", "2.3")


def empty_state() -> ManifestState:
    """Return what stands before the first version."""
    return ManifestState.of(Manifest(), Fragments(), None)


def state_of(delta: ManifestDelta, features: Mapping[int, int] | None = None) -> ManifestState:
    """Return the state that a delta from nothing describes.

    `features` are the feature flags of those fragments that ask for some, if that is known.
    """
    state = empty_state()
    if features is not None:
        state.fragments = Fragments.known(delta.fragments, features)
        delta = delta._replace(fragments=())
    apply_delta(state, delta)
    return state


def first_version(
    operation: CreateTable, transaction_id: str, time_ms: int, release: str
) -> tuple[ManifestState, bytes]:
    """Return version 1 of a new table, and the transaction to write into it."""
    fields = _checked_fields(operation)
    if operation.data_storage_version not in STORAGE_VERSIONS:
        raise rejected(
            Code.INVALID_OPERATION,
            "storage_version_unknown",
            version=operation.data_storage_version,
            known=STORAGE_VERSIONS,
        )
    transaction = Transaction(uuid=transaction_id)
    transaction.overwrite.schema.extend(fields)
    manifest = Manifest(
        version=1,
        fields=fields,
        schema_metadata=dict(operation.schema_metadata),
        transaction_file=f"0-{transaction_id}.txn",
        writer_version=Manifest.WriterVersion(library=WRITER, version=release),
        data_format=Manifest.DataStorageFormat(
            file_format="lance", version=operation.data_storage_version
        ),
    )
    manifest.timestamp.FromMilliseconds(time_ms)
    state = ManifestState.of(manifest, Fragments(), None)
    reader, writer = state.header.flags
    stable = FLAG_STABLE_ROW_IDS if operation.stable_row_ids else 0
    state.reader_feature_flags, state.writer_feature_flags = reader | stable, writer | stable
    return state, transaction.SerializeToString(deterministic=True)


def _checked_fields(operation: CreateTable) -> list[Field]:
    try:
        fields = [Field.FromString(encoded) for encoded in operation.fields]
    except DecodeError as error:
        raise rejected(Code.MALFORMED_RECORD, "not_a_field") from error
    seen: dict[int, Field] = {}
    names: set[tuple[int, str]] = set()
    for field in fields:
        if field.id < 0 or field.id in seen:
            raise _wrong("field_id_taken", field=field.name, field_id=field.id)
        if field.parent_id != -1 and field.parent_id not in seen:
            raise _wrong("field_before_parent", field=field.name, parent=field.parent_id)
        if not field.name or (field.parent_id, field.name) in names:
            raise _wrong("field_name_twice", field=field.name)
        names.add((field.parent_id, field.name))
        seen[field.id] = field
    check_primary_key(operation.primary_key, fields)
    return fields


def check_primary_key(primary_key: tuple[str, ...], fields: list[Field]) -> None:
    """Refuse a key of columns that the schema doesn't have."""
    known = _paths_among(primary_key, fields)
    unknown = [name for name in primary_key if name not in known]
    if unknown or len(set(primary_key)) != len(primary_key):
        key = list(primary_key)
        if unknown:
            raise _wrong("primary_key_unknown", primary_key=key, unknown=unknown)
        raise _wrong("primary_key_twice", primary_key=key)


def _paths_among(paths: Iterable[str], fields: list[Field]) -> set[str]:
    """Return those of some paths that lead to a field.

    Whatever the fields are like: a manifest that somebody registers may have one that is its own
    parent, and a schema of thousands of levels costs no more than one of as many columns.
    """
    places: dict[Any, Any] = {}
    for path in paths:
        place = places
        for part in path.split("."):
            place = place.setdefault(part, {})
        place[None] = path
    by_id = {field.id: field for field in fields}
    below: defaultdict[int | None, list[Field]] = defaultdict(list)
    for field in fields:
        below[field.parent_id if field.parent_id in by_id else None].append(field)
    found: set[Any] = set()
    left = [(places, field) for field in below[None]]
    while left:
        place, field = left.pop()
        for part in field.name.split("."):
            place = place.get(part, {})
        found.add(place.get(None))
        if place and by_id[field.id] is field:
            left.extend((place, child) for child in below[field.id])
    return found


def _wrong(problem: str, **arguments: Any) -> Exception:
    return rejected(Code.WRONG_SCHEMA, "schema_invalid", problem=Phrase(problem, arguments))
