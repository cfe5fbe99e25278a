"""What an operation names has to be in the table: fragments, fields, versions.

Asked after the grid: what somebody else removed meanwhile is a conflict and told as one. What is
left here is wrong as it stands. pylance checks most of it while it builds, in words of its own,
but not all: it publishes an index on a field that the table doesn't have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

from commitlog.core.conflicts.candidate import Finding, Nearest, Verdict
from commitlog.core.conflicts.write_sets import rewritten_fragments
from commitlog.core.decisions import Refused, rejected
from commitlog.core.draft import View
from commitlog.core.manifest.manifest_state import DeltaRefused, ManifestState
from commitlog.core.manifest.mem_wal import with_compacted
from commitlog.core.refusals import conflict_refused, delta_refused
from commitlog.core.tables.lance_tables import is_in
from commitlog.lancepb.table_pb2 import CompactedSsTable, DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code
from commitlog.model.table import format_table_id

_DROPPED_BY = ("Merge.dropped", "Project.dropped")
_USED_BY = ("Delete.removed", "Update.removed", "Rewrite.old")


def check_fits(view: View, kind: str, transaction: Transaction, since: int | None = None) -> None:
    """Refuse an operation that names what the head doesn't have.

    What was removed after version `since`, which it read, it lost against that version.
    """
    check = _CHECKS.get(kind)
    if check is not None:
        check(References(view, kind, since), transaction)


class References(NamedTuple):
    """An operation that has to fit the head."""

    view: View
    kind: str
    since: int | None
    """The version that it read; None: removals don't count as conflicts (older protocols)."""

    def check_removals(self, hows: Iterable[str], gone: Iterable[int], lost: Finding) -> None:
        """Refuse it as a conflict if a version removed one of these since it read the table."""
        if self.since is None:
            return
        table, nearest = self.view.table, Nearest(lost.rule, lost.verdict)
        for one in gone:
            for how in hows:
                version = table.history.first(how, one, self.since)
                fragment = one if lost.rule == "fragment_removed" else None
                nearest.offer(version, fragment=fragment, key=None if fragment == one else one)
        if nearest.finding is not None:
            raise conflict_refused(table, self.kind, nearest.finding, self.since, self.view.version)


def added_fragments(operation: Transaction.Rewrite) -> list[DataFragment]:
    """Return the fragments that a Rewrite brings, in either of its forms."""
    groups = (group.new_fragments for group in operation.groups)
    return list(chain(operation.new_fragments, *groups))


def _rewrite(references: References, transaction: Transaction) -> None:
    view, kind = references.view, references.kind
    state = _state(view)
    _fragments(references, rewritten_fragments(transaction.rewrite))
    maximum = state.max_fragment_id
    last = state.fragments.last_id if maximum is None else maximum
    ids = [fragment.id for fragment in added_fragments(transaction.rewrite) if fragment.id]
    _once(references, ids)
    history = view.table.history
    for fragment_id in ids:
        is_used = any(history.last(how, fragment_id) for how in _USED_BY)
        if fragment_id > last or fragment_id in state.fragments or is_used:
            raise rejected(
                Code.DUPLICATE_FRAGMENT,
                "fragment_id_taken",
                kind=kind,
                table=_name(view),
                fragment=fragment_id,
            )


def _create_index(references: References, transaction: Transaction) -> None:
    for index in transaction.create_index.new_indices:
        if not index.name.startswith("__lance_"):
            _fields(references, Phrase("the_index", {"name": index.name}), index.fields)


def _data_replacement(references: References, transaction: Transaction) -> None:
    replacements = transaction.data_replacement.replacements
    _exist(references, (group.fragment_id for group in replacements))
    for group in replacements:
        _fields(
            references,
            Phrase("the_data_file", {"path": group.new_file.path}),
            group.new_file.fields,
        )


def _data_overlay(references: References, transaction: Transaction) -> None:
    groups = transaction.data_overlay.groups
    _fragments(references, (group.fragment_id for group in groups))
    for overlay in chain.from_iterable(group.overlays for group in groups):
        _fields(
            references,
            Phrase("the_overlay", {"path": overlay.data_file.path}),
            overlay.data_file.fields,
        )


def _mem_wal(references: References, transaction: Transaction) -> None:
    _compacted(references.view, transaction, transaction.update_mem_wal_state.compacted_sstables)


def _update(references: References, transaction: Transaction) -> None:
    _compacted(references.view, transaction, transaction.update.compacted_sstables)


def _compacted(view: View, transaction: Transaction, tables: Iterable[CompactedSsTable]) -> None:
    state, uuid = _state(view), transaction.uuid
    version = state.version + 1
    try:
        with_compacted(
            state.index_section, tables, version=version, transaction_uuid=uuid, created_at_ms=0
        )
    except DeltaRefused as error:
        raise delta_refused(error) from error


def _restore(references: References, transaction: Transaction) -> None:
    view, kind = references.view, references.kind
    version, head = transaction.restore.version, _state(view).version
    if not 1 <= version <= head:
        raise rejected(
            Code.INVALID_OPERATION,
            "restore_version_unknown",
            kind=kind,
            table=_name(view),
            version=version,
            head=head,
        )
    if is_in(version, view.deleted):
        raise rejected(
            Code.INVALID_OPERATION,
            "restore_version_deleted",
            kind=kind,
            table=_name(view),
            version=version,
        )


def _fragments(references: References, ids: Iterable[int]) -> None:
    named = list(ids)
    _once(references, named)
    _exist(references, named)


def _once(references: References, ids: list[int]) -> None:
    if len(set(ids)) != len(ids):
        twice = sorted({i for i in ids if ids.count(i) > 1})
        raise rejected(
            Code.DUPLICATE_FRAGMENT,
            "fragments_twice",
            kind=references.kind,
            table=_name(references.view),
            fragments=twice,
        )


def _exist(references: References, ids: Iterable[int]) -> None:
    state = _state(references.view)
    missing = sorted(i for i in ids if i not in state.fragments)
    if missing:
        lost = Finding(0, Verdict.RETRYABLE, "fragment_removed")
        references.check_removals(_USED_BY, missing, lost)
        raise rejected(
            Code.UNKNOWN_FRAGMENT,
            "fragments_unknown",
            kind=references.kind,
            fragments=missing[:5],
            table=_name(references.view),
            version=state.version,
        )


def _fields(references: References, what: Phrase, fields: Iterable[int]) -> None:
    view = references.view
    known = _state(view).header.fields
    missing = sorted(f for f in fields if f >= 0 and f not in known)
    if missing:
        lost = Finding(0, Verdict.INCOMPATIBLE, "field_dropped")
        references.check_removals(_DROPPED_BY, missing, lost)
        raise rejected(
            Code.WRONG_SCHEMA,
            "field_ids_unknown",
            what=what,
            fields=missing,
            table=_name(view),
            known=sorted(known),
        )


def _state(view: View) -> ManifestState:
    if view.state is None:
        raise no_version(view)
    return view.state


def no_version(view: View) -> Refused:
    """Return the refusal of an operation on a table that is only declared."""
    return rejected(Code.INVALID_OPERATION, "table_without_version", table=_name(view))


def _name(view: View) -> str:
    return format_table_id(view.table.table_id)


_CHECKS: dict[str, Callable[[References, Any], None]] = {
    "Rewrite": _rewrite,
    "CreateIndex": _create_index,
    "DataReplacement": _data_replacement,
    "DataOverlay": _data_overlay,
    "Restore": _restore,
    "Update": _update,
    "UpdateMemWalState": _mem_wal,
}
