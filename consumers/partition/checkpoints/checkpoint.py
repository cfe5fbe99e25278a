"""A committer's state on disk: acknowledged outcomes only, with the identity of their log.

    ROOT/checkpoints/<partition>/head.json          what belongs together, replaced atomically
    ROOT/checkpoints/<partition>/owing.json         the same of a newer one that owes files, if any
    ROOT/checkpoints/<partition>/<sha256>.part      one table's state, or the rest; never changed;
                                                    with a hint that it may have, if it is packed
    ROOT/checkpoints/<partition>/<sha256>.hint      what spares reading all of a part at once

A checkpoint rewrites only the parts that changed, so its cost follows what happened since the last
one; what gets full on the way, or is left alone, is written before, some parts at a time. Who owns
the state makes bytes of it, a tenth of a millisecond for a table that changed; another thread makes
the head, which names the parts of all tables, and puts it all on the disk, where thousands of files
take a minute. It is a convenience: deleting it means reading the log from its beginning. Whatever
in it doesn't fit the log it is opened with is refused by name, never repaired by guessing.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from commitlog.adapters.storage import sha256_of
from commitlog.core.log.chain import Chain
from commitlog.core.log.parts import Part, Saved
from commitlog.core.log.replica import Replica
from commitlog.core.partition.machine import Machine
from commitlog.core.partition.snapshot import MACHINE, Piece
from commitlog.errors import CorruptLog, Unavailable
from commitlog.model.limits import IDS_PACKED_SINCE
from commitlog.model.records import Genesis
from commitlog.ports import LogIdentity
from consumers.partition.checkpoints.chain_json import chain_from_json, chain_to_json
from consumers.partition.checkpoints.checkpoint_heads import (
    FORMATS,
    HEAD,
    OWING,
    body_of,
    files_of,
    folder_of,
    newest_head,
    read_head,
    unusable,
)
from consumers.partition.checkpoints.packed_parts import is_packed, pack, unpacking
from consumers.partition.checkpoints.prepared_checkpoint import (
    Files,
    NamedPiece,
    PreparedCheckpoint,
    SavedPart,
    encoded,
)
from consumers.partition.files.folders import SEAL, DiskFolder, Folder, encode_sealed
from consumers.partition.files.owed import Owed, owed_from_json, owed_to_json
from consumers.runtime.places import another_log

AHEAD_OUTCOMES = 250
"""After so many, parts may be full that were not, and a table may be left alone."""
AHEAD_PARTS, AHEAD_BYTES = 20, 32 * 1024
"""How much is looked at, and made bytes of, at once: a few milliseconds."""
LAST_WRITE_SECONDS = 60.0
"""How long a term waits for the end of what the last one is writing."""


Place = tuple[int, int, int, tuple[int, ...], int, tuple[Owed, ...]]
"""How far both topics were taken: epoch, sequence, and the positions in them; and what is owed."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A machine at a position of both topics."""

    machine: Machine
    chain: Chain
    transactions_position: int
    decided_beyond: tuple[int, ...]
    outcomes_position: int
    outcome_offset: int
    owed: tuple[Owed, ...] = ()
    """Tables with versions that had no files."""

    @classmethod
    def of(cls, machine: Machine, replica: Replica, owed: tuple[Owed, ...] = ()) -> Checkpoint:
        """Take the present state; nothing may be in flight."""
        position, beyond = replica.resume_point()
        return cls(
            machine,
            replica.chain,
            position,
            tuple(beyond),
            replica.outcomes_position,
            replica.outcome_offset,
            owed,
        )

    @property
    def place(self) -> Place:
        """Where it was taken: two of one place, in one term, have the same state."""
        chain, beyond = self.chain, self.decided_beyond
        position = self.transactions_position
        return chain.epoch, chain.sequence, position, beyond, self.outcomes_position, self.owed

    def replica(self) -> Replica:
        """Return a replica that continues from here."""
        return Replica(
            self.chain,
            transactions_position=self.transactions_position,
            outcomes_position=self.outcomes_position,
            outcome_offset=self.outcome_offset,
            decided_beyond=self.decided_beyond,
        )


class Checkpoints:
    """The checkpoints of one partition in a folder.

    One thread calls all but `write`, which may run on another one.
    """

    def __init__(
        self,
        root: Path,
        identity: LogIdentity,
        genesis: Genesis,
        *,
        folder: Folder | None = None,
    ) -> None:
        """Keep them below `root`, for this log and no other."""
        self._folder: Folder = folder or DiskFolder(folder_of(root, genesis.partition))
        self._genesis = genesis
        self._identity = {
            **asdict(identity),
            "log_id": genesis.log_id,
            "partition": genesis.partition,
        }
        self._writing = threading.Lock()
        self._packed: dict[str, tuple[str, int]] = {}
        """By a packed part's hash: hash and size of its file. Who writes or loads knows them."""
        self._term = 0
        """Counts how often it was loaded: what was prepared before that is not written any more."""
        self._looked_at: tuple[tuple[str, bytes] | None, Checkpoint] | None = None
        self._forget()

    def _forget(self) -> None:
        self._saved: dict[str, SavedPart] = {}
        self._named: Mapping[Hashable, NamedPiece] = {}
        self._ahead: set[str] = set()
        """What was written ahead since the last one was saved."""
        self._ahead_to = 0
        """Nothing more of this outcome and those before is written ahead."""
        self._settled: Iterator[tuple[str, Part]] | None = None
        """What is still to be looked at of what changed up to there."""

    def load(self, only: str = "") -> Checkpoint | None:
        """Return the newest checkpoint, or None if there is none; of its state, maybe one part.

        Raises WrongLog if it belongs to another log, CorruptLog if its bytes are damaged, and
        Unavailable if the last term is still writing one.
        """
        if not self._writing.acquire(timeout=LAST_WRITE_SECONDS):
            raise Unavailable(
                f"the last checkpoint is still being written to {self._folder}, where the disk "
                "may hang"
            )
        try:
            self._term += 1
            looked_at, self._looked_at = self._looked_at, None
            if looked_at is not None and looked_at[0] == self._head():
                return looked_at[1]
            # What was written ahead may tell of outcomes that never came into the log.
            self._forget()
            self._packed = {}
            while (head := self._head()) is not None:
                try:
                    return self._load(head, only)
                except CorruptLog:
                    if self._head() == head:
                        raise
                    # Its writer, another process, has put the next one, and removed parts.
            return None
        finally:
            self._writing.release()

    def look(self) -> Checkpoint | None:
        """Load a checkpoint, which the next `load` returns if it is the newest by then, too."""
        head = self._head()
        found = self.load()
        self._looked_at = (head, found) if found is not None else None
        return found

    def _head(self) -> tuple[str, bytes] | None:
        return newest_head(self._folder)

    def _load(self, named: tuple[str, bytes], only: str) -> Checkpoint:
        head = body_of(self._folder, named)
        self._check_identity(head["identity"])
        hints, packed = head.get("hints", {}), head.get("packed", {})
        saved = {
            name: SavedPart(tuple(entry), tuple(hints[name]) if name in hints else None)
            for name, entry in head["parts"].items()
        }
        for name, (entry, hint, file) in packed.items():
            saved[name] = SavedPart(tuple(entry), tuple(hint) if hint is not None else None)
            packed[name] = tuple(file)
        parts = {
            name: self._part(name, part, packed.get(name))
            for name, part in saved.items()
            if not only or name == only
        }
        machine = Machine.from_parts(self._genesis, parts)
        if not only and machine.digest().hex() != head["state_digest"]:
            raise self._corrupt("the state's digest differs from the recorded one")
        self._saved = saved
        self._packed = {saved[name].entry[1]: file for name, file in packed.items()}
        self._ahead_to = machine.sequence
        return Checkpoint(
            machine=machine,
            chain=chain_from_json(head["chain"], self._genesis),
            transactions_position=head["transactions_position"],
            decided_beyond=tuple(head["decided_beyond"]),
            outcomes_position=head["outcomes_position"],
            outcome_offset=head["outcome_offset"],
            owed=tuple(map(owed_from_json, head.get("owed", ()))),
        )

    def take_over(self, head: dict[str, Any]) -> None:
        """Put the head of a copy of this log's checkpoint, whose files are here already."""
        kept = {name: value for name, value in head.items() if name != SEAL}
        kept["identity"] = self._identity
        self._folder.replace(HEAD, encode_sealed(kept))

    def prepare_ahead(self, machine: Machine) -> PreparedCheckpoint | None:
        """Return parts that get nothing new, for a checkpoint to come, some at each call.

        Who prepares a checkpoint makes everybody wait, for what thousands of commits have changed;
        so most of it is prepared before, each part once.
        """
        if self._settled is None:
            until = machine.sequence - AHEAD_OUTCOMES
            if until < self._ahead_to + AHEAD_OUTCOMES:
                return None
            self._settled = machine.settled_parts(self._ahead_to, until)
            self._ahead_to = until
        files = Files({}, {})
        parts: dict[str, SavedPart] = {}
        protocol = machine.rules.protocol
        for looked_at, (name, part) in enumerate(self._settled, 1):
            if name not in self._ahead and not self._is_saved(name, part):
                self._ahead.add(name)
                parts[name] = encoded(name, part, protocol, files)
            if looked_at >= AHEAD_PARTS or files.size >= AHEAD_BYTES:
                break
        else:
            self._settled = None
        if not parts:
            return None
        return PreparedCheckpoint(term=self._term, parts=parts, files=files)

    def _is_saved(self, name: str, part: Part) -> bool:
        saved = self._saved.get(name)
        return saved is not None and part.is_as(saved.entry[0], bytes.fromhex(saved.entry[1]))

    def prepare(self, checkpoint: Checkpoint) -> PreparedCheckpoint:
        """Return what is to be written: what changed, and how it is all named."""
        files, protocol = Files({}, {}), checkpoint.machine.rules.protocol
        pieces: dict[Hashable, NamedPiece] = {}
        for piece in checkpoint.machine.pieces():
            named = self._named.get(piece.key)
            # The machine's own part tells of more than its outcomes (what was dropped).
            if named is None or named.changed_at != piece.changed_at or piece.key == MACHINE:
                named = self._name(piece, protocol, files)
            pieces[piece.key] = named
        parts = {name: part for named in pieces.values() for name, part in named.parts.items()}
        head = {
            "format": FORMATS[OWING if checkpoint.owed else HEAD],
            "identity": self._identity,
            "chain": chain_to_json(checkpoint.chain),
            "transactions_position": checkpoint.transactions_position,
            "decided_beyond": list(checkpoint.decided_beyond),
            "outcomes_position": checkpoint.outcomes_position,
            "outcome_offset": checkpoint.outcome_offset,
        }
        if checkpoint.owed:
            head["owed"] = [owed_to_json(one) for one in checkpoint.owed]
        return PreparedCheckpoint(
            term=self._term, parts=parts, files=files, head=head, named=pieces
        )

    def _name(self, piece: Piece, protocol: int, files: Files) -> NamedPiece:
        """Return how a head names a piece's parts; add the files that aren't there yet."""
        named = NamedPiece(piece.changed_at, {})
        for name, part in piece.parts():
            is_there = name != MACHINE and self._is_saved(name, part)
            saved = self._saved[name] if is_there else encoded(name, part, protocol, files)
            named.parts[name] = saved
        return named

    def write(self, prepared: PreparedCheckpoint) -> None:
        """Put what was prepared on the disk; nothing of a term that is over."""
        with self._writing:
            if prepared.term != self._term:
                return
            self._folder.replace_all({**prepared.files.whole, **self._pack(prepared.files)})
            if not prepared.head:
                return
            keep, names = prepared.names(self._packed), self._folder.names()
            if not keep.issubset(names):
                # Somebody removed what was saved before: a head that names it would be damaged.
                gone = f"files of it are gone from {self._folder}; the next checkpoint is written"
                raise FileNotFoundError(errno.ENOENT, f"{gone} whole")
            name = OWING if prepared.owes else HEAD
            self._folder.replace(name, prepared.encoded_head(self._packed))
            self._packed = prepared.of_its_parts(self._packed)
            keep.add(name)
            if prepared.owes:
                keep |= {HEAD, *files_of(read_head(self._folder, HEAD))}
            for name in names:
                if name not in keep:
                    self._folder.remove(name)

    def _pack(self, files: Files) -> dict[str, bytes]:
        """Return the files of parts that are to be packed; note their names."""
        packed: dict[str, bytes] = {}
        for digest, pieces in files.to_pack.items():
            content = pack(pieces)
            name = sha256_of(content)
            packed[f"{name}.part"] = content
            self._packed[digest] = name, len(content)
        return packed

    def written(self, prepared: PreparedCheckpoint) -> None:
        """Note that what was prepared is on the disk."""
        if prepared.term != self._term:
            return
        if prepared.head:
            self._saved, self._ahead = {}, set()
            self._named = prepared.named
        self._saved.update(prepared.parts)

    def failed(self, error: OSError) -> None:
        """Note that what was prepared couldn't be written."""
        if error.errno == errno.ENOENT:
            self._forget()

    def save(self, checkpoint: Checkpoint) -> None:
        """Prepare a checkpoint and write it."""
        prepared = self.prepare(checkpoint)
        try:
            self.write(prepared)
        except OSError as error:
            self.failed(error)
            raise
        self.written(prepared)

    def _part(self, name: str, part: SavedPart, file: tuple[str, int] | None) -> Saved:
        """Return a part that a head names so, packed in a file or not; ids stay packed."""
        (counter, digest, size), hint = part
        if file is not None:
            path = f"{file[0]}.part"
            content = self._read(path, *file)
        else:
            path = f"{digest}.part"
            data = self._read(path, digest, size)
            known = self._read(f"{digest}.hint", *hint) if hint is not None else None
            if known is None or not is_packed(name, IDS_PACKED_SINCE, size + len(known)):
                return Saved(counter, data, bytes.fromhex(digest), known)
            content = pack([data, known])
        wanted = [(digest, size), *([hint] if hint else [])]
        again = unpacking(path, content, wanted, self._corrupt)
        return Saved(counter, b"", bytes.fromhex(digest), unpack=again)

    def _read(self, name: str, digest: str, size: int) -> bytes:
        try:
            data = self._folder.read(name)
        except FileNotFoundError as error:
            raise self._corrupt(f"{name} is missing") from error
        if len(data) != size or sha256_of(data) != digest:
            raise self._corrupt(f"{name} is damaged")
        return data

    def _check_identity(self, found: Mapping[str, Any]) -> None:
        wrong = another_log(f"the checkpoint in {self._folder}", found, self._identity)
        if wrong is not None:
            raise wrong

    def _corrupt(self, what: str) -> CorruptLog:
        newest = self._head()
        return unusable(self._folder, what, newest[0] if newest else HEAD)
