"""Decides a `LanceCommit`: checks, the grid, the rebase, and the manifest that follows."""

from __future__ import annotations

from typing import Any

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate
from commitlog.core.conflicts.grid import first_conflict
from commitlog.core.decisions import BuildWanted, rejected
from commitlog.core.draft import Draft, Parsed, View
from commitlog.core.lance.direct import direct_delta
from commitlog.core.lance.new_version import Builder, check_version
from commitlog.core.lance.request_checks import (
    check_field_ids,
    check_files,
    check_request,
    check_window,
)
from commitlog.core.lance.versions import add_version, finalize, record_delta, same_operation
from commitlog.core.manifest.manifest_state import (
    ManifestDelta,
    ManifestState,
    NotDirect,
    diff,
)
from commitlog.core.operations.operation import LanceOperation
from commitlog.core.operations.references import References
from commitlog.core.operations.registry import OPERATION_NAMED, operation_of
from commitlog.core.rebase.deletions import NOT_NEEDED, Rebased, affected_rows
from commitlog.core.rebase.late import Late
from commitlog.core.refusals import conflict_refused
from commitlog.core.tables.creation import empty_state
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import (
    FIELD_IDS_SINCE,
    OVERLAYS_BY_ROW_SINCE,
    REMOVALS_CONFLICT_SINCE,
    TRANSACTION_FILES_SINCE,
)
from commitlog.model.operations import LanceCommit
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code, FileWritten, OperationResult
from commitlog.model.table import format_table_id

FILE_BY_VERSION = ("commitlog.transaction-file", "by-version")
"""The property of a record whose client may remove the transaction file that it wrote itself."""
_NO_ROWS: dict[int, BitMap] = {}


def decide_commit(draft: Draft, index: int, operation: LanceCommit, parsed: Parsed) -> None:
    """Add what comes of `operation` to the draft, or refuse."""
    view = draft.view(operation.table, operation.incarnation)
    new = operation_of(parsed.transaction) if view.state is None else None
    if new is not None and new.makes_table:
        _decide_first(draft, index, operation, parsed, view, new)
        return
    check_request(view, operation, parsed)
    table, kind, of_kind = view.table, parsed.kind, OPERATION_NAMED[parsed.kind]
    read_version = operation.read_version or table.version
    rebased = NOT_NEEDED
    if read_version != table.version or view.own is not None or operation.affected_rows:
        rebased = _check_conflicts(draft, view, operation, parsed, of_kind, read_version)
    since = read_version if draft.rules.protocol >= REMOVALS_CONFLICT_SINCE else None
    of_kind.check_references(References(view, kind, since, rebased.images), parsed.transaction)
    if draft.rules.protocol >= FIELD_IDS_SINCE:
        check_field_ids(view, of_kind, parsed, read_version)
    check_files(draft, view, parsed)
    state = view.state
    assert state is not None
    built_on = state.version if of_kind.read_at_head else read_version
    final = finalize(parsed.transaction, built_on, rebased.images)
    delta = _direct(draft, state, final, of_kind)
    files, built_by = rebased.files, Builder.HERE
    if delta is None:
        built_by = Builder.PYLANCE
        built_on = state.version
        at_head = finalize(parsed.transaction, built_on, rebased.images)
        at_head = of_kind.for_pylance(draft, view, at_head, read_version)
        delta, staged = _built(draft, index, operation, view, at_head)
        delta = of_kind.adjusted(delta, state, final, draft.rules)
        final = of_kind.as_built(final, state.index_section, delta.index_section)
        delta = delta._replace(transaction_file=f"{final.read_version}-{final.uuid}.txn")
        files += staged
    is_named_anew = _is_file_by_version(draft)
    if is_named_anew:
        delta = delta._replace(transaction_file=f"{delta.version}-{final.uuid}.txn")
    is_recorded = is_named_anew or built_by is Builder.PYLANCE or of_kind.is_recorded
    result = OperationResult(
        table=table.table_id,
        incarnation=table.incarnation,
        operation=kind,
        version=delta.version,
        read_version=built_on,
        first_fragment_id=first_new_fragment(state, delta),
        first_row_id=state.next_row_id if delta.next_row_id > state.next_row_id else -1,
        rebased_over=table.version - read_version,
        rebased=rebased is not NOT_NEEDED,
        files=files,
        images=rebased.images,
        delta=record_delta(draft, delta) if is_recorded else None,
    )
    draft.files.extend(rebased.to_write)
    check_version(draft, view, delta, of_kind, built_by)
    add_version(draft, view, operation, parsed, final, result, delta)


def _is_file_by_version(draft: Draft) -> bool:
    """Return True if no version may name the file that the client wrote."""
    if draft.rules.protocol < TRANSACTION_FILES_SINCE:
        return False
    return FILE_BY_VERSION in draft.transaction.properties


def _decide_first(
    draft: Draft,
    index: int,
    operation: LanceCommit,
    parsed: Parsed,
    view: View,
    of_kind: LanceOperation[Any],
) -> None:
    """Give a declared table its first version."""
    delta = of_kind.first_version(draft, index, operation, parsed, view)
    view.state = empty_state()
    result = OperationResult(
        table=view.table.table_id,
        incarnation=view.table.incarnation,
        operation=parsed.kind,
        version=delta.version,
        read_version=operation.read_version,
        delta=record_delta(draft, delta),
    )
    add_version(draft, view, operation, parsed, parsed.transaction, result, delta)


def _direct(
    draft: Draft, state: ManifestState, final: Transaction, of_kind: LanceOperation[Any]
) -> ManifestDelta | None:
    """Build the delta here; None if only pylance can."""
    since = of_kind.built_here_since
    if since is None or draft.rules.protocol < since:
        return None
    try:
        release = draft.rules.lance_release
        return direct_delta(state, final, timestamp_ms=draft.time_ms, release=release)
    except NotDirect:
        return None


def _check_conflicts(
    draft: Draft,
    view: View,
    operation: LanceCommit,
    parsed: Parsed,
    of_kind: LanceOperation[Any],
    read_version: int,
) -> Rebased:
    """Ask the grid, then the rows; return what the operation has to change."""
    affected = affected_rows(operation) if operation.affected_rows else _NO_ROWS
    table, kind = view.table, parsed.kind
    check_window(draft, view, kind, read_version)
    late = Late(draft, view, affected, read_version)
    body = of_kind.body(parsed.transaction)
    candidate = of_kind.candidate(
        parsed.transaction,
        keys=of_kind.keys(body, operation.inserted_keys),
        declares_key=table.declares_key,
        rows_known=of_kind.fragments_with_known_rows(body, late),
        overlays_by_row=draft.rules.protocol >= OVERLAYS_BY_ROW_SINCE,
        reused=of_kind.reused_fragments(draft, view, read_version),
        keeps_row_order=of_kind.keeps_row_order(parsed.transaction, draft.rules),
        awaits_columns=of_kind.awaits_columns(parsed.transaction, draft.rules),
    )
    if read_version < table.version:
        finding = first_conflict(candidate, table.history, read_version)
        if finding is not None:
            raise conflict_refused(table, kind, finding, read_version, table.version)
    if view.own is not None:
        check_own(view, candidate)
    if candidate.overlays_by_row:
        of_kind.check_overlaid_rows(late, candidate)
    return of_kind.rebase(late, candidate)


def check_own(view: View, candidate: Candidate, read_version: int = 0) -> None:
    """Refuse an operation that doesn't go with an earlier one of the same record.

    What it read of the record's own versions it may build on.
    """
    if view.own is None:
        return
    # What the first did to rows isn't in storage yet, so it cannot be rebased over.
    strict = Candidate(
        candidate.kind,
        candidate.transaction,
        changed=candidate.changed,
        keys=candidate.keys,
        declares_key=candidate.declares_key,
    )
    finding = first_conflict(strict, view.own, max(view.own.floor, read_version))
    if finding is not None:
        first = view.own.committed(finding.version).kind
        raise rejected(
            Code.SPLIT_TRANSACTION,
            "conflicts_within_transaction",
            kind=candidate.kind,
            table=format_table_id(view.table.table_id),
            first=first,
            rule=finding.rule,
        )


def first_new_fragment(state: ManifestState, delta: ManifestDelta) -> int:
    """Return the first id that was given to a new fragment, -1 if there is none."""
    last = state.last_fragment_id
    for fragment_id, _ in delta.fragments:
        if fragment_id > last:
            return fragment_id
    return -1


def _built(
    draft: Draft, index: int, operation: LanceCommit, view: View, final: Transaction
) -> tuple[ManifestDelta, tuple[FileWritten, ...]]:
    """Let pylance build the manifest; return what it makes of the head, and what it staged."""
    table, state, kind = view.table, view.state, operation.operation
    assert state is not None
    # Of a table that this record makes no version is written yet, and pylance would wait for one.
    if view.own is not None or draft.makes(table):
        raise rejected(
            Code.SPLIT_TRANSACTION,
            "built_not_first",
            kind=kind,
            table=format_table_id(table.table_id),
        )
    wanted = BuildWanted(
        index=index,
        table=table.table_id,
        incarnation=table.incarnation,
        location=table.location,
        version=state.version + 1,
        message=final.SerializeToString(deterministic=True),
        schema_metadata=operation.schema_metadata,
    )
    found = draft.want(wanted)
    built, reason = found.state, found.error
    if built is not None and built.version != state.version + 1:
        versions = {"built": built.version, "version": state.version + 1}
        reason = Phrase("another_version_built", versions)
    elif found.transaction is not None and not same_operation(found.transaction, final):
        reason = Phrase("another_operation_built")
    if built is None or reason:
        raise rejected(
            Code.BUILD_REFUSED,
            "build_refused",
            kind=kind,
            table=format_table_id(table.table_id),
            error=reason or Phrase("nothing_built"),
        )
    delta = diff(state, built)._replace(timestamp_nanos=draft.time_ms * 1_000_000)
    seen = found.observation
    staged = (FileWritten(seen.path, seen.size, seen.sha256),) if seen.path else ()
    return delta, staged
