"""The numbers by which it is remembered where values of a column are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Numbers = Any
"""An array of 64-bit numbers that stand for values: equal values have the same."""

_OF_64_BITS = (pa.int64(), pa.uint64())


def is_number(kind: pa.DataType) -> bool:
    """Return True for integers and timestamps, whose numbers are their values."""
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


def is_text(kind: pa.DataType) -> bool:
    """Return True for texts, whose numbers are hashes."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def number_of_text(text: str) -> int:
    """Return the number of a text."""
    return hash(text) & (1 << 64) - 1


def numbers_of(values: pa.Array | pa.ChunkedArray) -> Numbers | None:
    """Return the numbers of values, of a null that of zero; None for types that have none here."""
    kind = values.type
    if is_number(kind):
        whole = values if kind in _OF_64_BITS else values.cast(pa.int64())
        if whole.null_count:
            whole = pc.fill_null(whole, 0)
        return np.asarray(whole).astype(np.uint64)
    if is_text(kind):
        return np.fromiter(map(hash, values.to_pylist()), np.int64).astype(np.uint64)
    return None
