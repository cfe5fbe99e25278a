"""A checkpoint as bytes that nothing changes any more, on its way to the disk."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from commitlog.adapters.storage import sha256_of
from commitlog.core.log.parts import Part
from commitlog.core.partition.snapshot import digest_of
from consumers.partition.files.folders import encode_sealed


class SavedPart(NamedTuple):
    """How a head names a part."""

    entry: tuple[int, str, int]
    """Its counter, the SHA-256 that names its file, and its size in bytes."""
    hint: tuple[str, int] | None
    """The SHA-256 and the size of its hint's file, if it has one."""


class NamedPiece(NamedTuple):
    """How a head names the parts of a piece, as of its change."""

    changed_at: int
    parts: dict[str, SavedPart]


@dataclass(frozen=True, slots=True)
class PreparedCheckpoint:
    """A checkpoint, or a part ahead of it, as bytes that nothing changes any more."""

    term: int
    parts: Mapping[str, SavedPart]
    files: Mapping[str, bytes]
    """Those that are to be put."""
    head: Mapping[str, Any] = field(default_factory=dict)
    """What it says beside its parts. Empty: it is a part ahead."""
    named: Mapping[Hashable, NamedPiece] = field(default_factory=dict)
    """By their keys: the pieces of which the state consists."""

    @property
    def owes(self) -> bool:
        """Whether tables lacked files."""
        return "owed" in self.head

    def encoded_head(self) -> bytes:
        """Return the head; with thousands of tables it has megabytes."""
        parts = {name: part.entry for name, part in self.parts.items()}
        hints = {name: part.hint for name, part in self.parts.items() if part.hint is not None}
        digests = {name: bytes.fromhex(digest) for name, (_, digest, _) in parts.items()}
        named = {"parts": parts, "hints": hints}
        return encode_sealed({**self.head, **named, "state_digest": digest_of(digests).hex()})


def encoded(part: Part, files: dict[str, bytes]) -> SavedPart:
    """Add a part's files; return how a head names the part."""
    counter, data, digest, hint = part.saved()
    name = digest.hex()
    files[f"{name}.part"] = data
    if hint is not None:
        files[f"{name}.hint"] = hint
    named = None if hint is None else (sha256_of(hint), len(hint))
    return SavedPart((counter, name, len(data)), named)
