"""JSON in one canonical form, so that equal states have equal bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from json import encoder
from typing import Any

from commitlog.codecs.lanes import TO_JSON

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _chunks_of() -> Callable[[Any, int], Iterable[str]]:
    """Return the encoder that `_ENCODER` makes anew for each value.

    For a small value, making it takes as long as encoding.
    """
    make: Any = getattr(encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without it
        return lambda value, level: _ENCODER.iterencode(value)
    chunks: Callable[[Any, int], Iterable[str]] = make(
        None,  # no look for values that hold themselves
        _ENCODER.default,
        encoder.encode_basestring,
        None,
        _ENCODER.key_separator,
        _ENCODER.item_separator,
        _ENCODER.sort_keys,
        _ENCODER.skipkeys,
        _ENCODER.allow_nan,
    )
    return chunks


_CHUNKS = _chunks_of()


def to_json(value: Any) -> bytes:
    """Return a value as canonical JSON in UTF-8."""
    made = TO_JSON(value) if TO_JSON is not None else None
    return in_python(value) if made is None else made


def in_python(value: Any) -> bytes:
    """Return the same without machine code."""
    return "".join(_CHUNKS(value, 0)).encode()


def joined(value: Mapping[str, Any], lists: Mapping[str, Iterable[bytes]]) -> bytes:
    """Return an object with more members: lists of what is canonical JSON already."""
    pieces = list[bytes]()
    for name in sorted({*value, *lists}):
        pieces += b",", to_json(name), b":"
        if name in lists:
            pieces += b"[", b",".join(lists[name]), b"]"
        else:
            pieces.append(to_json(value[name]))
    return b"".join((b"{", *pieces[1:], b"}"))
