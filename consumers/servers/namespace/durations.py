"""How long a request may take, as clients say it."""

from __future__ import annotations

import re

from lance_namespace import InvalidInputError

from commitlog.model.digits import whole_number
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.remote import TIMEOUT

TIMEOUT_SECONDS = 60.0
"""How long the log may take to answer a change of rows for which the client named no time."""
TIMEOUT_SECONDS_MAX = 3600.0
_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)"
_DURATION = re.compile(rf"{_PART}(?:\s*{_PART})*")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def timeout_of(call: Call, given: str | None) -> float | None:
    """Return how long a merge may take, said in a field or as LanceDB's client says it; or None."""
    header = call.headers.get(TIMEOUT, "")
    is_told = not given and whole_number(header) is not None
    return seconds(f"{header}ms" if is_told else given)


def seconds(text: str | None) -> float | None:
    """Return a duration such as `30s`, `5m` or `1m30s` in seconds; None for an empty one."""
    if not text:
        return None
    parts = re.findall(_PART, text) if _DURATION.fullmatch(text.strip()) else ()
    value = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 < value <= TIMEOUT_SECONDS_MAX:
        raise InvalidInputError(
            f"timeout must be a duration such as 30s or 5m, at most 1h, not {text!r}"
        )
    return value
