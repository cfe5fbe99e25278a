"""What an archive holds and what proves it: one file per partition, replaced as a whole.

A segment goes from one position of the chain to a later one. Its proof is the chain's hash at both
ends, which its outcomes must link, the number and digest of its records, and its files' own
sha256. The digest is over every byte of every record: keys, values, offsets and times.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from commitlog.errors import CorruptLog
from commitlog.model.records import Genesis
from commitlog.ports import LogIdentity, RawRecord
from consumers.partition.files.folders import DiskFolder, break_seal, sealed
from consumers.runtime.locks import exclusive
from consumers.runtime.places import another_log
from consumers.tools.from_json import from_json

FORMAT = 1
PROOF = "proof.json"
_HEAD = struct.Struct("<qqii")


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One Parquet file of a segment."""

    name: str
    rows: int
    bytes: int
    sha256: str
    first_offset: int
    """Of its first record; -1 if it has none."""
    last_offset: int
    digest: str
    """Of the records in it, whatever file format holds them."""


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """Where a segment ends: enough to continue from there."""

    sequence: int = 0
    hash: str = ""
    epoch: int = 0
    leader: str = ""
    """The LeaderStarted record of the term, in base64; empty before the first."""
    outcomes_offset: int = 0
    transactions_offset: int = 0
    """The first transaction that isn't decided, or the next one to be read."""
    decided_beyond: tuple[int, ...] = ()
    outcome_offset: int = -1
    """Of the last outcome."""


@dataclass(frozen=True, slots=True)
class DecidedSegment:
    """Decided records from one position to another."""

    first_sequence: int
    start_hash: str
    outcomes: ArchivedFile
    transactions: ArchivedFile
    end: SegmentEnd
    given_up: bool = False
    """Whether its transactions were named for removal from the topic."""

    @property
    def name(self) -> str:
        """The sequences that it holds."""
        return f"{self.first_sequence}-{self.end.sequence}"

    @property
    def is_rewritten(self) -> bool:
        """Whether rows were taken out of its file of transactions."""
        return self.transactions.name.split(".")[2].isdigit()


@dataclass(frozen=True, slots=True)
class Archive:
    """One partition's archive."""

    folder: Path
    identity: Mapping[str, str]
    segments: tuple[DecidedSegment, ...] = field(default=())

    @property
    def end(self) -> SegmentEnd:
        """Where it ends."""
        return self.segments[-1].end if self.segments else SegmentEnd()

    @classmethod
    def open(cls, folder: Path, identity: LogIdentity, genesis: Genesis) -> Archive:
        """Read the proof in a folder's part for a partition; an empty one if there is none.

        Raises WrongLog if it is another log's, CorruptLog if it is damaged.
        """
        known = _identity(identity, genesis)
        found = cls.as_written(folder, genesis.partition)
        if found is None:
            return cls(folder / str(genesis.partition), known)
        wrong = another_log(f"the archive {found.folder}", found.identity, known)
        if wrong is not None:
            raise wrong
        return replace(found, identity=known)

    @classmethod
    def as_written(cls, folder: Path, partition: int) -> Archive | None:
        """Read the proof of a partition, whichever log it is of; CorruptLog if it is damaged."""
        path = folder / str(partition)
        try:
            body = json.loads(DiskFolder(path).read(PROOF))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise _damaged(path, f"it is not JSON: {error}") from error
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise _damaged(path, "its format is unknown; upgrade this program if it is newer")
        if not break_seal(body):
            raise _damaged(path, "it doesn't have the hash that it carries")
        segments = tuple(from_json(DecidedSegment, one) for one in body["segments"])
        return cls(path, body["identity"], segments)

    def of_log(self, identity: LogIdentity, genesis: Genesis) -> Archive:
        """Return it as that of a log whose topics were made again, saved."""
        return replace(self, identity=_identity(identity, genesis))._saved(self.segments)

    def with_segment(self, segment: DecidedSegment) -> Archive:
        """Return the archive with one more segment, saved."""
        return self._saved((*self.segments, segment))

    def with_changed(self, segment: DecidedSegment, changed: DecidedSegment) -> Archive:
        """Return the archive in which a segment is another, saved."""
        return self._saved(tuple(changed if one is segment else one for one in self.segments))

    def _saved(self, segments: tuple[DecidedSegment, ...]) -> Archive:
        body: dict[str, Any] = {
            "format": FORMAT,
            "identity": dict(self.identity),
            "segments": [asdict(segment) for segment in segments],
        }
        # As it comes back: JSON knows no tuples.
        body = sealed(json.loads(json.dumps(body)))
        DiskFolder(self.folder).replace(PROOF, json.dumps(body, indent=1).encode())
        return replace(self, segments=segments)


def _identity(identity: LogIdentity, genesis: Genesis) -> dict[str, str]:
    known = {**asdict(identity), "log_id": genesis.log_id, "partition": genesis.partition}
    return {name: str(value) for name, value in known.items()}


def digest_of(records: Iterable[RawRecord]) -> str:
    """Return the sha256 over records, in their order, every byte of them counted."""
    whole = hashlib.sha256()
    for record in records:
        key, value = record.key, record.value
        lengths = (-1 if key is None else len(key), -1 if value is None else len(value))
        whole.update(_HEAD.pack(record.offset, record.append_time_ms, *lengths))
        whole.update((key or b"") + (value or b""))
    return whole.hexdigest()


def _damaged(path: Path, what: str) -> CorruptLog:
    return CorruptLog(f"the archive's proof {path / PROOF} cannot be used: {what}")


def alone(folder: Path) -> AbstractContextManager[None]:
    """Keep other runs off an archive, from other machines too where its file system has locks.

    Two that wrote the same proof would lose segments: one would name files that the other removed.
    Raises Unavailable while another run changes it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    return exclusive(
        # Beside the folder: a backup copies all that is in it.
        folder.with_name(f"{folder.name}.lock"),
        busy=f"another `commitlog archive` or `erase` changes {folder}: wait for its end, then run"
        " this again",
        unlocked="let one run at a time change the archive",
    )
