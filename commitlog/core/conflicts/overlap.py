"""The rules that the grid's lower-case cells name, for fragments, rows and keys.

A rule is asked about one kind of committed operation and answers with the first version behind
`after` that conflicts, or None. It looks into the history once per thing that the candidate
touches. `overlap_metadata` has the rules for schema, config and indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate, Finding, Nearest, Verdict
from commitlog.core.conflicts.history import History
from commitlog.core.manifest.indices import coverable
from commitlog.lancepb.transaction_pb2 import Transaction

Rule = Callable[[Candidate, History, int, str], Finding | None]


def _on_fragments(
    nearest: Nearest, history: History, hows: Iterable[str], fragments: Iterable[int], after: int
) -> None:
    hows = tuple(hows)
    for fragment_id in fragments:
        for how in hows:
            nearest.offer(history.first(how, fragment_id, after), fragment=fragment_id)


def rows_deleted(candidate: Candidate, history: History, after: int, kind: str) -> Finding | None:
    """Delete or Update over a Delete or Update.

    A conflict, unless it is known which rows we delete of a fragment whose files are as we read
    them; whether those rows are still there is looked at when the vectors are merged.
    """
    nearest = Nearest("same_fragment")
    for fragment_id in candidate.fragments:
        removed = history.first(f"{kind}.removed", fragment_id, after)
        nearest.offer(removed, fragment=fragment_id, rule="fragment_removed")
        updated = history.first(f"{kind}.updated", fragment_id, after)
        if not updated:
            continue
        if fragment_id not in candidate.rows_known:
            nearest.offer(updated, fragment=fragment_id, rule="rows_unknown")
            continue
        files = history.first("files", fragment_id, after)
        if files:
            conflicting = history.first(f"{kind}.updated", fragment_id, files - 1)
            nearest.offer(conflicting, fragment=fragment_id, rule="files_differ")
    return nearest.finding


def fragment_rewritten(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """Anything that names fragments, over a Rewrite of one of them."""
    nearest = Nearest("fragment_rewritten")
    _on_fragments(nearest, history, ("Rewrite.old",), candidate.fragments, after)
    return nearest.finding


def column_replaced(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """Delete, Update or Rewrite over a DataReplacement in one of its fragments."""
    nearest = Nearest("data_replaced")
    _on_fragments(nearest, history, ("DataReplacement.fragment",), candidate.fragments, after)
    return nearest.finding


def rewritten_changed(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A Rewrite over a Delete or Update of a fragment that it replaces.

    A Rewrite that keeps the order of rows is carried over rows that are gone, but not over new
    values of a column.
    """
    nearest = Nearest("rewritten_fragment_changed")
    if candidate.keeps_row_order:
        for fragment_id in candidate.fragments:
            files = history.first("files", fragment_id, after)
            if files:
                changed = history.first(f"{kind}.updated", fragment_id, files - 1)
                nearest.offer(changed, fragment=fragment_id)
        return nearest.finding
    hows = (f"{kind}.updated", f"{kind}.removed")
    _on_fragments(nearest, history, hows, candidate.fragments, after)
    return nearest.finding


def rewritten_overlaid(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A Rewrite over an overlay of a fragment that it replaces."""
    nearest = Nearest("rewritten_fragment_overlaid")
    _on_fragments(nearest, history, ("DataOverlay.fragment",), candidate.fragments, after)
    return nearest.finding


def rewritten_indexed(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A Rewrite over a new index that covers a fragment which it replaces."""
    nearest = Nearest("rewritten_fragment_indexed")
    nearest.offer(history.first("CreateIndex.reuse_mixed", "", after), verdict=Verdict.INCOMPATIBLE)
    ours = coverable(candidate.fragments)
    # Indices are rare and cover most of a table: these versions are looked through one by one.
    for version in history.all_after("CreateIndex.covers", "", after):
        covered = history.note("CreateIndex.covers", "", version)
        if covered is None or ours.intersect(BitMap.deserialize(bytes.fromhex(covered))):
            nearest.offer(version)
            break
    return nearest.finding


def replaced_removed(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A DataReplacement over a Delete that removed a fragment."""
    nearest = Nearest("replaced_fragment_removed", Verdict.INCOMPATIBLE)
    _on_fragments(nearest, history, (f"{kind}.removed",), candidate.fragments, after)
    return nearest.finding


def replaced_updated(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A DataReplacement over an Update that removed a fragment, moved its rows, or patched it."""
    nearest = Nearest("replaced_fragment_updated")
    for group in candidate.operation.replacements:
        fragment_id = group.fragment_id
        nearest.offer(
            history.first("Update.removed", fragment_id, after),
            fragment=fragment_id,
            rule="replaced_fragment_removed",
            verdict=Verdict.INCOMPATIBLE,
        )
        nearest.offer(history.first("Update.moved", fragment_id, after), fragment=fragment_id)
        for field_id in group.new_file.fields:
            patched = history.first("Update.patched", (fragment_id, field_id), after)
            nearest.offer(patched, fragment=fragment_id)
    return nearest.finding


def cell_replaced(candidate: Candidate, history: History, after: int, kind: str) -> Finding | None:
    """A DataReplacement over another of the same column of the same fragment."""
    nearest = Nearest("same_column_replaced")
    for group in candidate.operation.replacements:
        for field_id in group.new_file.fields:
            cell = (group.fragment_id, field_id)
            version = history.first("DataReplacement.cell", cell, after)
            nearest.offer(version, fragment=group.fragment_id)
    return nearest.finding


def replaced_overlaid(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A DataReplacement over an overlay of the same column of the same fragment.

    Under older protocols only: there the new file, built as of the head, would end the overlay.
    """
    nearest = Nearest("same_column_overlaid")
    if candidate.overlays_by_row:
        return None
    for group in candidate.operation.replacements:
        for field_id in group.new_file.fields:
            version = history.first("DataOverlay.cell", (group.fragment_id, field_id), after)
            nearest.offer(version, fragment=group.fragment_id)
    return nearest.finding


def overlaid_removed(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A DataOverlay over a Delete that removed a fragment."""
    nearest = Nearest("overlaid_fragment_removed")
    _on_fragments(nearest, history, (f"{kind}.removed",), candidate.fragments, after)
    return nearest.finding


def overlaid_updated(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A DataOverlay over an Update that removed a fragment or moved rows out of it.

    Which rows were moved is looked at later, except under older protocols.
    """
    nearest = Nearest("overlaid_fragment_updated")
    for fragment_id in candidate.fragments:
        hows = ["Update.removed"]
        if not candidate.compares_overlaid(fragment_id):
            hows.append("Update.moved")
        _on_fragments(nearest, history, hows, (fragment_id,), after)
    return nearest.finding


def updated_overlaid(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """An Update over an overlay of cells that it patches, or of a fragment whose rows it moves.

    Where it is known which rows it moves they are compared later, except under older protocols.
    """
    nearest = Nearest("overlaid")
    operation = candidate.operation
    if operation.update_mode == Transaction.REWRITE_COLUMNS:
        for image in operation.updated_fragments:
            for field_id in operation.fields_modified:
                version = history.first("DataOverlay.cell", (image.id, field_id), after)
                nearest.offer(version, fragment=image.id)
    elif operation.new_fragments:
        unknown = (f for f in candidate.fragments if not candidate.compares_overlaid(f))
        _on_fragments(nearest, history, ("DataOverlay.fragment",), unknown, after)
    return nearest.finding


def keys_inserted(candidate: Candidate, history: History, after: int, kind: str) -> Finding | None:
    """Rows added with keys, over rows added (Append, Update): no key may land twice.

    Known keys compare exactly under one signature; unknown ones conflict with every upsert, and
    where the table declares its key, an unknown writer's rows conflict with every upsert too, and
    with rows of unknown keys unless both are appended.
    """
    keys = candidate.keys
    if keys is None:
        return None
    nearest = Nearest("keys_unknown")
    if not keys.signature:
        if candidate.declares_key:
            nearest.offer(history.first(f"{kind}.upsert", "", after))
            if kind == "Update" or candidate.kind == "Update":
                nearest.offer(_unknown_keys(history, after, kind))
        return nearest.finding
    nearest.offer(_unknown_keys(history, after, kind))
    comparable = not keys.signature.startswith("bloom:")
    for signature in history.signatures:
        if signature != keys.signature or not comparable:
            version = history.first(f"{kind}.keys", signature, after)
            nearest.offer(version, rule="keys_hashed_otherwise")
    for key in keys.hashes:
        version = history.first(f"{kind}.key", key, after)
        nearest.offer(version, key=key, rule="key_inserted")
    return nearest.finding


def _unknown_keys(history: History, after: int, kind: str) -> int:
    """Return the first version that added rows of unknown keys.

    Appends of unknown keys leave no trace but their kind until one with keys is there.
    """
    if kind == "Append":
        version = history.first_of_kind(kind, after)
        if version != history.first(f"{kind}.upsert", "", after):
            return version
    return history.first(f"{kind}.keys_unknown", "", after)


def update_over_update(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """Update over Update: keys first, then fragments and rows."""
    by_keys = keys_inserted(candidate, history, after, kind)
    by_rows = rows_deleted(candidate, history, after, kind)
    if by_keys is None or by_rows is None:
        return by_keys or by_rows
    return by_keys if by_keys.version <= by_rows.version else by_rows
