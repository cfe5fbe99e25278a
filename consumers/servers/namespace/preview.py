"""Rows as JSON for people to look at: what is long is cut, and says so.

Programs read the Arrow file. Numbers that JavaScript can't hold, times, decimals and bytes are
texts here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from starlette.responses import Response

from commitlog.adapters.shown_values import python_values

ROWS_MAX = 1000
TEXT_MAX = 400
BYTES_MAX = 48
ITEMS_MAX = 24
DEPTH_MAX = 6
SAFE_INTEGER = 2**53


def preview(found: pa.Table, version: int) -> Response:
    """Return columns with their types, and rows whose cells are texts, numbers, booleans or null.

    At most `ROWS_MAX` rows; `is_cut` says that there were more.
    """
    shown = found.slice(0, ROWS_MAX)
    columns = [[_cell(value) for value in python_values(column)] for column in shown.columns]
    body = {
        "version": version,
        "columns": [{"name": field.name, "type": str(field.type)} for field in found.schema],
        "rows": list(zip(*columns, strict=True)) if columns else [],
        "is_cut": found.num_rows > ROWS_MAX,
    }
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})


def _cell(value: Any) -> None | bool | int | float | str:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= SAFE_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    text = value if isinstance(value, str) else _text(value, 0)
    left_out = len(text) - TEXT_MAX
    return text if left_out <= 0 else f"{text[:TEXT_MAX]}… {left_out:,} more characters"


def _text(value: Any, depth: int) -> str:
    if isinstance(value, bytes):
        left_out = len(value) - BYTES_MAX
        more = f"… {left_out:,} more bytes" if left_out > 0 else ""
        return f"0x{value[:BYTES_MAX].hex()}{more}"
    if isinstance(value, str):
        return json.dumps(value[:TEXT_MAX], ensure_ascii=False)
    if isinstance(value, Mapping):
        return _many(
            [f"{name}: {_inner(one, depth)}" for name, one in list(value.items())[:ITEMS_MAX]],
            len(value),
            "{}",
        )
    if isinstance(value, list | tuple):
        return _many([_inner(one, depth) for one in value[:ITEMS_MAX]], len(value), "[]")
    return str(value)


def _inner(value: Any, depth: int) -> str:
    if depth >= DEPTH_MAX:
        return "…"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "null" if value is None else _text(value, depth + 1)


def _many(shown: list[str], count: int, brackets: str) -> str:
    left_out = count - len(shown)
    texts = [*shown, f"… {left_out:,} more"] if left_out > 0 else shown
    return f"{brackets[0]}{', '.join(texts)}{brackets[1]}"
