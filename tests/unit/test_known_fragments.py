"""Which fragments came and went from one version to the next, and what a version takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commitlog.client.rows.known_fragments import KnownFragments
from commitlog.lancepb.table_pb2 import DataFragment

VERSIONS = st.lists(st.dictionaries(st.integers(0, 5), st.integers(1, 3), max_size=6), max_size=6)
"""Of each version the rows of its fragments, by id; other rows make another fragment."""


def encoded(fragment_id: int, rows: int) -> bytes:
    return DataFragment(id=fragment_id, physical_rows=rows).SerializeToString()


@given(VERSIONS)
def test_what_came_and_went_is_what_differs(versions: list[dict[int, int]]) -> None:
    known, before = KnownFragments(), set[bytes]()
    for rows in versions:
        by_id = {number: encoded(number, count) for number, count in rows.items()}
        now = set(by_id.values())
        changes = known.compared(list(by_id.values()))
        new, gone, size, row_count = changes
        assert (set(new), set(gone)) == (now - before, before - now)
        assert (size, row_count) == (sum(map(len, now)), sum(rows.values()))
        known.take(changes)
        assert known.by_id == by_id
        before = now
