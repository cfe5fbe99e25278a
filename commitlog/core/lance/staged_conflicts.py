"""Conflicts of manifests that clients staged, which say less of themselves than our own records.

A client rebases by itself and writes down a newer read version than it had; for keys, where the
table declares its own, what it had really read counts.
"""

from __future__ import annotations

from commitlog.core.conflicts.candidate import Candidate
from commitlog.core.conflicts.grid import first_conflict
from commitlog.core.conflicts.overlap import keys_inserted
from commitlog.core.decisions import rejected
from commitlog.core.draft import Draft, Parsed, View
from commitlog.core.lance.commits import check_own
from commitlog.core.lance.field_ids import check_field_ids
from commitlog.core.lance.request_checks import check_window
from commitlog.core.lance.staged_keys import base_version, keys_in
from commitlog.core.operations.registry import OPERATION_NAMED, candidate_of, keys_of
from commitlog.core.refusals import conflict_refused
from commitlog.model.limits import FIELD_IDS_SINCE, OVERLAYS_BY_ROW_SINCE
from commitlog.model.operations import CreateTableVersion
from commitlog.model.records import Code


def check_staged(draft: Draft, view: View, operation: CreateTableVersion, parsed: Parsed) -> None:
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
