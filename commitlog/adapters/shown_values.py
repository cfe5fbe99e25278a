"""Arrow's values as Python's own, also where Python has none: nanoseconds, years after 9999."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

VALUE_CHARACTERS_MAX = 80


def shown(value: Any) -> str:
    """Return a value as an error shows it."""
    text = _text(value) if (found := _python(value)) is None and value.is_valid else repr(found)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}..."


def python_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return values as Python's own; as text, those that Python cannot hold."""
    try:
        return list(values.to_pylist())
    except (ValueError, OverflowError):
        return [_text(v) if (own := _python(v)) is None and v.is_valid else own for v in values]


def python_rows(rows: pa.Table | pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows by column, with values as `python_values` returns them."""
    columns = [python_values(column) for column in rows.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(rows.schema.names, values, strict=True))


def _python(value: Any) -> Any:
    """Return a value as Python's own; None if it is null, or Python cannot hold it."""
    try:
        return value.as_py()
    except (ValueError, OverflowError, pa.ArrowException):
        return None


def _text(value: Any) -> str:
    """Return what Arrow prints of a value, on one line and without the brackets of an array."""
    return " ".join(str(pa.array([value], value.type)).split())[2:-2]
