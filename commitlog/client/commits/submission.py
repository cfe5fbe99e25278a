"""Turns callers' requests into operations of the log; refuses what the leader would refuse.

The leader checks everything again, and it alone decides. A check here costs no round trip, and
leaves the log as it was: it compares the operation with itself, with the table's description, and
with the files at the table's location.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from typing import Any

import lance
from pyroaring import BitMap

from commitlog.adapters.lance_datasets import open_dataset
from commitlog.adapters.storage import local_path
from commitlog.client.commits.clones import clone, is_clone
from commitlog.client.commits.iceberg_text import checked_change
from commitlog.client.leader.arguments import refused
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.contents import complete, contents, summary
from commitlog.client.rows.full_storage import storage_full
from commitlog.client.rows.host import Host, TableName
from commitlog.client.rows.lance_request import HEAD, LanceRequest, parse_message, read_request
from commitlog.client.rows.rows import Prepared
from commitlog.codecs.lance_objects import to_append, to_transaction
from commitlog.codecs.lance_schema import SchemaMetadata
from commitlog.codecs.lanes import AppendedFiles
from commitlog.core.conflicts.write_sets import KINDS, UNKNOWN
from commitlog.core.manifest.data_files import leads_out
from commitlog.core.manifest.roaring import portable
from commitlog.errors import InvalidTransaction, MissingDataFile
from commitlog.lancepb.table_pb2 import DataFile, DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.operations import (
    AffectedRows,
    IcebergChange,
    KeyHashes,
    LanceCommit,
    Operation,
    Summary,
    target,
)
from commitlog.model.table import format_table_id, parse_table_id
from commitlog.newest import Newest

AffectedRowsLike = Mapping[int, BitMap | Iterable[int] | bytes] | Sequence[AffectedRows]
_DATA_DIRECTORY = "data"
_FREE_BYTES_MIN = 64 * 1024
_FIRST = itemgetter(0)


def as_operations(
    log: Host,
    table_id: TableName | None,
    operation: Any,
    *,
    transaction_id: str | None,
    **options: Any,
) -> tuple[tuple[Operation, ...], str | None, bool]:
    """Return what was handed over as the log's operations, with its id and whether that is new.

    No id: any new one will do.
    """
    is_append = type(operation) is lance.LanceOperation.Append
    if table_id is not None and not is_append and is_clone(operation):
        request = read_request(operation, read_version=None, transaction_id=transaction_id)
        made = clone(log, parse_table_id(table_id), request)
        return made, request.transaction_id, request.id_is_new
    built, chosen, is_new = as_operation(
        log,
        table_id,
        operation,
        transaction_id=transaction_id,
        **options,
    )
    return (built,), chosen, is_new


def as_operation(
    log: Host,
    table_id: TableName | None,
    operation: Any,
    *,
    read_version: int | None,
    transaction_id: str | None,
    affected_rows: AffectedRowsLike | None,
    inserted_keys: KeyHashes | None,
    schema_metadata: SchemaMetadata | None = None,
) -> tuple[Operation, str | None, bool]:
    """Return what `as_operations` does, of one operation."""
    table = None if table_id is None else parse_table_id(table_id)
    if isinstance(operation, Operation):
        if table is not None and target(operation) != table:
            raise InvalidTransaction(
                f"the operation is for {format_table_id(target(operation))}",
                field="table",
                value=table_id,
                advice="Pass that table, or leave the table out",
            )
        if isinstance(operation, IcebergChange):
            operation = checked_change(operation)
        return operation, transaction_id, transaction_id is None
    if table is None:
        raise InvalidTransaction("no table is given", field="table", advice="Name it")
    request = read_request(operation, read_version=read_version, transaction_id=transaction_id)
    info = log.describe(table, fresh=request.read_version == HEAD)
    if request.read_version > info.version:
        info = log.describe(table, fresh=True)
        check_read_version(info, request.read_version)
    built = lance_commit(
        info,
        request,
        affected_rows=affected_rows,
        inserted_keys=inserted_keys,
        schema_metadata=schema_metadata,
    )
    return built, request.transaction_id, request.id_is_new


def check_read_version(info: TableInfo, read_version: int) -> None:
    """Refuse a read version that doesn't exist yet."""
    if read_version > info.version:
        raise InvalidTransaction(
            f"read version {read_version} of {info.name} is in the future: the head is"
            f" {info.version}",
            field="read_version",
            value=read_version,
            advice="Pass the version that was read, or leave it out for the head",
        )


def lance_commit(
    info: TableInfo,
    request: LanceRequest,
    *,
    affected_rows: AffectedRowsLike | None = None,
    inserted_keys: KeyHashes | None = None,
    schema_metadata: SchemaMetadata | None = None,
    is_prepared: bool = False,
) -> LanceCommit:
    """Encode and check one of Lance's operations on a table.

    One that `is_prepared` names fragments of the version that it was made from: no look is needed.
    """
    read_version = info.version if request.read_version == HEAD else request.read_version
    which, metadata, rows = "append", None, affected(affected_rows)
    made = None if rows else _plain_append(info, request, read_version)
    if made is not None:
        encoded, said = made
    else:
        message, encoded, metadata = _encode(info, request, read_version)
        which, added, updated, removed = contents(message)
        _check(info, which, 0 if is_prepared else read_version, added, updated, removed)
        said = summary(added, updated, removed, rows)
        if which == "rewrite":  # of rows that were there before
            said = replace(said, rows_added=0)
    return LanceCommit(
        table=info.table_id,
        operation=KINDS.get(which, UNKNOWN),
        read_version=read_version,
        message=encoded,
        incarnation=info.incarnation,
        schema_metadata=metadata if schema_metadata is None else schema_metadata,
        affected_rows=rows,
        inserted_keys=inserted_keys,
        summary=said,
    )


def prepared_commit(
    info: TableInfo, prepared: Prepared, transaction_id: str, *, id_is_new: bool
) -> LanceCommit:
    """Encode and check what was prepared for a table, as `lance_commit` does."""
    return lance_commit(
        info,
        LanceRequest(prepared.operation, transaction_id, id_is_new, prepared.read_version),
        affected_rows=prepared.affected,
        inserted_keys=prepared.keys,
        is_prepared=True,
    )


def _plain_append(
    info: TableInfo, request: LanceRequest, read_version: int
) -> tuple[bytes, Summary] | None:
    """Encode and check an append of new files, where machine code does; None: do it as others."""
    made = to_append(request.operation, read_version=read_version, uuid=request.uuid)
    if made is None:
        return None
    encoded, rows, size, files = made
    if not are_there(info, files):
        return None
    said = Summary(
        rows_added=rows,
        bytes_added=size,
        fragments_added=len(request.operation.fragments),
        data_files=tuple(map(_FIRST, files)),
    )
    return encoded, said


def are_there(info: TableInfo, files: AppendedFiles) -> bool:
    """Return True if nothing is wrong with new data files; of False `check` says what it is."""
    known = info.field_ids.keys() if info.fields else None
    root = _local_root(info.location)
    for path, size_bytes, fields in files:
        if leads_out(path) or (known is not None and not known >= set(fields)):
            return False
        try:
            found = os.stat(f"{root}/{_DATA_DIRECTORY}/{path}").st_size if root else size_bytes
        except OSError:
            return False
        if found != (size_bytes or found):
            return False
    return True


def _encode(
    info: TableInfo, request: LanceRequest, read_version: int
) -> tuple[LanceMessage, bytes, SchemaMetadata | None]:
    operation, uuid = request.operation, request.uuid
    metadata: SchemaMetadata | None = None
    is_encoded = isinstance(operation, bytes | bytearray | memoryview)
    if is_encoded or isinstance(operation, LanceMessage):
        message = parse_message(bytes(operation)) if is_encoded else operation
        if is_encoded and message.uuid == uuid and message.read_version == read_version:
            return message, bytes(operation), None
        message.uuid, message.read_version = uuid, read_version
    else:
        what = f"the {type(operation).__name__} holds a value that Lance cannot store"
        advice = "Pass the types that pylance documents; ids and versions are at least 0"
        with refused(what, "operation", operation, advice):
            message, metadata = to_transaction(operation, read_version=read_version, uuid=uuid)
        complete(info, operation, message)
    return message, message.SerializeToString(deterministic=True), metadata


def affected(rows: AffectedRowsLike | None) -> tuple[AffectedRows, ...]:
    """Return affected rows as the log carries them, by fragment."""
    if not rows:
        return ()
    advice = "Give offsets of rows by the ids of their fragments"
    with refused("affected_rows names no rows", "affected_rows", rows, advice):
        if isinstance(rows, Mapping):
            rows = [AffectedRows(one, _offsets(rows[one])) for one in rows]
        found = sorted(rows, key=lambda entry: entry.fragment_id)
        if found[0].fragment_id < 0:
            raise ValueError(f"fragment id {found[0].fragment_id} is negative")
        return tuple(found)


def _offsets(given: BitMap | Iterable[int] | bytes) -> bytes:
    return given if isinstance(given, bytes) else portable(BitMap(given))


def check(info: TableInfo, message: LanceMessage, read_version: int) -> None:
    """Refuse what the leader would certainly refuse."""
    which, added, updated, removed = contents(message)
    _check(info, which, read_version, added, updated, removed)


def _check(
    info: TableInfo,
    which: str,
    read_version: int,
    added: Sequence[DataFragment],
    updated: Sequence[DataFragment],
    removed: Sequence[int],
) -> None:
    if updated or removed:
        ids = [fragment.id for fragment in updated] + list(removed)
        _check_once(ids)
        if read_version:
            _check_exist(info, ids, read_version)
    elif which == "append" and len(added) > 1:
        _check_once([fragment.id for fragment in added if fragment.id])
    # The leader takes files with a column that the version read had, and that was dropped since.
    is_read = bool(info.fields) and read_version in (0, info.version)
    known = info.field_ids.keys() if which in ("append", "update") and is_read else None
    root = _local_root(info.location)
    for file in (file for fragment in added for file in fragment.files):
        if known is not None and not known >= set(file.fields):
            _check_fields(info, file)
        if root:
            _check_file(info, root, file)
    for file in (file for fragment in updated for file in fragment.files if root):
        _check_file(info, root, file)


@lru_cache(maxsize=1024)
def _local_root(location: str) -> str:
    return os.fspath(local_path(location) or "")


def _check_once(ids: Sequence[int]) -> None:
    seen: set[int] = set()
    for fragment_id in ids:
        if fragment_id in seen:
            raise InvalidTransaction(
                f"fragment {fragment_id} is named twice",
                field="fragment_id",
                value=fragment_id,
                advice="Name each fragment once, either as updated or as removed",
            )
        seen.add(fragment_id)


def _check_fields(info: TableInfo, file: DataFile) -> None:
    # Negative ids stand for columns that were dropped.
    foreign = [field for field in file.fields if field >= 0 and field not in info.field_ids]
    if foreign:
        raise InvalidTransaction(
            f"data file {file.path} has the field ids {foreign}, which the schema of"
            f" {info.name} at version {info.version} doesn't have",
            field="fields",
            value=foreign,
            advice="Write the fragments with the table's schema"
            " (lance.fragment.write_fragments(data, log.open(table)))",
        )


def _check_file(info: TableInfo, root: str, file: DataFile) -> None:
    if file.HasField("base_id"):
        return
    if leads_out(file.path):
        raise InvalidTransaction(
            f"the path {file.path!r} leads out of the data files of {info.name}",
            field="files",
            value=file.path,
            advice="Name a file below the table's folder of data",
        )
    try:
        size = os.stat(f"{root}/{_DATA_DIRECTORY}/{file.path}").st_size
    except PermissionError:
        return  # the leader may look
    except OSError:
        raise MissingDataFile(
            f"data file {file.path} isn't in {root}/{_DATA_DIRECTORY}",
            field="files",
            value=file.path,
            advice=f"Write it to the location of {info.name} first",
        ) from None
    if file.file_size_bytes and size != file.file_size_bytes:
        # Lance ignores that the last bytes of a file, or all of a small one, found no space.
        if size < file.file_size_bytes and shutil.disk_usage(root).free < _FREE_BYTES_MIN:
            raise storage_full(info.name, info.location)
        raise MissingDataFile(
            f"data file {file.path} has {size} bytes instead of {file.file_size_bytes}",
            field="files",
            value=file.path,
            advice="Write it again: it is cut off, or another file",
        )


def _check_exist(info: TableInfo, ids: Iterable[int], read_version: int) -> None:
    known = _fragment_ids(info.location, info.incarnation, read_version)
    missing = sorted(set(ids) - known) if known is not None else []
    if missing:
        raise InvalidTransaction(
            f"{info.name} has no fragment {missing[0]} at version {read_version}",
            field="fragment_id",
            value=missing,
            advice="Read the version again, and name the fragments that it has",
        )


_known_fragments: Newest[tuple[str, str, int], frozenset[int]] = Newest(16)


def _fragment_ids(location: str, incarnation: str, version: int) -> frozenset[int] | None:
    """Return the fragments of a version whose manifest is there; None if it isn't."""
    key = (location, incarnation, version)
    found = _known_fragments.get(key)
    if found is None:
        try:
            dataset = open_dataset(location, version)
        except (ValueError, OSError):
            return None
        found = frozenset(fragment.fragment_id for fragment in dataset.get_fragments())
        _known_fragments[key] = found
    return found
