"""An index covers what a Rewrite's groups made, as if each group were looked at by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from commitlog.core.manifest.manifest_state import NotDirect
from commitlog.core.manifest.roaring import portable
from commitlog.core.operations.rewrite import _cover, _merged
from commitlog.lancepb.table_pb2 import IndexMetadata

IDS = st.lists(st.integers(0, 9), max_size=2)
NEW = st.lists(st.integers(8, 14), max_size=2)


@given(st.lists(st.tuples(IDS, NEW), max_size=4), st.sets(st.integers(0, 9)))
def test_groups_are_covered_as_one_by_one(
    groups: list[tuple[list[int], list[int]]], covered: set[int]
) -> None:
    covers = [(BitMap(old), BitMap(new)) for old, new in groups]
    index = IndexMetadata(name="i", fragment_bitmap=portable(BitMap(covered)))
    after, is_direct = set(covered), True
    for old, new in groups:
        if covered.issuperset(old):
            after = after.difference(old) | set(new)
        else:
            is_direct &= covered.isdisjoint(old)
    if not is_direct:
        with pytest.raises(NotDirect):
            _cover(index, _merged(covers))
        return
    _cover(index, _merged(covers))
    assert set(BitMap.deserialize(index.fragment_bitmap)) == after
