"""Rows of the version index, as its readers have them: by their place in the log, and as JSON."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

SCHEMA_VERSION = 10
"""The format of the index's relations. An index of another one is rebuilt from the log."""


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


Rows = list[dict[str, Any]]


class ByPlace:
    """Rows by partition and sequence, sorted out once.

    A client may try a transaction of a thousand operations a thousand times: to search all rows for
    those of each attempt would take a thousand million comparisons.
    """

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        """Sort rows out; those of one place stay in their order."""
        self._rows: defaultdict[tuple[Any, Any], Rows] = defaultdict(list)
        for row in rows:
            self._rows[row["partition"], row["sequence"]].append(row)

    def of(self, row: dict[str, Any]) -> Rows:
        """Return the rows that have the place of another row."""
        return self._rows.get((row["partition"], row["sequence"]), [])
