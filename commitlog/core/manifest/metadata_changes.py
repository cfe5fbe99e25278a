"""What UpdateConfig and UpdateBases make of a manifest's header.

Both forms of UpdateConfig are one here: the older one is read as the update maps it stands for.
Keys of a table's schema (primary and clustering key) are set once and never change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping
from itertools import count

from commitlog.core.manifest.feature_flags import MANAGED_BLOBS_KEY
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import DeltaRefused, NotDirect
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import BasePath, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import DIGITS_MAX

_PRIMARY_KEY = "lance-schema:unenforced-primary-key"
_PRIMARY_KEY_POSITION = "lance-schema:unenforced-primary-key:position"
_CLUSTERING_KEY_POSITION = "lance-schema:unenforced-clustering-key:position"
_EXTENSION_NAME = "ARROW:extension:name"
_RANGE_SEGMENTS = "lance.row_ids.range_segments"
_TRUE = ("1", "true", "on", "yes", "y")
_UNSIGNED = re.compile(rf"\+?[0-9]{{1,{DIGITS_MAX}}}")
_IDS_END = 2**31
"""The newer form has no place for ids from here on, the older one has."""

UpdateMap = Transaction.UpdateMap
UpdateMapEntry = Transaction.UpdateMapEntry


def updated_config(
    header: ManifestHeader, operation: Transaction.UpdateConfig, is_stable: bool
) -> ManifestHeader:
    """Return the header after an UpdateConfig."""
    manifest = Manifest.FromString(header.encoded)
    _check_known(manifest, (one for one in operation.field_metadata if one >= _IDS_END))
    operation = newer_form(operation)
    had_range_segments = _is_true(manifest.config.get(_RANGE_SEGMENTS, ""))
    if operation.HasField("config_updates"):
        _update_strings(manifest.config, operation.config_updates)
    if operation.HasField("table_metadata_updates"):
        _update_strings(manifest.table_metadata, operation.table_metadata_updates)
    if operation.HasField("schema_metadata_updates"):
        _update_bytes(manifest.schema_metadata, operation.schema_metadata_updates)
    if operation.field_metadata_updates:
        _update_fields(manifest, operation.field_metadata_updates)
    has_range_segments = _is_true(manifest.config.get(_RANGE_SEGMENTS, ""))
    if is_stable and has_range_segments and not had_range_segments:
        raise NotDirect(f"{_RANGE_SEGMENTS} writes the row ids of all fragments anew")
    managed = manifest.schema_metadata.get(MANAGED_BLOBS_KEY, b"false")
    if managed not in (b"true", b"false"):
        raise DeltaRefused(
            "bad_value", field=f"schema_metadata[{MANAGED_BLOBS_KEY!r}]", value=managed
        )
    return ManifestHeader.of(manifest)


def _check_known(manifest: Manifest, field_ids: Iterable[int]) -> None:
    known = {field.id for field in manifest.fields}
    unknown = min((one for one in field_ids if one not in known), default=None)
    if unknown is not None:
        raise DeltaRefused(
            "unknown_field", field="field_metadata_updates", value=unknown, known=sorted(known)
        )


def newer_form(operation: Transaction.UpdateConfig) -> Transaction.UpdateConfig:
    """Return an UpdateConfig in today's fields; refuse one that uses both kinds."""
    older = ("upsert_values", "delete_keys", "schema_metadata", "field_metadata")
    newer = ("config_updates", "table_metadata_updates", "schema_metadata_updates")
    if not any(getattr(operation, name) for name in older):
        return operation
    if operation.field_metadata_updates or any(operation.HasField(name) for name in newer):
        raise DeltaRefused("mixed_forms", field="update_config", value="both")
    translated = Transaction.UpdateConfig()
    if operation.upsert_values or operation.delete_keys:
        updates = translated.config_updates.update_entries
        updates.extend(_upserts(operation.upsert_values))
        updates.extend(UpdateMapEntry(key=key) for key in operation.delete_keys)
    if operation.schema_metadata:
        translated.schema_metadata_updates.replace = True
        entries = _upserts(operation.schema_metadata)
        translated.schema_metadata_updates.update_entries.extend(entries)
    for field_id, update in operation.field_metadata.items():
        if field_id >= _IDS_END:
            continue
        target = translated.field_metadata_updates[field_id]
        target.replace = True
        target.update_entries.extend(_upserts(update.metadata))
    return translated


def _upserts(values: Mapping[str, str]) -> Iterable[Transaction.UpdateMapEntry]:
    return (UpdateMapEntry(key=key, value=values[key]) for key in sorted(values))


def _update_strings(target: MutableMapping[str, str], updates: Transaction.UpdateMap) -> None:
    if updates.replace:
        target.clear()
    for entry in updates.update_entries:
        if entry.HasField("value"):
            target[entry.key] = entry.value
        else:
            target.pop(entry.key, None)


def _update_bytes(target: MutableMapping[str, bytes], updates: Transaction.UpdateMap) -> None:
    if updates.replace:
        target.clear()
    for entry in updates.update_entries:
        if entry.HasField("value"):
            target[entry.key] = entry.value.encode()
        else:
            target.pop(entry.key, None)


def _update_fields(manifest: Manifest, updates: Mapping[int, Transaction.UpdateMap]) -> None:
    fields = {field.id: field for field in manifest.fields}
    primary_before, clustering_before = _primary_key(manifest), _clustering_key(manifest)
    keys = {entry.key for update in updates.values() for entry in update.update_entries}
    if any(key.startswith("lance-encoding:blob") for key in keys):
        raise NotDirect("the encoding of blob columns is checked by Lance")
    _check_known(manifest, updates)
    for field_id in sorted(updates):
        field = fields[field_id]
        _update_bytes(field.metadata, updates[field_id])
        _derive_keys(field)
    writes_primary = not keys.isdisjoint({_PRIMARY_KEY, _PRIMARY_KEY_POSITION})
    _check_key("primary", primary_before, _primary_key(manifest), writes_primary)
    if writes_primary:
        verify_primary_key(manifest, fields)
    writes_clustering = _CLUSTERING_KEY_POSITION in keys
    _check_key("clustering", clustering_before, _clustering_key(manifest), writes_clustering)


def _derive_keys(field: Field) -> None:
    """Set what Lance keeps beside the metadata although it follows from it."""
    position = _position(field, _PRIMARY_KEY_POSITION)
    flagged = _is_true(field.metadata.get(_PRIMARY_KEY, b"").decode("utf-8", "replace"))
    field.unenforced_primary_key = position is not None or flagged
    field.unenforced_primary_key_position = position or 0
    field.unenforced_clustering_key_position = _position(field, _CLUSTERING_KEY_POSITION) or 0
    extension = field.metadata.get(_EXTENSION_NAME, b"")
    field.extension_name = extension.decode("utf-8", "replace")


def _position(field: Field, key: str) -> int | None:
    text = field.metadata.get(key, b"").decode("utf-8", "replace")
    if not _UNSIGNED.fullmatch(text) or int(text) >= 2**32:
        return None
    return int(text)


def _is_true(text: str) -> bool:
    return text.lower() in _TRUE


def _primary_key(manifest: Manifest) -> list[int]:
    keyed = [field for field in manifest.fields if field.unenforced_primary_key]
    keyed.sort(
        key=lambda f: (
            not f.unenforced_primary_key_position,
            f.unenforced_primary_key_position or f.id,
            f.id,
        )
    )
    return [field.id for field in keyed]


def _clustering_key(manifest: Manifest) -> list[int]:
    keyed = [field for field in manifest.fields if field.unenforced_clustering_key_position]
    keyed.sort(key=lambda field: field.unenforced_clustering_key_position)
    return [field.id for field in keyed]


def _check_key(kind: str, before: list[int], after: list[int], is_written: bool) -> None:
    if before and (is_written or after != before):
        raise DeltaRefused(f"{kind}_key_is_set", field="field_metadata_updates", value=before)
    if is_written and not after:
        raise DeltaRefused(f"{kind}_key_value_invalid", field="field_metadata_updates", value=after)


def verify_primary_key(manifest: Manifest, fields: Mapping[int, Field]) -> None:
    """Refuse a primary key that Lance wouldn't keep."""
    parents = {field.parent_id for field in manifest.fields}
    for field_id in _primary_key(manifest):
        node: Field | None = fields[field_id]
        is_sound = field_id not in parents
        while node is not None and is_sound:
            kind = node.logical_type.split(".")[0]
            is_sound = not node.nullable and kind not in {"list", "large_list", "map"}
            node = fields.get(node.parent_id)
        if not is_sound:
            raise DeltaRefused(
                "primary_key_invalid", field="field_metadata_updates", value=fields[field_id].name
            )


def updated_bases(header: ManifestHeader, operation: Transaction.UpdateBases) -> ManifestHeader:
    """Return the header after an UpdateBases."""
    manifest = Manifest.FromString(header.encoded)
    bases = manifest.base_paths
    places: dict[tuple[str, str | None], int] = {}
    for place, base in enumerate(bases):
        for mark in _marks(base):
            places.setdefault(mark, place)
    used = {base.id for base in bases}
    free = (one for one in count(1) if one not in used)
    for new_base in operation.new_bases:
        marks = _marks(new_base)
        standing = [places[mark] for mark in marks if mark in places]
        if standing:
            base_id = bases[min(standing)].id
            raise DeltaRefused(
                "base_path_exists", field="new_bases", value=new_base.path, base=base_id
            )
        if new_base.id and new_base.id in used:
            raise DeltaRefused("base_id_exists", field="new_bases.id", value=new_base.id)
        places.update(dict.fromkeys(marks, len(bases)))
        added = bases.add()
        added.CopyFrom(new_base)
        added.id = added.id or next(free)
        used.add(added.id)
    return ManifestHeader.of(manifest)


def _marks(base: BasePath) -> list[tuple[str, str | None]]:
    """Return what no other base has; as in Lance, two without a name have the same name."""
    return [("name", base.name if base.HasField("name") else None), ("path", base.path)]
