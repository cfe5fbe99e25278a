"""Arrow values converted to a column's type without loss, or found not to fit.

What fits is said in `row_contract`; this module does it, an array at a time. The value that
doesn't fit is looked for only once a conversion has failed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from commitlog.adapters.shown_values import shown

_BLOB, _JSON = "lance.blob.v2", "arrow.json"
_LEGACY_BLOB = b"lance-encoding:blob"
# Arrow picks no values of a dictionary of views, as polars has them.
_PICKED = {pa.string_view().id: pa.large_string(), pa.binary_view().id: pa.large_binary()}
_WIDEST_INTEGER = pa.decimal128(20, 0)


@dataclass
class Misfit(Exception):
    """A value that doesn't fit, at a position of the array that was converted."""

    position: int
    shown: str
    kind: str
    reason: str
    path: tuple[str, ...] = ()

    def inside(self, name: str, position: int) -> Misfit:
        """Return it as seen from the array around it."""
        return replace(self, position=position, path=(name, *self.path))


def convert(values: pa.Array, wanted: pa.DataType, rounds: bool) -> pa.Array:
    """Return values in another type that they fit by `row_contract.fits`.

    With `rounds`, floats are rounded to the nearest of a narrower width.

    Raises Misfit for the first value that doesn't fit.
    """
    given = values.type
    if types.is_dictionary(given) and values.dictionary.null_count:
        # A null among a dictionary's values counts as none, and Arrow joins no such dictionaries.
        return convert(_decoded(values), wanted, rounds)
    if given.equals(wanted, check_metadata=True) and not _requires(wanted):
        return values
    if types.is_null(given):
        return _nulls(len(values), wanted)
    if isinstance(given, pa.BaseExtensionType):
        return convert(values.storage, wanted, rounds)
    if isinstance(wanted, pa.BaseExtensionType):
        return _extended(values, wanted, rounds)
    if types.is_dictionary(given):
        return convert(_decoded(values), wanted, rounds)
    if types.is_dictionary(wanted):
        plain = convert(values, wanted.value_type, rounds)
        return _judged(plain, wanted, lambda part: _encoded(part, wanted))
    if types.is_struct(wanted):
        return _struct(values, wanted, rounds)
    if types.is_map(wanted):
        return _map(values, wanted, rounds)
    if is_list(wanted):
        return _list(values, wanted, rounds)
    if given.equals(wanted):
        return values
    return _judged(values, wanted, lambda part: _cast(part, wanted, rounds))


def compact(values: pa.Array) -> pa.Array:
    """Copy a nested array whose buffers hold more than its values: Lance misreads some of them."""
    kind = values.type
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    is_vector = types.is_fixed_size_list(storage) and types.is_primitive(storage.value_type)
    is_flat = not types.is_nested(storage) or is_vector
    if is_flat or values.nbytes == values.get_total_buffer_size():
        return values
    return values.take(pa.array(range(len(values)), pa.int64()))


def _judged(
    values: pa.Array, wanted: pa.DataType, convert: Callable[[pa.Array], pa.Array]
) -> pa.Array:
    """Convert values; find the first that cannot be, if any."""
    try:
        return convert(values)
    except (pa.ArrowException, OverflowError) as error:
        reason = str(error)
    bad = first_bad(values, convert)
    raise Misfit(bad, shown(values[bad]), str(wanted), reason)


def first_bad(values: pa.Array, use: Callable[[pa.Array], object]) -> int:
    """Return the position of the first value for which an array can't be used."""

    def fails(count: int) -> bool:
        try:
            use(values.slice(0, count))
        except (pa.ArrowException, OverflowError):
            return True
        return False

    return bisect_left(range(1, len(values)), True, key=fails)


def _cast(values: pa.Array, wanted: pa.DataType, rounds: bool) -> pa.Array:
    given = values.type
    if types.is_integer(given) and types.is_decimal(wanted):
        # Arrow asks for room for any integer; the values are what counts.
        return values.cast(_WIDEST_INTEGER).cast(wanted)
    if types.is_float16(given) or types.is_float16(wanted):
        # Arrow's own casts between this and integers overflow.
        values = values.cast(pa.float64())
    if types.is_floating(values.type) and types.is_floating(wanted):
        return _narrowed(values, wanted, rounds)
    return values.cast(wanted)


def _narrowed(values: pa.Array, wanted: pa.DataType, rounds: bool) -> pa.Array:
    narrow = values.cast(wanted)
    if wanted.bit_width >= values.type.bit_width:
        return narrow
    before, after = values.cast(pa.float64()), narrow.cast(pa.float64())
    overflows = pc.and_(pc.is_inf(after), pc.invert(pc.is_inf(before)))
    if pc.any(overflows).as_py():
        raise pa.ArrowInvalid("it is out of range and would become infinite")
    rounded = pc.and_(pc.not_equal(before, after), pc.invert(pc.is_nan(before)))
    if not rounds and pc.any(rounded).as_py():
        raise pa.ArrowInvalid("it would be rounded")
    return narrow


def _extended(values: pa.Array, wanted: pa.BaseExtensionType, rounds: bool) -> pa.Array:
    if is_blob(wanted):
        storage = _blobs(values, wanted.storage_type)
    else:
        storage = convert(values, wanted.storage_type, rounds)
    if is_json(wanted):
        # Lance would store it as null.
        empty = pc.index(pc.match_substring_regex(storage, r"^\s*$"), True).as_py()
        if empty >= 0:
            raise Misfit(empty, shown(storage[empty]), str(wanted), "it is not JSON")
    return pa.ExtensionArray.from_storage(wanted, storage)


def _blobs(values: pa.Array, wanted: pa.StructType) -> pa.StructArray:
    """Return bytes, or blobs in any of Lance's layouts, as blobs."""
    if not types.is_struct(values.type):
        data = convert(values, pa.large_binary(), False)
        values = pa.StructArray.from_arrays([data], names=["data"], mask=_mask(data))
    for field in values.type:
        if wanted.get_field_index(field.name) < 0:
            lost = pc.index(pc.is_valid(pc.struct_field(values, field.name)), True).as_py()
            if lost >= 0:
                reason = f"the column has no field {field.name!r}"
                raise Misfit(lost, shown(values[lost]), str(wanted), reason)
    return _struct(values, wanted, False)


def is_blob(kind: pa.DataType) -> bool:
    """Return True for Lance's blobs of version 2."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == _BLOB


def is_json(kind: pa.DataType) -> bool:
    """Return True for JSON."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == _JSON


def holds_blobs(field: pa.Field, *, legacy: bool = True) -> bool:
    """Return True if a column, or a part of it, is read as descriptors of blobs."""
    if is_blob(field.type) or (legacy and _LEGACY_BLOB in (field.metadata or {})):
        return True
    return bool(types.is_nested(field.type)) and any(
        holds_blobs(field.type.field(at), legacy=legacy) for at in range(field.type.num_fields)
    )


def _decoded(values: pa.DictionaryArray) -> pa.Array:
    if kind := _PICKED.get(values.type.value_type.id):
        values = pa.DictionaryArray.from_arrays(values.indices, values.dictionary.cast(kind))
    return values.dictionary_decode()


def _encoded(plain: pa.Array, wanted: pa.DictionaryType) -> pa.Array:
    encoded = plain.dictionary_encode()
    indices = encoded.indices.cast(wanted.index_type)
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=wanted.ordered)


def _struct(values: pa.StructArray, wanted: pa.StructType, rounds: bool) -> pa.StructArray:
    # A field below a null struct is no value, whatever its bytes are.
    parts = values.flatten()
    children = []
    for field in wanted:
        at = values.type.get_field_index(field.name)
        try:
            part = pa.nulls(len(values)) if at < 0 else parts[at]
            child = convert(part, field.type, rounds)
            require(child, field, values)
        except Misfit as misfit:
            raise misfit.inside(field.name, misfit.position) from None
        children.append(child)
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=_mask(values))


def _list(values: pa.Array, wanted: pa.DataType, rounds: bool) -> pa.Array:
    live = values.drop_null() if values.null_count else values
    lengths = pc.list_value_length(live)
    is_fixed = types.is_fixed_size_list(wanted)
    if is_fixed:
        wrong = pc.index(pc.not_equal(lengths, wanted.list_size), True).as_py()
        if wrong >= 0:
            raise Misfit(
                _rows(values)[wrong],
                shown(live[wrong]),
                str(wanted),
                f"it has {lengths[wrong].as_py()} elements",
            )
    items = _items(live.flatten(), wanted.value_field, rounds or is_fixed, values, lengths)
    if is_fixed:
        return _fixed(values, items, wanted)
    cls = pa.LargeListArray if types.is_large_list(wanted) else pa.ListArray
    offsets = _offsets(values, lengths, wanted)
    return cls.from_arrays(offsets, items, type=wanted, mask=_mask(values))


def _map(values: pa.MapArray, wanted: pa.MapType, rounds: bool) -> pa.MapArray:
    live = values.drop_null() if values.null_count else values
    offsets = live.offsets
    start, count = offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()
    lengths = pc.subtract(offsets[1:], offsets[:-1])
    keys, items = (
        _items(part.slice(start, count), field, rounds, values, lengths)
        for part, field in ((live.keys, wanted.key_field), (live.items, wanted.item_field))
    )
    return pa.MapArray.from_arrays(
        _offsets(values, lengths, wanted), keys, items, type=wanted, mask=_mask(values)
    )


def _items(
    found: pa.Array, field: pa.Field, rounds: bool, outer: pa.Array, lengths: pa.Array
) -> pa.Array:
    """Convert the elements of all lists that aren't null."""
    try:
        items = convert(found, field.type, rounds)
        require(items, field)
    except Misfit as misfit:
        ends = list(accumulate(lengths.to_pylist()))
        row = _rows(outer)[bisect_right(ends, misfit.position)]
        raise misfit.inside(field.name, row) from None
    return items


def _fixed(values: pa.Array, items: pa.Array, wanted: pa.FixedSizeListType) -> pa.Array:
    """Return fixed-size lists; below a null one Lance wants elements that are valid."""
    if not values.null_count:
        return pa.FixedSizeListArray.from_arrays(items, type=wanted)
    filler = _filler(wanted.list_size, wanted.value_type)
    lists = pa.FixedSizeListArray.from_arrays(pa.concat_arrays([items, filler]), type=wanted)
    spread = lists.take(_ranks(values, len(lists) - 1))
    return pa.FixedSizeListArray.from_arrays(spread.flatten(), type=wanted, mask=_mask(values))


def _offsets(values: pa.Array, lengths: pa.Array, wanted: pa.DataType) -> pa.Array:
    if values.null_count:
        lengths = lengths.take(_ranks(values, pa.scalar(None, pa.int64()))).fill_null(0)
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    kind = pa.int64() if types.is_large_list(wanted) else pa.int32()
    return pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(kind)


def aligned(values: pa.Array) -> pa.Array:
    """Return values at addresses at which Rust may read them.

    Arrow's files and streams keep 8 bytes; Lance panics on 128-bit values that aren't at 16.
    """
    step = 8 if is_number(values.type) or not holds(values.type, _is_wide) else 16
    if all(buffer is None or buffer.address % step == 0 for buffer in values.buffers()):
        return values
    return pa.concat_arrays([values])


def _is_wide(kind: pa.DataType) -> bool:
    return bool(types.is_decimal128(kind) or types.is_decimal256(kind))


def holds(kind: pa.DataType, is_sought: Callable[[pa.DataType], bool]) -> bool:
    """Return True if a type is sought, or holds one that is."""
    if isinstance(kind, pa.BaseExtensionType):
        return holds(kind.storage_type, is_sought)
    if is_sought(kind):
        return True
    if types.is_dictionary(kind):
        return holds(kind.value_type, is_sought)
    return bool(types.is_nested(kind)) and _parts_hold(kind, is_sought)


@lru_cache(maxsize=1024)
def _parts_hold(kind: pa.DataType, is_sought: Callable[[pa.DataType], bool]) -> bool:
    return any(holds(kind.field(at).type, is_sought) for at in range(kind.num_fields))


def require(values: pa.Array, field: pa.Field, outer: pa.Array | None = None) -> None:
    """Refuse nulls in a field that may not be null, except below a struct that is null itself."""
    if field.nullable or not values.null_count:
        return
    nulls = values.is_null()
    if outer is not None and outer.null_count:
        nulls = pc.and_(nulls, outer.is_valid())
    position = pc.index(nulls, True).as_py()
    if position >= 0:
        raise Misfit(position, "null", str(field.type), "it may not be null")


def _nulls(count: int, kind: pa.DataType) -> pa.Array:
    if types.is_fixed_size_list(kind) and not kind.value_field.nullable:
        filler = _filler(count * kind.list_size, kind.value_type)
        mask = pa.array([True] * count, pa.bool_())
        return pa.FixedSizeListArray.from_arrays(filler, type=kind, mask=mask)
    return pa.nulls(count, kind)


def _filler(count: int, kind: pa.DataType) -> pa.Array:
    """Return elements for lists that are null."""
    if types.is_fixed_size_list(kind):
        inner = _filler(count * kind.list_size, kind.value_type)
        return pa.FixedSizeListArray.from_arrays(inner, type=kind)
    if types.is_primitive(kind):
        size = (count * kind.bit_width + 7) // 8
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(bytes(size))])
    return pa.nulls(count, kind)


def _requires(kind: pa.DataType) -> bool:
    """Return True if something inside a type may not be null, or takes a closer look."""
    if isinstance(kind, pa.BaseExtensionType):
        return is_json(kind) or _requires(kind.storage_type)
    return bool(types.is_nested(kind)) and _parts_require(kind)


@lru_cache(maxsize=1024)
def _parts_require(kind: pa.DataType) -> bool:
    if types.is_map(kind):
        return _requires(kind.key_type) or not kind.item_field.nullable or _requires(kind.item_type)
    inner = [kind.field(at) for at in range(kind.num_fields)]
    return any(
        not each.nullable or types.is_dictionary(each.type) or _requires(each.type)
        for each in inner
    )


def _rows(values: pa.Array) -> list[int]:
    """Return the positions of values that aren't null."""
    return [at for at, valid in enumerate(values.is_valid().to_pylist()) if valid]


def _ranks(values: pa.Array, of_null: int | pa.Scalar) -> pa.Array:
    """Return the place of each value among those that aren't null."""
    valid = values.is_valid()
    ranks = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    return pc.if_else(valid, ranks, of_null)


def _mask(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None


_NUMBERS = frozenset(
    kind().id
    for kind in (
        *(pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64),
        *(pa.float16, pa.float32, pa.float64, pa.bool_),
    )
)


def is_number(kind: pa.DataType) -> bool:
    """Return True for a number of at most 64 bits, or a boolean: each bit pattern is a value."""
    return kind.id in _NUMBERS


def is_list(kind: pa.DataType) -> bool:
    """Return True for a list in any layout."""
    return is_stored_list(kind) or types.is_list_view(kind) or bool(types.is_large_list_view(kind))


def is_stored_list(kind: pa.DataType) -> bool:
    """Return True for a list in a layout that Lance stores."""
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
