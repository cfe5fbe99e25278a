"""What each of Lance's operations touches, in the words that the history keeps.

`write_set_of` reads a committed transaction once; nothing else of it is needed by later checks. The
names of aspects are `Operation.what`; rules in `overlap` ask for them by these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple
from zlib import crc32

from commitlog.core.conflicts import metadata_write_sets as metadata
from commitlog.core.conflicts.history import Aspect, WriteSet
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import KeyHashes

UNKNOWN = "Unknown"
OPERATIONS = {
    "append": "Append",
    "delete": "Delete",
    "overwrite": "Overwrite",
    "create_index": "CreateIndex",
    "rewrite": "Rewrite",
    "merge": "Merge",
    "project": "Project",
    "restore": "Restore",
    "reserve_fragments": "ReserveFragments",
    "clone": "Clone",
    "update": "Update",
    "update_config": "UpdateConfig",
    "data_replacement": "DataReplacement",
    "data_overlay": "DataOverlay",
    "update_mem_wal_state": "UpdateMemWalState",
    "update_bases": "UpdateBases",
}
"""Lance 14.0.2's operations: the message's field, and the name."""
EXPLICIT_HASH_BYTES = 16
HASHES_OF_LANCE = "exact64"
HASHES_OF_OURS = "exact128"


class Keys(NamedTuple):
    """The keys that an operation inserts, as far as they are known."""

    signature: str
    """Which columns, hashed how; hashes compare only under one signature. Empty: unknown."""
    hashes: tuple[bytes, ...] = ()


UNKNOWN_KEYS = Keys("")


def kind_of(transaction: Transaction) -> str:
    """Return the operation's name; `Unknown` for an operation that 14.0.2 doesn't know."""
    field = transaction.WhichOneof("operation")
    return OPERATIONS[field] if field else UNKNOWN


def keys_of(transaction: Transaction, explicit: KeyHashes | None) -> Keys | None:
    """Return the keys of the rows that an operation adds, None if it adds no key."""
    if explicit is not None:
        fields = ",".join(map(str, explicit.field_ids))
        data, size = explicit.hashes, EXPLICIT_HASH_BYTES
        hashes = tuple(data[start : start + size] for start in range(0, len(data), size))
        if not hashes:
            return None  # its rows have keys that were there before
        return Keys(f"{HASHES_OF_OURS}:{fields}", hashes)
    field = transaction.WhichOneof("operation")
    if field == "update" and transaction.update.HasField("inserted_rows"):
        return _keys_of_filter(transaction.update.inserted_rows)
    if field == "append" or (field == "update" and transaction.update.new_fragments):
        return UNKNOWN_KEYS
    return None


def _keys_of_filter(rows: Transaction.KeyExistenceFilter) -> Keys:
    fields = ",".join(map(str, rows.field_ids))
    if rows.WhichOneof("data") == "exact":
        hashes = tuple(h.to_bytes(8) for h in rows.exact.key_hashes)
        return Keys(f"{HASHES_OF_LANCE}:{fields}", hashes)
    # A bloom filter compares with nothing for sure.
    return Keys(f"bloom:{fields}")


def files_digest(fragment: DataFragment) -> int:
    """Digest a fragment's data files, by which Lance tells whether they changed."""
    digest = 0
    for data_file in fragment.files:
        digest = crc32(data_file.SerializeToString(deterministic=True), digest)
    return digest


def write_set_of(
    transaction: Transaction, keys: Keys | None, before: ManifestState, *, has_keys: bool = False
) -> WriteSet:
    """Return what a transaction touched that is committed on top of `before`.

    `has_keys` says that the history holds an Append with keys: from there on, one without keys
    is noted as such, which is spared the tables where no Append ever has any.
    """
    field = transaction.WhichOneof("operation")
    if field is None:
        return WriteSet(UNKNOWN)
    of_operation = _TOUCHES.get(field)
    found = of_operation(getattr(transaction, field), before) if of_operation else metadata.NOTHING
    kind = OPERATIONS[field]
    if keys is None or (keys is UNKNOWN_KEYS and kind == "Append" and not has_keys):
        return WriteSet(kind, *found)
    aspects = tuple(chain(found.aspects, _key_aspects(kind, keys)))
    return WriteSet(kind, aspects, found.notes, found.deletion_files)


def _key_aspects(kind: str, keys: Keys) -> Iterator[Aspect]:
    if not keys.signature:
        yield f"{kind}.keys_unknown", ""
        return
    yield f"{kind}.keys", keys.signature
    yield f"{kind}.upsert", ""
    yield from ((f"{kind}.key", key) for key in keys.hashes)


def _images(
    kind: str, images: Iterable[DataFragment], before: ManifestState
) -> tuple[list[Aspect], list[tuple[int, str]]]:
    aspects: list[Aspect] = []
    deletion_files: list[tuple[int, str]] = []
    for image in images:
        aspects.append((f"{kind}.updated", image.id))
        known = before.fragments.get(image.id)
        if known is None:
            continue
        fragment = DataFragment.FromString(known)
        if files_digest(fragment) != files_digest(image):
            aspects.append(("files", image.id))
        if fragment.deletion_file != image.deletion_file:
            deletion_files.append((image.id, deletion_file_of(fragment)))
    return aspects, deletion_files


def deletion_file_of(fragment: DataFragment) -> str:
    """Return the path of a fragment's deletion file, empty if it has none.

    A file that lies at one of the table's bases has the base's id and a colon before its path.
    """
    if not fragment.HasField("deletion_file"):
        return ""
    path = deletion_file_path(fragment.id, fragment.deletion_file)
    is_here = not fragment.deletion_file.HasField("base_id")
    return path if is_here else f"{fragment.deletion_file.base_id}:{path}"


def _delete(operation: Transaction.Delete, before: ManifestState) -> metadata.Writes:
    aspects, deletion_files = _images("Delete", operation.updated_fragments, before)
    aspects.extend(("Delete.removed", f) for f in operation.deleted_fragment_ids)
    return metadata.Writes(tuple(aspects), (), tuple(deletion_files))


def moves_rows(operation: Transaction.Update) -> bool:
    """Say whether an Update takes rows out of their fragments and writes them anew."""
    return bool(operation.new_fragments) and operation.update_mode == Transaction.REWRITE_ROWS


def _with_descendants(fields: Iterable[int], before: ManifestState) -> list[int]:
    """Return fields and what lies in them: an index may be on the child of a packed struct."""
    found = dict.fromkeys(fields)
    if found:
        for field_id, field in before.header.fields.items():  # parents come before children
            if field.parent_id in found:
                found[field_id] = None
    return list(found)


def _update(operation: Transaction.Update, before: ManifestState) -> metadata.Writes:
    updated = operation.updated_fragments
    aspects, deletion_files = _images("Update", updated, before)
    aspects.extend(("Update.removed", f) for f in operation.removed_fragment_ids)
    if moves_rows(operation):
        aspects.extend(("Update.moved", image.id) for image in updated)
    for field_id in _with_descendants(operation.fields_modified, before):
        aspects.append(("Update.patched_field", field_id))
        aspects.extend(("Update.patched", (image.id, field_id)) for image in updated)
    generations = metadata.generations("Update", operation.compacted_sstables)
    aspects.extend(aspect for aspect, _ in generations)
    return metadata.Writes(tuple(aspects), generations, tuple(deletion_files))


def rewritten_fragments(operation: Transaction.Rewrite) -> list[int]:
    """Return the ids of the fragments that a Rewrite replaces."""
    groups = (group.old_fragments for group in operation.groups)
    return [f.id for f in chain(operation.old_fragments, *groups)]


def _rewrite(operation: Transaction.Rewrite, before: ManifestState) -> metadata.Writes:
    return metadata.Writes(tuple(("Rewrite.old", f) for f in rewritten_fragments(operation)))


def _data_replacement(
    operation: Transaction.DataReplacement, before: ManifestState
) -> metadata.Writes:
    aspects: list[Aspect] = []
    for group in operation.replacements:
        aspects.append(("DataReplacement.fragment", group.fragment_id))
        aspects.append(("files", group.fragment_id))
        for field_id in group.new_file.fields:
            aspects.append(("DataReplacement.cell", (group.fragment_id, field_id)))
            aspects.append(("DataReplacement.field", field_id))
    return metadata.Writes(tuple(dict.fromkeys(aspects)))


def _data_overlay(operation: Transaction.DataOverlay, before: ManifestState) -> metadata.Writes:
    aspects: list[Aspect] = []
    for group in operation.groups:
        aspects.append(("DataOverlay.fragment", group.fragment_id))
        for overlay in group.overlays:
            for field_id in overlay.data_file.fields:
                aspects.append(("DataOverlay.cell", (group.fragment_id, field_id)))
    return metadata.Writes(tuple(dict.fromkeys(aspects)))


_TOUCHES: dict[str, Callable[[Any, ManifestState], metadata.Writes]] = {
    "delete": _delete,
    "update": _update,
    "update_config": metadata.update_config,
    "overwrite": metadata.overwrite,
    "merge": metadata.merge,
    "project": metadata.project,
    "rewrite": _rewrite,
    "data_replacement": _data_replacement,
    "data_overlay": _data_overlay,
    "create_index": metadata.create_index,
    "update_mem_wal_state": metadata.update_mem_wal_state,
    "update_bases": metadata.update_bases,
}
