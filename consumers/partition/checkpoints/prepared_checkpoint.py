"""A checkpoint as bytes that nothing changes any more, on its way to the disk."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from commitlog.adapters.storage import sha256_of
from commitlog.core.log.parts import Part
from commitlog.core.partition.snapshot import digest_of
from consumers.partition.checkpoints.packed_parts import is_packed
from consumers.partition.files.folders import encode_sealed

PackedFiles = Mapping[str, tuple[str, int]]
"""By the hash of a packed part: the hash and the size of its file, which has its hint, too."""


class SavedPart(NamedTuple):
    """How a head names a part."""

    entry: tuple[int, str, int]
    """Its counter, the SHA-256 that names its file, and its size in bytes."""
    hint: tuple[str, int] | None
    """The SHA-256 and the size of its hint, if it has one."""


class NamedPiece(NamedTuple):
    """How a head names the parts of a piece, as of its change."""

    changed_at: int
    parts: dict[str, SavedPart]


class Files(NamedTuple):
    """What is to be put of a checkpoint, beside its head."""

    whole: dict[str, bytes]
    """Files by name."""
    to_pack: dict[str, list[bytes]]
    """Parts by their hash, each with its hint: who writes them packs them into one file before."""

    @property
    def size(self) -> int:
        """How many bytes they are before they are packed."""
        return sum(map(len, chain(self.whole.values(), *self.to_pack.values())))


@dataclass(frozen=True, slots=True)
class PreparedCheckpoint:
    """A checkpoint, or a part ahead of it, as bytes that nothing changes any more."""

    term: int
    parts: Mapping[str, SavedPart]
    files: Files
    """Those that are to be put."""
    head: Mapping[str, Any] = field(default_factory=dict)
    """What it says beside its parts. Empty: it is a part ahead."""
    named: Mapping[Hashable, NamedPiece] = field(default_factory=dict)
    """By their keys: the pieces of which the state consists."""

    @property
    def owes(self) -> bool:
        """Whether tables lacked files."""
        return "owed" in self.head

    def of_its_parts(self, packed: PackedFiles) -> dict[str, tuple[str, int]]:
        """Return the files of those packed parts that are of this checkpoint."""
        digests = {part.entry[1] for part in self.parts.values()}
        return {digest: packed[digest] for digest in digests & packed.keys()}

    def names(self, packed: PackedFiles) -> set[str]:
        """Return the names of the files of which it consists, beside its head."""
        found: set[str] = set()
        for (_, digest, _), hint in self.parts.values():
            found.add(f"{packed[digest][0] if digest in packed else digest}.part")
            if hint is not None and digest not in packed:
                found.add(f"{digest}.hint")
        return found

    def encoded_head(self, packed: PackedFiles) -> bytes:
        """Return the head; with thousands of tables it has megabytes."""
        digests = {name: bytes.fromhex(part.entry[1]) for name, part in self.parts.items()}
        whole = {n: part for n, part in self.parts.items() if part.entry[1] not in packed}
        named: dict[str, Any] = {
            "parts": {name: part.entry for name, part in whole.items()},
            "hints": {name: part.hint for name, part in whole.items() if part.hint is not None},
        }
        # Apart: older programs find what `parts` names, and the newer protocol in it.
        if found := {
            name: (part.entry, part.hint, packed[part.entry[1]])
            for name, part in self.parts.items()
            if name not in whole
        }:
            named["packed"] = found
        return encode_sealed({**self.head, **named, "state_digest": digest_of(digests).hex()})


def encoded(name: str, part: Part, protocol: int, files: Files) -> SavedPart:
    """Add a part's files; return how a head names the part."""
    counter, data, digest, hint, _ = part.saved()
    known_as = digest.hex()
    pieces = [data] if hint is None else [data, hint]
    if is_packed(name, protocol, sum(map(len, pieces))):
        files.to_pack[known_as] = pieces
    else:
        files.whole[f"{known_as}.part"] = data
        if hint is not None:
            files.whole[f"{known_as}.hint"] = hint
    named = None if hint is None else (sha256_of(hint), len(hint))
    return SavedPart((counter, known_as, len(data)), named)
