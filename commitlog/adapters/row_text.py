"""Text in Arrow's arrays that isn't UTF-8: Lance writes it, and can't read the file again.

Arrow doesn't look at text when it reads a stream, nor when buffers are made into an array.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import types

from commitlog.adapters.row_values import Misfit, first_bad, holds, is_list
from commitlog.errors import InvalidTransaction

_REASON = "it is not UTF-8"
_AS_BYTES = {
    "string": pa.binary(),
    "large_string": pa.large_binary(),
    "string_view": pa.binary_view(),
}


def check_text(values: pa.Array) -> None:
    """Raise Misfit for the first value that has text which isn't UTF-8."""
    if not holds(values.type, is_text) or _is_good(values):
        return
    bad = first_bad(values, _validate)
    raise Misfit(bad, _shown(values.slice(bad, 1)), str(values.type), _REASON)


def check_batch(batch: pa.RecordBatch, first: int) -> None:
    """Raise InvalidTransaction if text isn't UTF-8; `first` is the number of the first row."""
    for field, values in zip(batch.schema, batch.columns, strict=True):
        try:
            check_text(values)
        except Misfit as found:
            raise InvalidTransaction(
                f"row {first + found.position} of column {field.name!r} is {found.shown}:"
                f" {found.reason}",
                field=field.name,
                value=found.shown,
                advice="Correct the value, or use a binary column",
            ) from None


def _is_good(values: pa.Array) -> bool:
    try:
        _validate(values)
    except pa.ArrowInvalid:
        return False
    return True


def _validate(values: pa.Array) -> None:
    for text in _texts(values):
        text.validate(full=True)


def _texts(values: pa.Array) -> Iterator[pa.Array]:
    kind = values.type
    if not holds(kind, is_text):
        return
    if isinstance(kind, pa.BaseExtensionType):
        yield from _texts(values.storage)
    elif types.is_dictionary(kind):
        held = values.dictionary
        # Of a slice, only the values that it has, where Arrow can pick them.
        if not types.is_string_view(held.type):
            held = held.take(values.indices.unique().drop_null())
        yield from _texts(held)
    elif types.is_struct(kind):
        for part in values.flatten():
            yield from _texts(part)
    elif types.is_map(kind):
        start, end = values.offsets[0].as_py(), values.offsets[len(values)].as_py()
        yield from _texts(values.keys.slice(start, end - start))
        yield from _texts(values.items.slice(start, end - start))
    elif is_list(kind):
        yield from _texts(values.flatten())
    elif not types.is_nested(kind):
        yield values


def is_text(kind: pa.DataType) -> bool:
    """Return True for texts, in any layout."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _shown(value: pa.Array) -> str:
    bad = next(text for text in _texts(value) if not _is_good(text))
    data = bad.view(_AS_BYTES[str(bad.type)])
    data.validate(full=True)  # Offsets that lead outside would show what isn't the caller's.
    held = next(one for one in data.to_pylist() if _is_bad(one))
    return repr(held[:40])


def _is_bad(held: bytes | None) -> bool:
    try:
        (held or b"").decode()
    except UnicodeDecodeError:
        return True
    return False
