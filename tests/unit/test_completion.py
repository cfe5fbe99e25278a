"""What pylance has no words for, and what it does unasked, of the versions that it builds."""

from __future__ import annotations

import pytest

from commitlog.core.conflicts.history import History
from commitlog.core.lance.completion import complete, sayable
from commitlog.core.manifest.indices import FRAGMENT_REUSE_INDEX
from commitlog.core.operations.create_index import rebased_indices
from commitlog.core.operations.registry import operation_of
from commitlog.lancepb.table_pb2 import IndexMetadata, IndexSection
from commitlog.lancepb.transaction_pb2 import Transaction
from tests.unit.manifest_examples import fragment, state


def entry(name: str, uuid: bytes) -> IndexMetadata:
    index = IndexMetadata(name=name)
    index.uuid.uuid = uuid * 16
    return index


def test_a_remapped_index_has_the_files_that_its_writer_wrote() -> None:
    rewrite = Transaction()
    remapped = rewrite.rewrite.rewritten_indices.add()
    remapped.new_id.uuid = b"n" * 16
    remapped.new_index_files.add(path="index.lance", size_bytes=7)
    assert not sayable(rewrite).rewrite.rewritten_indices[0].new_index_files
    section = IndexSection(indices=[entry("moved", b"n"), entry("other", b"o")])
    section.indices[1].files.add(path="kept.lance")
    built = state(fragment(0), indices=section)
    complete(built, rewrite)
    moved, other = IndexSection.FromString(built.index_section or b"").indices
    assert list(moved.files) == list(remapped.new_index_files)
    assert [file.path for file in other.files] == ["kept.lance"]


@pytest.mark.parametrize("name", ["i", FRAGMENT_REUSE_INDEX])
def test_a_replay_finds_what_an_index_took_the_place_of(name: str) -> None:
    """Of some names there is one index at a time, whether or not its writer removed the other."""
    create = Transaction()
    create.create_index.new_indices.append(entry(name, b"n"))
    before = IndexSection(indices=[entry(name, b"o"), entry("j", b"j")]).SerializeToString()
    asked = rebased_indices(create, History(1), before, 1)
    left = list(IndexSection.FromString(before).indices)
    for index in asked.create_index.removed_indices:
        left.remove(index)
    after = IndexSection(indices=[*left, entry(name, b"n")]).SerializeToString()
    operation = operation_of(create)
    assert operation is not None
    assert operation.as_built(create, before, after) == asked
    assert len(left) == (1 if name == FRAGMENT_REUSE_INDEX else 2)
