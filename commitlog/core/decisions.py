"""The machine's inputs and outputs: wants, findings, decisions, changes.

A `Decision` is carried out in this order: write `files` and `recordings`, append `outcome`, apply
it; no client gets an answer before Kafka's acknowledgement. Names of files follow from the
transaction, so deciding again after a crash writes the same bytes to the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, NamedTuple

from pyroaring import BitMap

from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.manifests import ListHeader, SnapshotNumbers
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState
from commitlog.model.operations import Properties
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code, Conflict, FailedRequirement, Observation, Outcome, Status
from commitlog.model.table import Policy, TableId
from commitlog.model.values import made_fast


@dataclass(frozen=True, slots=True)
class VectorWanted:
    """A deletion file's rows."""

    location: str
    path: str


@made_fast
@dataclass(frozen=True, slots=True)
class FileWanted:
    """Whether a file exists, and how large it is."""

    location: str
    path: str


@dataclass(frozen=True, slots=True)
class ManifestWanted:
    """A manifest, decoded."""

    location: str
    path: str
    bytes_max: int = 0
    """Of a larger file, only the size is read; 0: no limit but the leader's own."""


@dataclass(frozen=True, slots=True)
class BytesWanted:
    """A file's bytes, as they are."""

    location: str
    path: str
    bytes_max: int = 0
    """For a larger file, only the size is read; 0: no limit."""
    is_awaited: bool = False  # Somebody is about to write it, so a leader looks again for a while.


@dataclass(frozen=True, slots=True)
class BuildWanted:
    """A manifest that only pylance can build."""

    index: int
    """The number of the operation that needs it."""
    table: TableId
    incarnation: str
    location: str
    version: int
    """The version to be made."""
    message: bytes
    """The `lance.table.Transaction` as rebased; its read_version is the version before."""
    schema_metadata: tuple[tuple[str, bytes], ...] | None = None
    target: str = ""
    """Where a clone of the table's version before goes; empty: it isn't a clone."""


@dataclass(frozen=True, slots=True)
class PlaceWanted:
    """Whether the leader's policy allows a table's files in another place."""

    location: str
    """The table's."""
    path: str
    """The place as the record names it, which may be unclear."""


@dataclass(frozen=True, slots=True)
class RootWanted:
    """Whether the files recorded below a place are where a named root would put them."""

    location: str
    """The place."""
    path: str
    """The root's name; the place itself if no root is to apply."""


@dataclass(frozen=True, slots=True)
class ListDeltaWanted:
    """What a snapshot's manifest list changes in the one that its client began from."""

    location: str
    path: str
    base: str
    """The list that it began from; empty: there is none, or it isn't known."""
    snapshot_id: int
    is_append: bool
    """Whether it removes no file, so that `base` matters only if it merged manifests."""


class Layer(NamedTuple):
    """What one snapshot changes in a manifest list."""

    delta: bytes
    """A `ListDelta`."""
    header: ListHeader
    believed: SnapshotNumbers


@dataclass(frozen=True, slots=True)
class ListsWanted:
    """The manifest lists of snapshots that are put over another head."""

    location: str
    head: str
    """The head's list."""
    paths: tuple[str, ...]
    """Where the new lists go, one for each layer."""
    layers: tuple[Layer, ...]
    is_strict: bool
    """Whether the head's list may have nothing over `base` but new data files."""
    base: str

    @property
    def path(self) -> str:
        """The last of the new lists."""
        return self.paths[-1]


@dataclass(frozen=True, slots=True)
class FilteredWanted:
    """A manifest with only the files that its own snapshot adds."""

    location: str
    path: str
    """Where it goes."""
    source: str


Wanted = (
    VectorWanted
    | FileWanted
    | ManifestWanted
    | BytesWanted
    | PlaceWanted
    | RootWanted
    | BuildWanted
    | ListDeltaWanted
    | ListsWanted
    | FilteredWanted
)


@made_fast
@dataclass(frozen=True, slots=True)
class Found:
    """The result of an observation."""

    observation: Observation
    vector: BitMap | None = None
    data: bytes | None = None
    state: ManifestState | None = None
    """The decoded manifest, for ManifestWanted and BuildWanted."""
    error: str | Phrase = ""
    transaction: bytes | None = None
    """The transaction found in the manifest; None: not looked for, or there is none."""
    files: tuple[bytes, ...] = ()
    """The files for ListsWanted and FilteredWanted; empty if only the outcome is known."""


Observed = Mapping[Wanted, Found]


@made_fast
@dataclass(frozen=True, slots=True)
class Need:
    """Decide again when these are observed as well."""

    wanted: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True)
class FileToWrite:
    """A file to be written before the outcome."""

    location: str
    path: str
    data: bytes
    digest: bytes = b""
    """SHA-256 of the bytes; made from them if it isn't given."""
    vector: BitMap | None = field(default=None, compare=False)
    """The rows that a deletion file names, to save decoding it."""

    def __post_init__(self) -> None:
        """Make the digest."""
        if not self.digest:
            object.__setattr__(self, "digest", sha256(self.data).digest())


INTERNAL = "commitlog."
"""How names in a version's metadata begin that only our own writers use."""


class Noted(NamedTuple):
    """A client's e-tag and metadata of a version: kept, and returned on request."""

    e_tag: str
    metadata: Properties


def noted(e_tag: str, metadata: Properties) -> Noted | None:
    """Return what is to be kept, None if the client gave nothing."""
    said = tuple((name, value) for name, value in metadata if not name.startswith(INTERNAL))
    return Noted(e_tag, said) if said or e_tag else None


class ChangeKind(StrEnum):
    """What became of a table."""

    CREATED = "created"
    VERSION = "version"
    REGISTERED = "registered"
    DECLARED = "declared"
    RENAMED = "renamed"
    DROPPED = "dropped"
    DEREGISTERED = "deregistered"
    PROPERTIES = "properties"
    VERSIONS_DELETED = "versions-deleted"
    ICEBERG = "iceberg"
    """An Iceberg table was made or changed; its metadata file was written before the outcome."""

    __hash__ = str.__hash__  # Enum's own is Python's


ENDS = frozenset({ChangeKind.DROPPED, ChangeKind.DEREGISTERED})
"""How tables leave the log."""


@made_fast
@dataclass(frozen=True, slots=True)
class Change:
    """What one committed operation did to one table: derived from the log, never logged."""

    table: TableId
    incarnation: str
    kind: ChangeKind
    location: str
    policy: Policy
    version: int = 0
    delta: ManifestDelta | None = None
    message: bytes = b""
    """The Lance transaction of the version, its read_version as finally built on."""
    staged_path: str = ""
    """A staged manifest that the version replaces."""
    iceberg: IcebergTable | None = None
    """An Iceberg table as this change leaves or finds it; None for a Lance table."""
    noted: Noted | None = None
    """What a client said about the version that it offered."""
    deleted: tuple[tuple[int, int], ...] = ()
    """Ranges of versions that were deleted, both ends included."""


@made_fast
@dataclass(frozen=True, slots=True)
class Decision:
    """An outcome, what must be written before it, and what follows from it."""

    outcome: Outcome
    files: tuple[FileToWrite, ...] = ()
    recordings: tuple[bytes, ...] = ()
    """Recorded bytes too large for the outcome, each to be written under its sha256."""
    changes: tuple[Change, ...] = ()


class Refused(Exception):
    """A transaction can't commit: how, why, and what to do next. Never leaves the core."""

    def __init__(
        self, status: Status, code: Code, phrase: Phrase, conflict: Conflict | None = None
    ) -> None:
        super().__init__(phrase.name)
        self.status = status
        self.code = code
        self.phrase = phrase
        self.conflict = conflict
        self.operation = -1
        """The number of the operation that it is about; -1: the only one, or the whole record."""
        self.observed: tuple[Observation, ...] = ()
        """The observations before the refusal."""
        self.failed_requirements: tuple[FailedRequirement, ...] = ()
        self.is_of_all = False
        """Whether it is about the whole record, not about one of its operations."""


class Wants(Exception):
    """A decision can't continue without these. Never leaves the core."""

    def __init__(self, wanted: tuple[Wanted, ...]) -> None:
        super().__init__(f"{len(wanted)} things are wanted")
        self.wanted = wanted


def rejected(code: Code, reason: str, **arguments: Any) -> Refused:
    """Return the refusal of a request that is wrong as it stands."""
    return Refused(Status.REJECTED, code, Phrase(reason, arguments))
