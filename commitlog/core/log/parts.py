"""Pieces of a machine's state: how each is encoded, and how it is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple


class Saved(NamedTuple):
    """A part as it is kept."""

    counter: int
    data: bytes
    digest: bytes
    """SHA-256 of the bytes."""
    hint: bytes | None = None


class Part(NamedTuple):
    """A piece of the state."""

    counter: int
    encode: Callable[[], bytes]
    hint: Callable[[], bytes] | None = None
    """What is known of the bytes besides, which spares a restore to find it in them."""

    def saved(self) -> Saved:
        """Return it as it is kept."""
        data = self.encode()
        hint = self.hint() if self.hint is not None else None
        return Saved(self.counter, data, hashlib.sha256(data).digest(), hint)
