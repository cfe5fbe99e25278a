"""The shared collections behave like the plain ones that they stand for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.core.iceberg.shelf import Index, PersistentRows, Shelf

_KEYS = st.integers(0, 300)
_STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove"]), _KEYS), max_size=300)


@given(_STEPS)
def test_an_index_is_a_dict(steps: list[tuple[str, int]]) -> None:
    index: Index[int, str] = Index()
    expected: dict[int, str] = {}
    for step, key in steps:
        before, size = index, len(index)
        if step == "add":
            index = index.set(key, f"{key}!")
            expected[key] = f"{key}!"
        else:
            index = index.discard(key)
            expected.pop(key, None)
        assert len(before) == size
    assert len(index) == len(expected)
    assert {key: index.get(key) for key in range(301) if key in index} == expected


@pytest.mark.slow
@given(_STEPS, st.sets(_KEYS, max_size=40))
def test_a_shelf_is_an_ordered_dict(steps: list[tuple[str, int]], last: set[int]) -> None:
    shelf = Shelf("id", [{"id": i} for i in range(150)])
    expected: dict[int, Any] = {i: {"id": i} for i in range(150)}
    for step, key in steps:
        expected.pop(key, None)
        if step == "add":
            shelf = shelf.add({"id": key, "n": 1})
            expected[key] = {"id": key, "n": 1}
        else:
            shelf = shelf.remove([key])
    shelf = shelf.remove(last)
    left = [value for key, value in expected.items() if key not in last]
    assert list(shelf) == left
    assert len(shelf) == len(left)
    assert json.loads(b"".join((b"[", *shelf.rows.pieces(), b"]"))) == left
    assert all(shelf.get(value["id"]) == value for value in left)
    assert shelf == Shelf("id", left)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 250))
def test_rows_can_be_cut_at_both_ends(size: int, more: int, at: int) -> None:
    rows = PersistentRows({"n": i} for i in range(size))
    for i in range(size, size + more):
        rows = rows.append({"n": i})
    everything = list(range(size + more))
    assert [row.value["n"] for row in rows.tail(at)] == everything[at:]
    assert [row.value["n"] for row in rows.newest(at)] == (everything[-at:] if at else [])
    after = rows.after(at)
    assert [row.value["n"] for row in after] == everything[at + 1 :]
    assert len(after) == len(everything[at + 1 :])
    assert [row.value["n"] for row in after.append({"n": -1})] == [*everything[at + 1 :], -1]


def test_an_older_version_is_untouched() -> None:
    first = Shelf("id", [{"id": i} for i in range(100)])
    second = first.add({"id": 100}).remove(range(50))
    assert [value["id"] for value in first] == list(range(100))
    assert [value["id"] for value in second] == list(range(50, 101))


def test_adding_to_many_copies_little() -> None:
    many = PersistentRows({"n": i} for i in range(10_000))
    grown = many.append({"n": 10_000})
    shared = sum(one is other for one, other in zip(many._chunks, grown._chunks, strict=False))
    assert shared >= len(many._chunks) - 1
