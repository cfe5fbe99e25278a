"""What an operation names has to be in the table: fragments, fields, versions.

Asked after the grid: what somebody else removed meanwhile is a conflict and told as one. What is
left here is wrong as it stands. pylance checks most of it while it builds, in words of its own,
but not all: it publishes an index on a field that the table doesn't have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from commitlog.core.decisions import Refused, rejected
from commitlog.core.draft import View
from commitlog.core.manifest import DeltaRefused, ManifestState
from commitlog.core.mem_wal import with_compacted
from commitlog.core.refusals import delta_refused
from commitlog.core.tables import is_in
from commitlog.core.touches import rewritten_fragments
from commitlog.lancepb.table_pb2 import CompactedSsTable, DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code
from commitlog.model.table import format_table_id

_USED_BY = ("Delete.removed", "Update.removed", "Rewrite.old")


def check_fits(view: View, kind: str, transaction: Transaction) -> None:
    """Refuse an operation that names what the head doesn't have."""
    check = _CHECKS.get(kind)
    if check is not None:
        check(view, kind, transaction)


def added_fragments(operation: Transaction.Rewrite) -> list[DataFragment]:
    """Return the fragments that a Rewrite brings, in either of its forms."""
    groups = (group.new_fragments for group in operation.groups)
    return list(chain(operation.new_fragments, *groups))


def _rewrite(view: View, kind: str, transaction: Transaction) -> None:
    state = _state(view)
    _fragments(view, kind, rewritten_fragments(transaction.rewrite))
    maximum = state.max_fragment_id
    last = state.fragments.last_id if maximum is None else maximum
    ids = [fragment.id for fragment in added_fragments(transaction.rewrite) if fragment.id]
    _once(view, kind, ids)
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


def _create_index(view: View, kind: str, transaction: Transaction) -> None:
    for index in transaction.create_index.new_indices:
        if not index.name.startswith("__lance_"):
            _fields(view, Phrase("the_index", {"name": index.name}), index.fields)


def _data_replacement(view: View, kind: str, transaction: Transaction) -> None:
    replacements = transaction.data_replacement.replacements
    _exist(view, kind, (group.fragment_id for group in replacements))
    for group in replacements:
        _fields(view, Phrase("the_data_file", {"path": group.new_file.path}), group.new_file.fields)


def _data_overlay(view: View, kind: str, transaction: Transaction) -> None:
    groups = transaction.data_overlay.groups
    _fragments(view, kind, (group.fragment_id for group in groups))
    for overlay in chain.from_iterable(group.overlays for group in groups):
        _fields(
            view, Phrase("the_overlay", {"path": overlay.data_file.path}), overlay.data_file.fields
        )


def _mem_wal(view: View, kind: str, transaction: Transaction) -> None:
    _compacted(view, transaction, transaction.update_mem_wal_state.compacted_sstables)


def _update(view: View, kind: str, transaction: Transaction) -> None:
    _compacted(view, transaction, transaction.update.compacted_sstables)


def _compacted(view: View, transaction: Transaction, tables: Iterable[CompactedSsTable]) -> None:
    state, uuid = _state(view), transaction.uuid
    version = state.version + 1
    try:
        with_compacted(
            state.index_section, tables, version=version, transaction_uuid=uuid, created_at_ms=0
        )
    except DeltaRefused as error:
        raise delta_refused(error) from error


def _restore(view: View, kind: str, transaction: Transaction) -> None:
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


def _fragments(view: View, kind: str, ids: Iterable[int]) -> None:
    named = list(ids)
    _once(view, kind, named)
    _exist(view, kind, named)


def _once(view: View, kind: str, ids: list[int]) -> None:
    if len(set(ids)) != len(ids):
        twice = sorted({i for i in ids if ids.count(i) > 1})
        raise rejected(
            Code.DUPLICATE_FRAGMENT,
            "fragments_twice",
            kind=kind,
            table=_name(view),
            fragments=twice,
        )


def _exist(view: View, kind: str, ids: Iterable[int]) -> None:
    state = _state(view)
    missing = sorted(i for i in ids if i not in state.fragments)
    if missing:
        raise rejected(
            Code.UNKNOWN_FRAGMENT,
            "fragments_unknown",
            kind=kind,
            fragments=missing[:5],
            table=_name(view),
            version=state.version,
        )


def _fields(view: View, what: Phrase, fields: Iterable[int]) -> None:
    known = _state(view).header.fields
    missing = sorted(f for f in fields if f >= 0 and f not in known)
    if missing:
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


_CHECKS: dict[str, Callable[[View, str, Any], None]] = {
    "Rewrite": _rewrite,
    "CreateIndex": _create_index,
    "DataReplacement": _data_replacement,
    "DataOverlay": _data_overlay,
    "Restore": _restore,
    "Update": _update,
    "UpdateMemWalState": _mem_wal,
}
