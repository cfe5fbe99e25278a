"""A checkpoint as bytes that nothing changes any more, on its way to the disk."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from commitlog.adapters.storage import sha256_of
from commitlog.core.log.parts import Part
from commitlog.core.partition.snapshot import digest_of
from consumers.partition.files.folders import encode_sealed

PartEntry = tuple[int, str, int]
"""A saved part: its counter, the SHA-256 that names its file, and its size in bytes."""


class NamedPiece(NamedTuple):
    """How a head names the parts of a piece, as of its change."""

    changed_at: int
    parts: list[tuple[str, PartEntry]]
    hints: list[tuple[str, tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class PreparedCheckpoint:
    """A checkpoint, or a part ahead of it, as bytes that nothing changes any more."""

    term: int
    parts: Mapping[str, PartEntry]
    hints: Mapping[str, tuple[str, int]]
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
        digests = {name: bytes.fromhex(digest) for name, (_, digest, _) in self.parts.items()}
        named = {"parts": self.parts, "hints": self.hints}
        return encode_sealed({**self.head, **named, "state_digest": digest_of(digests).hex()})


def encoded(part: Part, files: dict[str, bytes]) -> tuple[PartEntry, tuple[str, int] | None]:
    """Add a part's files; return how a head names the part, and its hint if it has one."""
    counter, data, digest, hint = part.saved()
    name = digest.hex()
    files[f"{name}.part"] = data
    if hint is None:
        return (counter, name, len(data)), None
    files[f"{name}.hint"] = hint
    return (counter, name, len(data)), (sha256_of(hint), len(hint))
