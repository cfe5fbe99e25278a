"""The errors that a leader names in its frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commitlog import errors
from commitlog.errors import CommitLogError, OutcomeUnknown, Unavailable

_ASKS = " Did you mean "


def error_from(body: Mapping[str, Any]) -> CommitLogError:
    """Make the error that the leader names."""
    kind = getattr(errors, str(body.get("type", "")), None)
    message = str(body.get("message", "")) or "the leader refused without a reason"
    if kind is errors.Overloaded:
        seconds = float(body.get("retry_after_seconds", 1))
        return errors.Overloaded(message, seconds, str(body.get("table", "")))
    if kind is OutcomeUnknown:
        return OutcomeUnknown(message, str(body.get("transaction_id", "")))
    if isinstance(kind, type) and issubclass(kind, CommitLogError):
        if issubclass(kind, errors.CommitConflict):
            return Unavailable(message)
        error = kind(message)
        if isinstance(error, errors.NoSuchTable):
            error.hint = str(body.get("hint", "")) or _similar_names(message)
        return error
    return Unavailable(f"{body.get('type')}: {message}")


def _similar_names(message: str) -> str:
    """Return the sentence of similar names: a leader of the former release sends it in the text."""
    _, asks, names = message.partition(_ASKS)
    return f"{asks}{names}".lstrip() if names.endswith("?") else ""
