"""Which replaced fragments a new index may cover, by what a fragment reuse index says of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Finding, Verdict
from commitlog.core.conflicts.grid import first_conflict
from commitlog.core.conflicts.history import History, WriteSet
from commitlog.core.decisions import Refused
from commitlog.core.draft import View
from commitlog.core.manifest.indices import FRAGMENT_REUSE_INDEX
from commitlog.core.operations.registry import candidate_of, write_set_of
from commitlog.core.rebase.overlay_rows import coverage
from commitlog.core.rebase.reused_fragments import Groups, groups_in, reused_since
from commitlog.core.tables.creation import empty_state
from commitlog.lancepb.table_pb2 import (
    DataOverlayFile,
    FragmentReuseIndexDetails,
    IndexMetadata,
    IndexSection,
)
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import FRAGMENT_REUSE_SINCE, Rules
from tests.core_world import World


def content(*groups: tuple[int, ...]) -> bytes:
    """Return what a fragment reuse index says of these groups of replaced fragments."""
    made = FragmentReuseIndexDetails.InlineContent()
    for group in groups:
        replaced = made.legacy_versions.add().groups.add()
        for fragment_id in group:
            replaced.old_fragments.add(id=fragment_id)
    return made.SerializeToString()


def new_index(*fragment_ids: int, name: str = "i", kind: str = "BTree") -> IndexMetadata:
    made = IndexMetadata(name=name, fields=[0])
    made.fragment_bitmap = BitMap(fragment_ids).serialize()
    made.index_details.type_url = f"/lance.table.{kind}IndexDetails"
    return made


def finding(*indices: IndexMetadata, reused: tuple[int, ...]) -> Finding | None:
    """Return what becomes of indices behind a Rewrite of the fragments 0 and 1."""
    history = History(1)
    history.record("r", WriteSet("Rewrite", (("Rewrite.old", 0), ("Rewrite.old", 1))))
    message = Transaction(read_version=1)
    message.create_index.new_indices.extend(indices)
    return first_conflict(candidate_of(message, reused=[reused]), history, 1)


def test_groups_are_read_as_they_were_replaced_together() -> None:
    assert groups_in(content((0, 1), (4,))) == (frozenset({0, 1}), frozenset({4}))
    assert groups_in(b"") == ()


def test_of_other_contents_nothing_is_known() -> None:
    tagged = FragmentReuseIndexDetails.InlineContent()
    tagged.transitions.add().sources.add(id=0)
    for unknown in (tagged.SerializeToString(), b"\xff\xff"):
        assert groups_in(unknown) == ()


@pytest.mark.parametrize(
    ("indices", "reused", "verdict"),
    [
        ([new_index(0, 1)], (0, 1), None),
        ([new_index(0, 1)], (0,), Verdict.RETRYABLE),
        ([new_index(0, 1)], (), Verdict.RETRYABLE),
        ([new_index(2)], (), None),
        ([new_index(0, kind="NGram")], (0, 1), Verdict.RETRYABLE),
        ([new_index(2, kind="NGram"), new_index(0)], (0, 1), None),
        ([new_index(0), IndexMetadata(name="unknown")], (0, 1), Verdict.RETRYABLE),
        (
            [new_index(0), new_index(5, name=FRAGMENT_REUSE_INDEX)],
            (0, 1),
            Verdict.INCOMPATIBLE,
        ),
    ],
)
def test_what_is_known_to_be_reused_may_be_covered(
    indices: list[IndexMetadata], reused: tuple[int, ...], verdict: Verdict | None
) -> None:
    found = finding(*indices, reused=reused)
    assert (found.verdict if found else None) == verdict


def test_a_fragment_reuse_index_covers_nothing() -> None:
    """A compaction goes beside another one's fragment reuse index, and not beside one of rows."""
    told = {}
    for name in ("i", FRAGMENT_REUSE_INDEX):
        committed, rewrite = Transaction(read_version=1), Transaction(read_version=1)
        committed.create_index.new_indices.append(new_index(0, name=name))
        committed.create_index.removed_indices.append(new_index(0, name=name))
        rewrite.rewrite.groups.add().old_fragments.add(id=0)
        history = History(1)
        history.record("c", write_set_of(committed, None, empty_state()))
        found = first_conflict(candidate_of(rewrite), history, 1)
        told[name] = found.rule if found else ""
    assert told == {"i": "rewritten_fragment_indexed", FRAGMENT_REUSE_INDEX: ""}


def test_an_overlays_coverage_is_read_in_both_forms() -> None:
    shared, by_field = DataOverlayFile(), DataOverlayFile()
    shared.shared_offset_bitmap = BitMap([1, 2]).serialize()
    by_field.field_coverage.offset_bitmaps.extend(BitMap([n]).serialize() for n in (2, 7))
    assert coverage([shared, by_field]) == BitMap([1, 2, 7])
    shared.shared_offset_bitmap = b"no bitmap"
    with pytest.raises(Refused, match="overlay_not_a_bitmap"):
        coverage([shared])


def reused_behind_a_rewrite(*indices: IndexMetadata) -> Groups:
    """Return what a table with these indices says of the fragments that a Rewrite replaced."""
    world = World(rules=Rules(protocol=FRAGMENT_REUSE_SINCE))
    world.create()
    world.machine.tables["t",].history.record("r", WriteSet("Rewrite", (("Rewrite.old", 0),)))
    if indices:
        world.state().index_section = IndexSection(indices=indices).SerializeToString()
    view = View(world.machine.tables["t",])
    draft = SimpleNamespace(rules=world.rules, want=lambda _: pytest.fail("looked for"))
    return reused_since(cast(Any, draft), view, 1)


def test_only_a_fragment_reuse_index_says_what_is_reused() -> None:
    assert reused_behind_a_rewrite() == ()
    details = FragmentReuseIndexDetails()
    details.inline.ParseFromString(content((0, 1)))
    said = {}
    for name in ("i", FRAGMENT_REUSE_INDEX):
        index = IndexMetadata(name=name)
        index.index_details.value = details.SerializeToString()
        said[name] = reused_behind_a_rewrite(index)
    assert said == {"i": (), FRAGMENT_REUSE_INDEX: (frozenset({0, 1}),)}


@pytest.mark.parametrize("wrong", ["path", "uuid", "base"])
def test_details_that_lie_nowhere_are_not_looked_for(wrong: str) -> None:
    index = IndexMetadata(name=FRAGMENT_REUSE_INDEX)
    index.uuid.uuid = b"u" * (3 if wrong == "uuid" else 16)
    if wrong == "base":
        index.base_id = 7
    details = FragmentReuseIndexDetails()
    details.external.path = "../../data/large" if wrong == "path" else "details.binpb"
    index.index_details.value = details.SerializeToString()
    assert reused_behind_a_rewrite(index) == ()
