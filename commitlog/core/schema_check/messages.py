"""Whether Lance can open what an operation brings: names, schemas, indices, encoded sets.

Asked of the operation alone, before anything else is: by the client and the servers before they
append, and by the machine of every record. What takes the table's state is in `new_version`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import chain

from google.protobuf.message import DecodeError

from commitlog.core.manifest.row_lineage import lost_lineage
from commitlog.core.schema_check.index_entries import index_problem, is_bitmap
from commitlog.core.schema_check.schema import format_problem, schema_key_problem, schema_problem
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.rowids_pb2 import RowDatasetVersionSequence, RowIdSequence
from commitlog.lancepb.table_pb2 import DataFragment, DataOverlayFile
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.names import (
    NameProblem,
    first_problem,
    key_problem,
    label_problem,
    part_problem,
    problem_of,
)
from commitlog.model.operations import CreateTable, IcebergChange, LanceCommit, Operation
from commitlog.model.reasons import Phrase

_JSON_NUL = "\\u0000"


def operation_problem(operation: Operation, message: Transaction | None) -> NameProblem | None:
    """Return what an operation brings that Lance couldn't open, None if nothing.

    `message` is Lance's own, if the operation carries one.
    """
    if isinstance(operation, CreateTable):
        try:
            fields = [Field.FromString(encoded) for encoded in operation.fields]
        except DecodeError:
            return None  # refused where the fields are read
        return (
            problem_of(operation)
            or schema_problem(fields)
            or format_problem(fields, operation.data_storage_version)
            or first_problem("metadata key", dict(operation.schema_metadata), schema_key_problem)
        )
    if isinstance(operation, IcebergChange):
        return problem_of(operation) or _iceberg_problem(operation)
    if message is None:
        return problem_of(operation)
    problem = message_problem(message)
    if isinstance(operation, LanceCommit):
        if operation.schema_metadata:
            keys = dict(operation.schema_metadata)
            problem = problem or first_problem("metadata key", keys, schema_key_problem)
        if message.HasField("clone"):
            problem = problem or first_problem("table", operation.table, part_problem)
    return problem


def _iceberg_problem(operation: IcebergChange) -> NameProblem | None:
    """Return the first column or property with a NUL, which readers' native code cuts off."""
    if _JSON_NUL not in operation.updates:
        return None
    try:
        updates = json.loads(operation.updates)
    except (ValueError, RecursionError):
        return None  # refused where the updates are read
    left = [updates]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left.extend(value)
        elif isinstance(value, dict):
            left.extend(value.values())
            names = [value["name"]] if isinstance(value.get("name"), str) else []
            problem = first_problem("column", names, key_problem) or first_problem(
                "properties", value, key_problem
            )
            if problem is not None:
                return problem
    return None


def message_problem(message: Transaction) -> NameProblem | None:
    """Return what is wrong with what a message brings, None if nothing."""
    which = message.WhichOneof("operation") or ""
    check = _CHECKS.get(which)
    return check(message) if check is not None else None


def _append(message: Transaction) -> NameProblem | None:
    return _fragments(message.append.fragments)


def _overwrite(message: Transaction) -> NameProblem | None:
    body = message.overwrite
    return (
        schema_problem(body.schema)
        or first_problem("metadata key", body.schema_metadata, schema_key_problem)
        or first_problem("config key", body.config_upsert_values, key_problem)
        or _fragments(body.fragments)
    )


def _merge(message: Transaction) -> NameProblem | None:
    body = message.merge
    keys = first_problem("metadata key", body.schema_metadata, schema_key_problem)
    return schema_problem(body.schema) or keys or _fragments(body.fragments)


def _project(message: Transaction) -> NameProblem | None:
    return schema_problem(message.project.schema)


def _update(message: Transaction) -> NameProblem | None:
    body = message.update
    for encoded in body.updated_fragment_offset_bitmaps.values():
        if not is_bitmap(encoded):
            return _unreadable("updated_fragment_offset_bitmaps", "a Roaring bitmap")
    return _fragments(chain(body.new_fragments, body.updated_fragments))


def _delete(message: Transaction) -> NameProblem | None:
    return _fragments(message.delete.updated_fragments)


def _rewrite(message: Transaction) -> NameProblem | None:
    body = message.rewrite
    return _fragments(chain(body.new_fragments, *(group.new_fragments for group in body.groups)))


def _overlay(message: Transaction) -> NameProblem | None:
    groups = message.data_overlay.groups
    return _overlays(chain.from_iterable(group.overlays for group in groups))


def _create_index(message: Transaction) -> NameProblem | None:
    for index in message.create_index.new_indices:
        problem = index_problem(index)
        if problem:
            return NameProblem("index", index.name, problem)
    for index in message.create_index.removed_indices:
        if index.fragment_bitmap and not is_bitmap(index.fragment_bitmap):
            return _unreadable("removed_indices.fragment_bitmap", "a Roaring bitmap")
    return None


def _update_config(message: Transaction) -> NameProblem | None:
    body = message.update_config
    keys = [*body.schema_metadata, *_set_by(body.schema_metadata_updates)]
    return first_problem("metadata key", keys, schema_key_problem) or first_problem(
        "metadata key", _config_keys(body), key_problem
    )


def _update_bases(message: Transaction) -> NameProblem | None:
    texts = (text for base in message.update_bases.new_bases for text in (base.name, base.path))
    return first_problem("base path", texts, key_problem)


def _clone(message: Transaction) -> NameProblem | None:
    named = (message.clone.ref_path, message.clone.ref_name)
    return first_problem("location", named, key_problem) or first_problem(
        "branch", (message.clone.branch_name,), label_problem
    )


_CHECKS: dict[str, Callable[[Transaction], NameProblem | None]] = {
    "append": _append,
    "clone": _clone,
    "create_index": _create_index,
    "data_overlay": _overlay,
    "delete": _delete,
    "merge": _merge,
    "overwrite": _overwrite,
    "project": _project,
    "rewrite": _rewrite,
    "update": _update,
    "update_bases": _update_bases,
    "update_config": _update_config,
}


def _config_keys(operation: Transaction.UpdateConfig) -> Iterable[str]:
    yield from operation.upsert_values
    for old in operation.field_metadata.values():
        yield from old.metadata
    maps = [operation.config_updates, operation.table_metadata_updates]
    for update in [*maps, *operation.field_metadata_updates.values()]:
        yield from _set_by(update)


def _set_by(update: Transaction.UpdateMap) -> Iterable[str]:
    # A bad key that is there already may be removed.
    return (entry.key for entry in update.update_entries if entry.HasField("value"))


def _fragments(fragments: Iterable[DataFragment]) -> NameProblem | None:
    for fragment in fragments:
        problem = _lineage(fragment) or (
            _overlays(fragment.overlays) if fragment.overlays else None
        )
        if problem is not None:
            return problem
    return None


def _lineage(fragment: DataFragment) -> NameProblem | None:
    try:
        if fragment.inline_row_ids:
            RowIdSequence.FromString(fragment.inline_row_ids)
        for encoded in (
            fragment.inline_created_at_versions,
            fragment.inline_last_updated_at_versions,
        ):
            if encoded:
                RowDatasetVersionSequence.FromString(encoded)
    except DecodeError:
        return _unreadable(f"fragments[{fragment.id}]", "row ids and row versions")
    if lost := lost_lineage(fragment):
        return _unreadable(f"fragments[{fragment.id}]", f"a data file with its {lost}")
    return None


def _overlays(overlays: Iterable[DataOverlayFile]) -> NameProblem | None:
    for overlay in overlays:
        bitmaps = list(overlay.field_coverage.offset_bitmaps)
        if overlay.HasField("shared_offset_bitmap"):
            bitmaps.append(overlay.shared_offset_bitmap)
        if not all(map(is_bitmap, bitmaps)):
            return _unreadable(f"overlay {overlay.data_file.path}", "a Roaring bitmap")
    return None


def _unreadable(field: str, what: str) -> NameProblem:
    return NameProblem("operation", field, Phrase("encoded_otherwise", {"expected": what}))
