"""New versions of a table: from a committed result to the change that follows from it.

`realize` is what a replay runs, and what the leader's own decision comes to as well: both hand the
same state, message and result to the same builder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from commitlog.core.conflicts.history import WriteSet
from commitlog.core.decisions import Change, ChangeKind, Noted, noted, rejected
from commitlog.core.draft import Draft, Parsed, View, parse
from commitlog.core.lance.bases import check_bases
from commitlog.core.lance.direct import append_delta, direct_delta
from commitlog.core.lance.staged_keys import keys_in
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState
from commitlog.core.operations.append import KEYED, PLAIN
from commitlog.core.operations.awaited_columns import delivered_again
from commitlog.core.operations.registry import OPERATION_NAMED, operation_of
from commitlog.core.tables.lance_tables import Table
from commitlog.errors import CorruptLog
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import (
    HEADERS_BOUNDED_SINCE,
    HEADERS_BYTES_MAX,
    INLINE_SUM_SINCE,
    OUTCOME_INLINE_BYTES_MAX,
    OUTCOME_INLINE_SUM_MAX,
)
from commitlog.model.operations import CreateTableVersion, LanceCommit, Operation
from commitlog.model.records import Code, FragmentImage, OperationResult, Recording
from commitlog.model.table import TableId, format_table_id

STAGED_DIRECTORY = "_versions/"

VersionMaker = LanceCommit | CreateTableVersion


def add_version(
    draft: Draft,
    view: View,
    operation: VersionMaker,
    parsed: Parsed,
    final: Transaction,
    result: OperationResult,
    delta: ManifestDelta,
) -> None:
    """Add a new version to the draft; later operations of the record see it."""
    count_made(draft, view.table.table_id, len(delta.header or b""))
    check_bases(draft, view.table.table_id, view.table.location, view.state, delta.header)
    draft.results.append(result)
    draft.changes.append(_change(view.table, operation, parsed, final, result, delta))
    if not draft.is_single:
        assert view.state is not None
        seen = write_set_of_version(view.table, operation, parsed.kind, final, view.state)
        view.advance(draft.transaction.transaction_id, seen, delta)


def count_made(draft: Draft, table: TableId, size: int) -> None:
    """Refuse a record whose headers and registered manifests are more than a leader can hold."""
    draft.header_bytes += size
    is_bounded = draft.rules.protocol >= HEADERS_BOUNDED_SINCE and not draft.is_single
    if is_bounded and draft.header_bytes > HEADERS_BYTES_MAX:
        raise rejected(
            Code.INVALID_OPERATION,
            "headers_too_large",
            table=format_table_id(table),
            bytes=draft.header_bytes,
            most=HEADERS_BYTES_MAX,
        )


def _change(
    table: Table,
    operation: VersionMaker,
    parsed: Parsed,
    final: Transaction,
    result: OperationResult,
    delta: ManifestDelta,
) -> Change:
    staged_path, said = "", None
    if isinstance(operation, CreateTableVersion):
        said = noted(operation.e_tag, operation.metadata)
        # What is adopted stands under its final name already.
        is_verbatim, staged_path = True, "" if operation.adopt else operation.manifest_path
    else:
        is_verbatim = final is parsed.transaction
        if result.files:
            staged = (f.path for f in result.files if f.path.startswith(STAGED_DIRECTORY))
            staged_path = next(staged, "")
    message = operation.message if is_verbatim else final.SerializeToString(deterministic=True)
    return _new_version(table, delta, message, staged_path, said)


def _new_version(
    table: Table,
    delta: ManifestDelta,
    message: bytes,
    staged_path: str = "",
    said: Noted | None = None,
) -> Change:
    return Change(
        table=table.table_id,
        incarnation=table.incarnation,
        kind=ChangeKind.VERSION,
        location=table.location,
        policy=table.policy,
        version=delta.version,
        delta=delta,
        message=message,
        staged_path=staged_path,
        noted=said,
    )


def plain_write_set(table: Table, operation: VersionMaker, parsed: Parsed) -> WriteSet | None:
    """Return the same of a plain append that names no keys, where none did; else None."""
    is_keyless = isinstance(operation, LanceCommit) and operation.inserted_keys is None
    is_plain = parsed.plain is not None and is_keyless and KEYED not in table.history.keyed
    return PLAIN if is_plain else None


def write_set_of_version(
    table: Table, operation: VersionMaker, kind: str, final: Transaction, before: ManifestState
) -> WriteSet:
    """Return what the history has to keep of a version."""
    if isinstance(operation, LanceCommit):
        explicit = operation.inserted_keys
    else:
        explicit = keys_in(operation.metadata)
    of_kind = OPERATION_NAMED[kind]
    has_keys = f"{kind}.keys" in table.history.keyed
    return of_kind.write_set(of_kind.body(final), explicit, before, has_keys=has_keys)


def realize(
    table: Table,
    operation: VersionMaker,
    parsed: Parsed,
    result: OperationResult,
    time_ms: int,
    recordings: Mapping[bytes, bytes],
    release: str,
) -> Change:
    """Return the change that a committed result stands for, on the state that it was made for."""
    state = table.manifest
    assert state is not None
    is_direct = result.delta is None and not result.images
    if parsed.plain is not None and is_direct and result.version == state.version + 1:
        change = plain_change(table, operation, parsed, time_ms=time_ms, release=release)
        if change is not None:
            return change
    final = parsed.transaction
    if isinstance(operation, LanceCommit):
        read_version = operation.read_version or result.read_version
        if OPERATION_NAMED[parsed.kind].read_at_head:
            read_version = result.read_version
        final = finalize(final, read_version, result.images)
    if result.delta is not None:
        delta = ManifestDelta.from_bytes(recorded(result.delta, recordings))
        if isinstance(operation, LanceCommit):
            final = OPERATION_NAMED[parsed.kind].as_built(
                final, state.index_section, delta.index_section
            )
    else:
        delta = direct_delta(state, final, timestamp_ms=time_ms, release=release)
    is_next = result.version == state.version + 1 or not state.version
    if delta.version != result.version or not is_next:
        raise CorruptLog(
            f"version {result.version} of {format_table_id(table.table_id)} does not follow "
            f"version {state.version}; stop and run `commitlog verify`"
        )
    return _change(table, operation, parsed, final, result, delta)


def plain_change(
    table: Table, operation: VersionMaker, parsed: Parsed, *, time_ms: int, release: str
) -> Change | None:
    """Return what an append of plain fragments makes of the head; None if it isn't so simple."""
    plain, state = parsed.plain, table.manifest
    if plain is None or state is None or not isinstance(operation, LanceCommit):
        return None
    if not 0 < operation.read_version == plain[0]:
        return None
    delta = append_delta(state, plain, timestamp_ms=time_ms, release=release)
    return None if delta is None else _new_version(table, delta, operation.message)


def recorded(recording: Recording, recordings: Mapping[bytes, bytes]) -> bytes:
    """Return a recording's bytes, checked."""
    data = recording.inline
    if data is None:
        data = recordings.get(recording.sha256, b"")
    if hashlib.sha256(data).digest() != recording.sha256:
        raise CorruptLog(
            f"the recording {recording.sha256.hex()} is missing or differs; restore it"
        )
    return data


def delivered_file(operation: Operation, result: OperationResult) -> bytes:
    """Return the file by which a Merge was completed, empty if there was none."""
    if not result.images or not isinstance(operation, LanceCommit):
        return b""
    return delivered_again(parse(operation).transaction, result.images)


def record_delta(draft: Draft, delta: ManifestDelta) -> Recording:
    """Record a delta that a replay could not compute."""
    return record(draft, delta.to_bytes())


def record(draft: Draft, data: bytes) -> Recording:
    """Record bytes that a replay could not compute."""
    digest = hashlib.sha256(data).digest()
    inline = draft.inline_bytes + len(data)
    is_bounded = draft.rules.protocol < INLINE_SUM_SINCE or inline <= OUTCOME_INLINE_SUM_MAX
    if len(data) <= OUTCOME_INLINE_BYTES_MAX and is_bounded:
        draft.inline_bytes = inline
        return Recording(digest, len(data), data)
    draft.recordings.append(data)
    return Recording(digest, len(data), None)


def finalize(
    transaction: Transaction, read_version: int, images: tuple[FragmentImage, ...]
) -> Transaction:
    """Return the transaction as it is built: its read version, and fragments as rebased."""
    if transaction.read_version != read_version or images:
        original, transaction = transaction, Transaction()
        transaction.CopyFrom(original)
        transaction.read_version = read_version
    if images:
        operation = operation_of(transaction)
        assert operation is not None
        operation.put_images(operation.body(transaction), images)
    return transaction


def same_operation(message: bytes, expected: Transaction) -> bool:
    """Return True if a message holds the same operation, whatever its uuid and read version."""
    found = Transaction.FromString(message)
    operation = operation_of(expected)
    if operation is None or operation_of(found) is not operation:
        return False
    mine: bytes = operation.body(expected).SerializeToString(deterministic=True)
    theirs: bytes = operation.body(found).SerializeToString(deterministic=True)
    return mine == theirs
