"""Values of rows as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

Value = None | bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"]


def jsonable(value: object, *, is_utc: bool = True) -> Value:
    """Return a value as JSON has it: times in UTC, bytes in hex, NaN and infinity as words.

    Of a time without a zone `is_utc` tells whether it is in UTC, as the index's are.
    """
    if isinstance(value, datetime):
        plain = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        # Log time has milliseconds; other times keep what they have.
        exact = "microseconds" if value.microsecond % 1000 else "milliseconds"
        zone = "Z" if is_utc or value.tzinfo is not None else ""
        return plain.isoformat(timespec=exact) + zone
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, list | tuple):
        return [jsonable(one, is_utc=is_utc) for one in value]
    if isinstance(value, dict):
        return {str(key): jsonable(one, is_utc=is_utc) for key, one in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
