"""Why an Iceberg change cannot be applied. These never leave the core."""

from __future__ import annotations

from typing import Any

from commitlog.model.reasons import Phrase
from commitlog.words import say


class _NotApplied(Exception):
    def __init__(self, reason: str, **arguments: Any) -> None:
        self.phrase = Phrase(reason, arguments)
        super().__init__(say(self.phrase))


class Invalid(_NotApplied):
    """The request is wrong as it stands: 400. The message names the place in the document."""


class Stale(_NotApplied):
    """The request carries values that the table has moved past: 409, read again and redo."""
