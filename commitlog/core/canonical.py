"""JSON of which there is only one form, so that equal states have equal bytes."""

from __future__ import annotations

import json
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def to_json(value: Any) -> bytes:
    """Return a value as canonical JSON in UTF-8."""
    return _ENCODER.encode(value).encode()
