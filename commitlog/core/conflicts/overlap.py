"""Rules of the grid about fragments, rows and keys.

A rule compares the candidate with one kind of committed operations (`rule`). It asks the history
once about each fragment, cell or key that the candidate touches. Rules about indices and metadata
are in `overlap_indices` and `overlap_metadata`.
"""

from __future__ import annotations

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate, Finding, Verdict
from commitlog.core.conflicts.history import History
from commitlog.core.conflicts.rule import Missed, rule
from commitlog.core.manifest.indices import coverable
from commitlog.lancepb.transaction_pb2 import Transaction


@rule("same_fragment")
def rows_deleted(missed: Missed) -> None:
    """Delete or Update over a Delete or Update.

    They conflict, unless it is known which rows the candidate deletes, and the fragment's files
    are those that it read. Whether these rows are still there is checked when the deletion vectors
    are merged.
    """
    for fragment_id in missed.candidate.fragments:
        missed.offer_first(
            f"{missed.kind}.removed", fragment_id, fragment=fragment_id, rule="fragment_removed"
        )
        updated = missed.first(f"{missed.kind}.updated", fragment_id)
        if not updated:
            continue
        if fragment_id not in missed.candidate.rows_known:
            missed.offer(updated, fragment=fragment_id, rule="rows_unknown")
            continue
        files = missed.first("files", fragment_id)
        if files:
            conflicting = missed.history.first(f"{missed.kind}.updated", fragment_id, files - 1)
            missed.offer(conflicting, fragment=fragment_id, rule="files_differ")


@rule("fragment_rewritten")
def fragment_rewritten(missed: Missed) -> None:
    """Anything that names fragments, over a Rewrite of one of them."""
    missed.offer_on_fragments("Rewrite.old")


@rule("data_replaced")
def column_replaced(missed: Missed) -> None:
    """Delete, Update or Rewrite over a DataReplacement in one of its fragments."""
    missed.offer_on_fragments("DataReplacement.fragment")


@rule("rewritten_fragment_changed")
def rewritten_changed(missed: Missed) -> None:
    """A Rewrite over a Delete or Update of a fragment that it replaces.

    A Rewrite that keeps the order of rows is carried over rows that are gone, but not over new
    values of a column.
    """
    if missed.candidate.keeps_row_order:
        for fragment_id in missed.candidate.fragments:
            files = missed.first("files", fragment_id)
            if files:
                changed = missed.history.first(f"{missed.kind}.updated", fragment_id, files - 1)
                missed.offer(changed, fragment=fragment_id)
        return
    missed.offer_on_fragments(f"{missed.kind}.updated", f"{missed.kind}.removed")


@rule("rewritten_fragment_overlaid")
def rewritten_overlaid(missed: Missed) -> None:
    """A Rewrite over an overlay of a fragment that it replaces."""
    missed.offer_on_fragments("DataOverlay.fragment")


@rule("rewritten_fragment_indexed")
def rewritten_indexed(missed: Missed) -> None:
    """A Rewrite over a new index that covers a fragment which it replaces."""
    missed.offer_first("CreateIndex.reuse_mixed", "", verdict=Verdict.INCOMPATIBLE)
    ours = coverable(missed.candidate.fragments)
    # Indices are rare and cover most of a table: these versions are looked through one by one.
    for version in missed.history.all_after("CreateIndex.covers", "", missed.after):
        covered = missed.history.note("CreateIndex.covers", "", version)
        if covered is None or ours.intersect(BitMap.deserialize(bytes.fromhex(covered))):
            missed.offer(version)
            break


@rule("replaced_fragment_removed", Verdict.INCOMPATIBLE)
def replaced_removed(missed: Missed) -> None:
    """A DataReplacement over a Delete that removed a fragment."""
    missed.offer_on_fragments(f"{missed.kind}.removed")


@rule("replaced_fragment_updated")
def replaced_updated(missed: Missed) -> None:
    """A DataReplacement over an Update that removed a fragment, moved its rows, or patched it."""
    for group in missed.candidate.operation.replacements:
        fragment_id = group.fragment_id
        missed.offer_first(
            "Update.removed",
            fragment_id,
            fragment=fragment_id,
            rule="replaced_fragment_removed",
            verdict=Verdict.INCOMPATIBLE,
        )
        missed.offer_first("Update.moved", fragment_id, fragment=fragment_id)
        for field_id in group.new_file.fields:
            missed.offer_first("Update.patched", (fragment_id, field_id), fragment=fragment_id)


@rule("same_column_replaced")
def cell_replaced(missed: Missed) -> None:
    """A DataReplacement over another of the same column of the same fragment."""
    for group in missed.candidate.operation.replacements:
        for field_id in group.new_file.fields:
            cell = (group.fragment_id, field_id)
            missed.offer_first("DataReplacement.cell", cell, fragment=group.fragment_id)


@rule("same_column_overlaid")
def replaced_overlaid(missed: Missed) -> None:
    """A DataReplacement over an overlay of the same column of the same fragment.

    Under older protocols only: there the new file, built as of the head, would end the overlay.
    """
    if missed.candidate.overlays_by_row:
        return
    for group in missed.candidate.operation.replacements:
        for field_id in group.new_file.fields:
            missed.offer_first(
                "DataOverlay.cell", (group.fragment_id, field_id), fragment=group.fragment_id
            )


@rule("overlaid_fragment_removed")
def overlaid_removed(missed: Missed) -> None:
    """A DataOverlay over a Delete that removed a fragment."""
    missed.offer_on_fragments(f"{missed.kind}.removed")


@rule("overlaid_fragment_updated")
def overlaid_updated(missed: Missed) -> None:
    """A DataOverlay over an Update that removed a fragment or moved rows out of it.

    Which rows were moved is compared later, except under older protocols.
    """
    for fragment_id in missed.candidate.fragments:
        missed.offer_first("Update.removed", fragment_id, fragment=fragment_id)
        if not missed.candidate.compares_overlaid(fragment_id):
            missed.offer_first("Update.moved", fragment_id, fragment=fragment_id)


@rule("overlaid")
def updated_overlaid(missed: Missed) -> None:
    """An Update over an overlay of cells that it patches, or of a fragment whose rows it moves.

    If the rows that it moves are known, they are compared later, except under older protocols.
    """
    operation = missed.candidate.operation
    if operation.update_mode == Transaction.REWRITE_COLUMNS:
        for image in operation.updated_fragments:
            for field_id in operation.fields_modified:
                missed.offer_first("DataOverlay.cell", (image.id, field_id), fragment=image.id)
    elif operation.new_fragments:
        unknown = (
            f for f in missed.candidate.fragments if not missed.candidate.compares_overlaid(f)
        )
        missed.offer_on_fragments("DataOverlay.fragment", fragments=unknown)


@rule("keys_unknown")
def keys_inserted(missed: Missed) -> None:
    """Rows added with keys, over rows added (Append, Update): no key may land twice.

    A candidate with known keys conflicts with rows of unknown keys, and with keys under another
    signature; under its own, keys are compared one by one. A candidate with unknown keys conflicts
    only if the table declares its key: with every upsert, and with rows of unknown keys unless both
    are appends.
    """
    keys = missed.candidate.keys
    if keys is None:
        return
    if not keys.signature:
        if missed.candidate.declares_key:
            missed.offer_first(f"{missed.kind}.upsert", "")
            if missed.kind == "Update" or missed.candidate.kind == "Update":
                missed.offer(_unknown_keys(missed))
        return
    missed.offer(_unknown_keys(missed))
    comparable = not keys.signature.startswith("bloom:")
    for signature in missed.history.signatures:
        if signature != keys.signature or not comparable:
            missed.offer_first(f"{missed.kind}.keys", signature, rule="keys_hashed_otherwise")
    for key in keys.hashes:
        missed.offer_first(f"{missed.kind}.key", key, key=key, rule="key_inserted")


def _unknown_keys(missed: Missed) -> int:
    """Return the first version that added rows of unknown keys.

    Appends of unknown keys leave no trace but their kind until one with keys is there.
    """
    kind = missed.kind
    if kind == "Append":
        version = missed.history.first_of_kind(kind, missed.after)
        if version != missed.first(f"{kind}.upsert", ""):
            return version
    return missed.first(f"{kind}.keys_unknown", "")


def update_over_update(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """Update over Update: keys first, then fragments and rows."""
    by_keys = keys_inserted(candidate, history, after, kind)
    by_rows = rows_deleted(candidate, history, after, kind)
    if by_keys is None or by_rows is None:
        return by_keys or by_rows
    return by_keys if by_keys.version <= by_rows.version else by_rows
