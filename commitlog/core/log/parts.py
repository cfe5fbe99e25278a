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
    unpack: Callable[[], tuple[bytes, bytes]] | None = None
    """Returns the bytes and the hint of a part that is kept compressed: they aren't here then."""


class Part(NamedTuple):
    """A piece of the state."""

    counter: int
    encode: Callable[[], bytes]
    encode_with_hint: Callable[[], tuple[bytes, bytes]] | None = None
    """Returns also what is known of the bytes, which spares a restore to find it in them."""
    digests: dict[int, bytes] | None = None
    """The hashes of a table's chunks, of which the one with this counter is this part, as long as
    they don't change. None: another counter tells that a part changed."""

    def is_as(self, counter: int, digest: bytes) -> bool:
        """Return True if nothing changed since it was saved with this counter and hash."""
        if self.digests is not None:
            return self.digests.get(self.counter) == digest
        return self.counter == counter

    def digest(self) -> bytes:
        """Return the hash of its bytes."""
        known = self.digests.get(self.counter) if self.digests is not None else None
        return self._digest_of(self.encode()) if known is None else known

    def saved(self) -> Saved:
        """Return it as it is kept."""
        hint: bytes | None = None
        if self.encode_with_hint is not None:
            data, hint = self.encode_with_hint()
        else:
            data = self.encode()
        return Saved(self.counter, data, self._digest_of(data), hint)

    def _digest_of(self, data: bytes) -> bytes:
        digest = hashlib.sha256(data).digest()
        if self.digests is not None:
            self.digests[self.counter] = digest
        return digest
