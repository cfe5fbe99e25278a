"""Is there one form only, whichever encoder the interpreter has?"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.core.log import canonical

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


@given(VALUES)
def test_it_is_json_with_sorted_keys_and_no_space(value: object) -> None:
    assert canonical.to_json(value) == expected(value)


@given(st.dictionaries(TEXTS, VALUES), TEXTS, st.lists(VALUES))
def test_a_list_may_be_encoded_before_the_object_that_has_it(
    value: dict[str, object], name: str, items: list[object]
) -> None:
    value.pop(name, None)
    texts = map(canonical.to_json, items)
    assert canonical.joined(value, name, texts) == expected({**value, name: items})


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
