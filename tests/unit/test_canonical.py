"""Is there one form only, whichever encoder the interpreter has?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.core.log import canonical
from commitlog.model.records import Status
from tests.json_lanes import search_json
from tests.lanes import load

SEED, SECONDS = 1, 1.0

TEXTS = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner) | st.tuples(inner, inner),
    max_leaves=20,
)


def expected(value: object) -> bytes:
    """Return what the standard library makes by the rules of the canonical form."""
    told = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return told.encode()


@pytest.mark.slow
@given(VALUES)
def test_it_is_json_with_sorted_keys_and_no_space(value: object) -> None:
    assert canonical.to_json(value) == expected(value)


@pytest.mark.slow
@given(VALUES)
def test_python_writes_the_same_without_machine_code(value: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical, "TO_JSON", None)
        assert canonical.to_json(value) == expected(value)


@pytest.fixture
def to_json(native_module: Path) -> Any:
    return load(native_module)[4].to_json


@pytest.mark.slow
def test_machine_code_writes_the_same_or_leaves_it_to_python(to_json: Any) -> None:
    tried, made = search_json(to_json, SECONDS, SEED)
    assert tried // 4 < made < tried
    cases = ("", "\x7f\u2028\U0001f600", 'a"b\\c/\b\t\n\f\r\0\x1f', Status.COMMITTED, -(2**63))
    for value in (*cases, {"b": 1, "a": [(), {}, None, True, False]}):
        assert to_json(value) == expected(value)
    for odd in (1.5, 2**63, b"", {1: 2}, {Status.COMMITTED: 1}, {1}, object(), "\ud800"):
        assert to_json(odd) is None
        assert to_json([odd]) is None
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert to_json(nested) is None


def test_machine_code_keeps_no_memory(to_json: Any) -> None:
    values = [{"a": [1, "x" * n, None], "b": {"c": 1.5}} for n in range(2_000)]
    for value in values:
        to_json(value)
        to_json(value["a"])
    before = sys.getallocatedblocks()
    for value in values:
        to_json(value)
        to_json(value["a"])
    assert sys.getallocatedblocks() - before < 100


@pytest.mark.slow
@given(st.dictionaries(TEXTS, VALUES), TEXTS, st.lists(VALUES))
def test_a_list_may_be_encoded_before_the_object_that_has_it(
    value: dict[str, object], name: str, items: list[object]
) -> None:
    value.pop(name, None)
    texts = map(canonical.to_json, items)
    assert canonical.joined(value, {name: texts}) == expected({**value, name: items})


def test_an_interpreter_without_the_fast_encoder_writes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("json.encoder.c_make_encoder", None)
    slow = canonical._chunks_of()
    value = {"b": [1, None, True, "é\n"], "a": {"z": 1.5, "y": "x"}}
    assert "".join(slow(value, 0)).encode() == canonical.to_json(value) == expected(value)
    monkeypatch.undo()
    assert "".join(canonical._chunks_of()(value, 0)).encode() == expected(value)


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        canonical.to_json({"a": b"bytes"})
