"""A few bytes of a bitmap claim a billion rows or fragments; no decision goes through them."""

from __future__ import annotations

import pytest
from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate, Finding, Verdict
from commitlog.core.conflicts.grid import first_conflict
from commitlog.core.conflicts.history import Aspect, History, WriteSet
from commitlog.core.manifest.indices import covered_fragments, retain_relevant
from commitlog.core.manifest.roaring import portable
from commitlog.core.operations.create_index import rebased_indices
from commitlog.core.rebase.carried_rewrites import _ranks
from commitlog.lancepb.table_pb2 import IndexMetadata, IndexSection
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction

pytestmark = pytest.mark.timeout(30)


def claimed(first: int) -> BitMap:
    """Return a set of a billion numbers, which is a few kilobytes."""
    rows = BitMap()
    rows.add_range(first, first + 2**30)
    rows.run_optimize()
    return rows


def an_index(name: str, fragments: BitMap, number: int = 1) -> IndexMetadata:
    index = IndexMetadata(name=name, fields=[0], fragment_bitmap=fragments.serialize())
    index.uuid.uuid = bytes([number]) * 16
    return index


@pytest.mark.parametrize(("first", "is_covered"), [(0, True), (2, False)])
def test_an_index_over_a_rewrite(first: int, is_covered: bool) -> None:
    history = History(0)
    replaced: tuple[Aspect, ...] = tuple(
        ("Rewrite.old", fragment_id) for fragment_id in (1, 0, 2**40)
    )
    history.record("w", WriteSet("Rewrite", replaced))
    creates = LanceTransaction(read_version=0, uuid="i")
    creates.create_index.new_indices.append(an_index("i", claimed(first)))
    found = first_conflict(Candidate("CreateIndex", creates), history, 0)
    expected = Finding(1, Verdict.RETRYABLE, "indexed_fragment_rewritten", (0, 1))
    assert found == (expected if is_covered else None)
    assert first_conflict(Candidate("CreateIndex", creates), history, 1) is None


def test_an_index_loses_the_fragments_whose_column_was_patched() -> None:
    history = History(0)
    aspects: tuple[Aspect, ...] = (
        ("Update.patched_field", 0),
        *(("Update.patched", pair) for pair in ((3, 0), (4, 1), (2**31, 0))),
    )
    history.record("u", WriteSet("Update", aspects))
    creates = LanceTransaction(read_version=0, uuid="i")
    creates.create_index.new_indices.append(an_index("i", claimed(0)))
    rebased = rebased_indices(creates, history, None, 0)
    covered = covered_fragments(rebased.create_index.new_indices[0])
    assert covered == claimed(0) - BitMap([3])


def test_what_was_patched_is_looked_through_once_for_all_new_indices() -> None:
    history = History(0)
    for number in range(50):
        history.record(
            f"u{number}", WriteSet("Update", (*_patched(number, 0), *_patched(number, 1)))
        )
    creates = LanceTransaction(read_version=0, uuid="i")
    new = creates.create_index.new_indices
    new.extend(an_index(f"i{number}", claimed(0), number) for number in range(20))
    new.append(IndexMetadata(name="other", fields=[2], fragment_bitmap=BitMap([1]).serialize()))
    rebased = rebased_indices(creates, history, None, 0)
    assert history.steps < 300  # and once for each index is 4,000
    *ours, other = rebased.create_index.new_indices
    assert {index.fragment_bitmap for index in ours} == {portable(claimed(0) - BitMap(range(50)))}
    assert covered_fragments(other) == BitMap([1])


def _patched(fragment_id: int, field_id: int) -> tuple[Aspect, Aspect]:
    return ("Update.patched_field", field_id), ("Update.patched", (fragment_id, field_id))


def test_a_segment_goes_with_its_last_fragment() -> None:
    segments = [an_index("i", BitMap([1]), 1), an_index("i", claimed(5), 2)]
    section = IndexSection(indices=segments).SerializeToString()
    left = retain_relevant(section, {0}, {1, 2})
    assert left is not None
    assert list(IndexSection.FromString(left).indices) == segments[:1]
    assert retain_relevant(section, {0}, {1, 7}) is None


def test_the_ranks_of_deleted_rows() -> None:
    assert _ranks(claimed(10), BitMap([2, 5])) == claimed(8)
    rows, deleted = BitMap([1, 2, 5, 9, 10]), BitMap([0, 3, 4, 8, 11])
    assert list(_ranks(rows, deleted)) == [0, 1, 2, 5, 6]
