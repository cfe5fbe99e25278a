"""Where two columns of the same length have different values, compared as they are written.

A NaN equals a NaN, null equals null, and 0.0 differs from -0.0. Values stay in Arrow: as Python's
own, a fragment's vectors would take many times the memory of the fragment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from commitlog.adapters.shown_values import python_values

Flags = np.ndarray[Any, np.dtype[np.bool_]]
_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def differing(one: pa.Array, other: pa.Array) -> Flags:
    """Return for each place whether the values there differ."""
    kind = one.type
    if not kind.equals(other.type):
        pairs = zip(python_values(one), python_values(other), strict=True)
        return np.array([repr(this) != repr(that) for this, that in pairs], np.bool_)
    if isinstance(kind, pa.BaseExtensionType):
        return differing(one.storage, other.storage)
    if types.is_dictionary(kind):
        return differing(one.dictionary_decode(), other.dictionary_decode())
    here, there = (np.asarray(values.is_valid()) for values in (one, other))
    both = here & there
    found: Flags = here != there
    if both.all():
        found[both] = _of_valid(one, other)
    elif both.any():
        found[both] = _of_valid(one.filter(pa.array(both)), other.filter(pa.array(both)))
    return found


def _of_valid(one: pa.Array, other: pa.Array) -> Flags:
    kind = one.type
    if types.is_struct(kind):
        found = np.zeros(len(one), np.bool_)
        for this, that in zip(one.flatten(), other.flatten(), strict=True):
            found |= differing(this, that)
        return found
    if types.is_map(kind):
        return _of_lists(_pairs(one), _pairs(other))
    if types.is_nested(kind):
        return _of_lists(one, other)
    if types.is_floating(kind):
        bits = _BITS[kind.bit_width // 8]
        this, that = (np.asarray(values) for values in (one, other))
        differs: Flags = (this.view(bits) != that.view(bits)) & ~(np.isnan(this) & np.isnan(that))
        return differs
    return np.asarray(pc.not_equal(one, other))


def _pairs(maps: pa.MapArray) -> pa.ListArray:
    """Return maps as lists of pairs, in their order."""
    pairs = pa.StructArray.from_arrays([maps.keys, maps.items], ["key", "value"])
    return pa.ListArray.from_arrays(maps.offsets, pairs)


def _of_lists(one: pa.Array, other: pa.Array) -> Flags:
    """Return where lists or vectors differ."""
    lengths, theirs = (np.asarray(pc.list_value_length(values)) for values in (one, other))
    found: Flags = lengths != theirs
    same = np.flatnonzero(~found)
    this, that = (values.take(pa.array(same)) if found.any() else values for values in (one, other))
    place = np.repeat(same, lengths[same])
    found[place[differing(this.flatten(), that.flatten())]] = True
    return found
