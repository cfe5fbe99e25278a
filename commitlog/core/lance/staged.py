"""Decides manifests that others made: versions staged by clients, and tables taken over.

A staged manifest is accepted only if it is our head plus the effect of its transaction: what the
transaction doesn't claim to touch is unchanged. Its transaction goes through our grid, since a
client that rebases from storage cannot see versions that have no file. Such a client writes down a
newer read version than it had; for keys, where the table declares its own, what it had really read
counts.
"""

from __future__ import annotations

import re
from typing import Any

from commitlog.core.conflicts.candidate import Candidate
from commitlog.core.conflicts.grid import first_conflict
from commitlog.core.conflicts.overlap import keys_inserted
from commitlog.core.conflicts.write_sets import UNKNOWN, kind_of
from commitlog.core.decisions import Found, Refused, rejected
from commitlog.core.draft import Draft, Parsed, View
from commitlog.core.lance.commits import check_own, first_new_fragment
from commitlog.core.lance.named_manifests import named_manifest
from commitlog.core.lance.new_version import Builder, check_version
from commitlog.core.lance.request_checks import check_field_ids, check_window
from commitlog.core.lance.shared_files import only_renews_blobs
from commitlog.core.lance.staged_keys import base_version, keys_in
from commitlog.core.lance.versions import add_version, record_delta, same_operation
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState, diff
from commitlog.core.operations.operation import LanceOperation
from commitlog.core.operations.references import REMOVED_BY
from commitlog.core.operations.registry import OPERATION_NAMED, candidate_of, keys_of
from commitlog.core.refusals import conflict_refused, winner_of
from commitlog.core.tables.creation import empty_state
from commitlog.lancepb.table_pb2 import DataFragment, IndexSection
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import (
    BLOBS_RENEWED_SINCE,
    DIGITS_MAX,
    FIELD_IDS_SINCE,
    OVERLAYS_BY_ROW_SINCE,
    PROTOCOL_SUPPORTED,
)
from commitlog.model.operations import CreateTableVersion
from commitlog.model.reasons import Aside, Phrase
from commitlog.model.records import Code, OperationResult, Status
from commitlog.model.table import format_table_id

_NUMBER = f"([0-9]{{1,{DIGITS_MAX}}})"
_STAGED = re.compile(rf"_versions/{_NUMBER}\.manifest-([A-Za-z0-9_.-]+)")
_PUBLISHED = re.compile(rf"_versions/{_NUMBER}\.manifest()")
_VERSION_MAX = 2**64 - 1
_HEADER_PARTS = (
    *("fields", "schema_metadata", "config", "table_metadata", "base_paths", "data_format"),
)


def decide_staged(draft: Draft, operation: CreateTableVersion, parsed: Parsed) -> None:
    """Add a staged version to the draft, or refuse it."""
    view = draft.view(operation.table, operation.incarnation)
    name = format_table_id(operation.table)
    if operation.branch:
        raise rejected(
            Code.UNSUPPORTED_OPERATION, "branch_unsupported", branch=operation.branch, table=name
        )
    if operation.version != view.version + 1:
        arguments = {"version": operation.version, "table": name, "head": view.version}
        raise Refused(
            Status.RETRYABLE,
            Code.NOT_LATEST,
            Phrase("version_taken", {**arguments, "next": view.version + 1}),
            winner_of(view.table, view.table.history, operation.version, "version_taken"),
        )
    transaction, kind = parsed.transaction, parsed.kind
    if kind == UNKNOWN:
        raise rejected(Code.UNSUPPORTED_OPERATION, "staged_operation_unknown", table=name)
    of_kind = OPERATION_NAMED[kind]
    if view.state is not None:
        _check_conflicts(draft, view, operation, parsed)
    found = _manifest(draft, view, operation)
    staged = found.state
    assert staged is not None
    if found.transaction is not None and not same_operation(found.transaction, transaction):
        raise rejected(
            Code.INVALID_OPERATION, "staged_transaction_differs", path=operation.manifest_path
        )
    before = view.state if view.state is not None else empty_state()
    delta = diff(before, staged)._replace(timestamp_nanos=draft.time_ms * 1_000_000)
    if view.state is not None:
        check_effect(before, staged, delta, transaction, draft.rules.protocol)
        _check_reserved(view, transaction, of_kind)
    result = OperationResult(
        table=view.table.table_id,
        incarnation=view.table.incarnation,
        operation=kind,
        version=staged.version,
        read_version=transaction.read_version,
        first_fragment_id=first_new_fragment(before, delta),
        first_row_id=before.next_row_id if delta.next_row_id > before.next_row_id else -1,
        rebased_over=max(view.version - transaction.read_version, 0),
        delta=record_delta(draft, delta),
    )
    if view.state is None:
        view.state = before
    check_version(draft, view, delta, of_kind, Builder.CLIENT)
    add_version(draft, view, operation, parsed, transaction, result, delta)


def manifest_version(path: str, *, is_staged: bool) -> int:
    """Return the version that a manifest's path names, -1 if it isn't such a path."""
    match = (_STAGED if is_staged else _PUBLISHED).fullmatch(path)
    if match is None:
        return -1
    digits = match[1]
    return _VERSION_MAX - int(digits) if len(digits) == 20 else int(digits)


def _manifest(draft: Draft, view: View, operation: CreateTableVersion) -> Found:
    path = operation.manifest_path
    if manifest_version(path, is_staged=not operation.adopt) != operation.version:
        raise rejected(
            Code.LOCATION_NOT_ALLOWED, "not_a_staged_path", path=path, version=operation.version
        )
    found = named_manifest(draft, operation.table, view.table.location, path)
    observation = found.observation
    if observation.size < 0:
        raise rejected(Code.MISSING_FILE, "staged_manifest_missing", path=path)
    is_same = observation.size == operation.manifest_size or not operation.manifest_size
    if operation.sha256 and operation.sha256 != observation.sha256:
        is_same = False
    if not is_same:
        raise rejected(Code.MISSING_FILE, "staged_manifest_differs", path=path)
    if found.state is None:
        error = Aside.of(found.error)
        raise rejected(Code.INVALID_OPERATION, "staged_manifest_unreadable", path=path, error=error)
    if found.state.version != operation.version:
        raise rejected(
            Code.INVALID_OPERATION,
            "staged_manifest_version",
            path=path,
            version=found.state.version,
        )
    if _branch(found.state) != _branch(view.state):
        raise rejected(Code.UNSUPPORTED_OPERATION, "staged_manifest_of_branch", path=path)
    return found


def _branch(state: ManifestState | None) -> str | None:
    message = state.header.message if state is not None else None
    return message.branch if message is not None and message.HasField("branch") else None


def check_effect(
    head: ManifestState,
    staged: ManifestState,
    delta: ManifestDelta,
    transaction: Transaction,
    protocol: int = PROTOCOL_SUPPORTED,
) -> None:
    """Refuse a manifest, `head` plus `delta`, that isn't what `transaction` claims to do."""
    of_kind = OPERATION_NAMED[kind_of(transaction)]
    maximum, kind = head.last_fragment_id, of_kind.name
    if staged.last_fragment_id < maximum:
        raise _not_its_effect(kind, "max_fragment_id", "fragment_ids_go_back")
    if staged.next_row_id < head.next_row_id:
        raise _not_its_effect(kind, "next_row_id", "row_ids_go_back")
    if not of_kind.replaces_fragments:
        _check_fragments(head, delta, transaction, of_kind, maximum)
    _check_header(head.header, staged.header, of_kind, protocol)
    if of_kind.keeps_indices and _index_ids(head) != _index_ids(staged):
        raise _not_its_effect(kind, "indices", "they_differ_from_head")


def _check_fragments(
    head: ManifestState,
    delta: ManifestDelta,
    transaction: Transaction,
    of_kind: LanceOperation[Any],
    maximum: int,
) -> None:
    kind, body = of_kind.name, of_kind.body(transaction)
    may_change, may_go = of_kind.claims(body)
    may_come = set(of_kind.reserved_fragments(body))
    gone = [i for i in delta.removed if i not in may_go]
    if gone:
        raise _not_its_effect(kind, "fragments", "fragments_gone", fragments=gone[:5])
    for fragment_id, encoded in delta.fragments:
        known = head.fragments.get(fragment_id)
        if known is None:
            if fragment_id <= maximum and fragment_id not in may_come:
                raise _not_its_effect(kind, "fragments", "fragment_reuses_id", fragment=fragment_id)
        elif fragment_id not in may_change and not of_kind.changes_all_fragments:
            is_same = DataFragment.FromString(known) == DataFragment.FromString(encoded)
            if not is_same:
                raise _not_its_effect(kind, "fragments", "fragment_changed", fragment=fragment_id)


def _check_reserved(view: View, transaction: Transaction, of_kind: LanceOperation[Any]) -> None:
    history = view.table.history
    for fragment_id in of_kind.reserved_fragments(of_kind.body(transaction)):
        if any(history.last(how, fragment_id) for how in REMOVED_BY):
            raise _not_its_effect(
                of_kind.name, "fragments", "fragment_used_before", fragment=fragment_id
            )


def _check_header(
    head: ManifestHeader, staged: ManifestHeader, of_kind: LanceOperation[Any], protocol: int
) -> None:
    for name in _HEADER_PARTS:
        is_same = name in of_kind.header_parts
        is_same = is_same or getattr(head.message, name) == getattr(staged.message, name)
        if not is_same and name == "fields" and protocol >= BLOBS_RENEWED_SINCE:
            is_same = only_renews_blobs(head, staged)
        if not is_same:
            raise _not_its_effect(of_kind.name, name, "differs_from_head")


def _index_ids(state: ManifestState) -> list[bytes]:
    if not state.index_section:
        return []
    section = IndexSection.FromString(state.index_section)
    return sorted(index.uuid.uuid for index in section.indices)


def _not_its_effect(kind: str, what: str, how: str, **arguments: Any) -> Refused:
    how_so = Phrase(how, arguments)
    return rejected(
        Code.INVALID_OPERATION, "staged_effect_differs", kind=kind, what=what, how=how_so
    )


def _check_conflicts(
    draft: Draft, view: View, operation: CreateTableVersion, parsed: Parsed
) -> None:
    """Refuse a staged version whose transaction lost against a committed one."""
    transaction, kind = parsed.transaction, parsed.kind
    table, read_version = view.table, transaction.read_version
    if read_version > view.version:
        raise rejected(
            Code.FUTURE_READ_VERSION,
            "staged_read_version_in_future",
            kind=kind,
            read_version=read_version,
            head=view.version,
        )
    candidate = candidate_of(
        transaction,
        keys=keys_of(transaction, keys_in(operation.metadata)),
        declares_key=table.declares_key,
        overlays_by_row=draft.rules.protocol >= OVERLAYS_BY_ROW_SINCE,
        reused=OPERATION_NAMED[kind].reused_fragments(draft, view, read_version),
    )
    if read_version < table.version:
        check_window(draft, view, kind, read_version)
        finding = first_conflict(candidate, table.history, read_version)
        if finding is not None:
            raise conflict_refused(table, kind, finding, read_version, table.version)
    base = base_version(operation.metadata, read_version)
    if draft.rules.protocol >= FIELD_IDS_SINCE:
        check_field_ids(view, OPERATION_NAMED[kind], parsed, base)
    if table.declares_key:
        _check_keys(draft, view, candidate, base)
    check_own(view, candidate, read_version)


def _check_keys(draft: Draft, view: View, candidate: Candidate, base: int) -> None:
    """Refuse keys that came after the client read, whatever it rebased over since."""
    table = view.table
    if base >= min(candidate.transaction.read_version, table.version):
        return
    check_window(draft, view, candidate.kind, base)
    found = (keys_inserted(candidate, table.history, base, kind) for kind in ("Append", "Update"))
    nearest = min((finding for finding in found if finding), default=None)
    if nearest is not None:
        raise conflict_refused(table, candidate.kind, nearest, base, table.version)
