"""Events: a decided transaction on its way from the log to files, index and writers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.tables.branch_names import FOLDER
from commitlog.core.tables.lance_tables import VersionRanges
from commitlog.errors import CommitLogError
from commitlog.model.operations import DeregisterTable, DropTable, target
from commitlog.model.records import Outcome, Status, Submitted, Transaction
from commitlog.model.table import TableId


@dataclass(slots=True)
class Event:
    """A transaction whose outcome Kafka holds, with the changes that follow from both."""

    submitted: Submitted
    outcome: Outcome
    record: bytes
    """The outcome as it stands in the topic."""
    changes: tuple[Change, ...]
    offset: int = -1
    """In the outcomes topic; -1 until it is acknowledged."""
    unwritten: int = 0
    """How many of its changes have no file yet (the materializer's count)."""
    read_at: float = 0.0
    decided_at: float = 0.0
    """When this process read it, decided it, and heard that Kafka has it, by the loop's clock; 0 if
    another process decided it."""
    acknowledged_at: float = 0.0
    began_at: float | None = None
    """When its writer submitted it, by the loop's clock; None: unknown, or another process read
    it."""
    counted_as: Any = None
    """Where the meters count it for its principal and its tables, once they do."""

    @property
    def awaits_files(self) -> bool:
        """Whether it names versions whose files come after the outcome, as Iceberg's don't.

        An answer to a duplicate names the versions of the first commit. Other changes of a table
        name none: who drops, renames or holds one whose store is away doesn't wait for it. But who
        deregisters a table continues from its files, and Lance itself lists branches by theirs.
        """
        if self.outcome.status is not Status.COMMITTED:
            return False
        if self.outcome.answers is not None:
            ends = any(result.operation in _ENDS for result in self.outcome.results)
            return ends or bool(versions_of(self.outcome))
        for change in self.changes:  # noqa: SIM110 - a generator's frames cost more than this
            if change.delta is not None or change.deleted or leaves_files(change):
                return True
        return False


def leaves_files(change: Change) -> bool:
    """Return True if a table's end is to be seen in its files, or leaves them to somebody else."""
    if change.kind is ChangeKind.DEREGISTERED:
        return change.iceberg is None
    return change.kind is ChangeKind.DROPPED and FOLDER in change.location


_ENDS = frozenset({DeregisterTable.__name__, DropTable.__name__})
Version = tuple[str, int]
"""An incarnation and a version of it."""


def by_record(sequence: int, time_ms: int, principal: str) -> str:
    """Return by whom, when and by which record something was done: ` by NAME on …, by record N`."""
    when = datetime.fromtimestamp(time_ms / 1000, UTC)
    by = f" by {principal}" if principal else ""
    return f"{by} on {when:%Y-%m-%d at %H:%M:%S} UTC, by record {sequence}"


def in_words(ranges: VersionRanges) -> str:
    """Return ranges of versions in words."""
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in ranges)


def versions_of(outcome: Outcome) -> tuple[Version, ...]:
    """Return the versions that an outcome names and that have files of their own."""
    if outcome.status is not Status.COMMITTED:
        return ()
    return tuple(
        (result.incarnation, result.version)
        for result in outcome.results
        # An Iceberg table's metadata file was written before the outcome.
        if result.incarnation and result.version and not result.metadata_location
    )


def tables_of(record: Transaction) -> dict[TableId, None]:
    """Return the tables that a record is about; tags and places are the log's, and have none."""
    return dict.fromkeys(filter(None, map(target, record.operations)))


class Filing(NamedTuple):
    """How many changes of one table got their files."""

    incarnation: str
    changes: int


@dataclass(slots=True)
class Filed:
    """What the materializer has done since it reported last."""

    events: list[Event]
    """Whose files are all there now."""
    versions: list[Version]
    """The newest version of each table that got one."""
    written_sequence: int
    """Up to this outcome, everything has its files."""
    failing: tuple[str, ...] = ()
    """Tables whose files cannot be written at present."""
    strangers: tuple[tuple[TableId, int, str], ...] = ()
    """Versions written around the log that were in the way, and where they were moved."""
    filings: tuple[Filing, ...] = ()


@dataclass(slots=True)
class Read:
    """Records of the transactions topic, in order."""

    records: list[Submitted]


@dataclass(slots=True)
class RecordSent:
    """A writer sent a record through the socket, to be appended for it."""

    transaction_id: str
    """As the writer gave it; the record repeats it."""
    record: bytes
    session: str
    """The session that gets the outcome unasked, if any."""
    refuse: Callable[[CommitLogError, bool | None], None]
    """Tells the writer why it wasn't appended, and whether it surely wasn't (False) or may have
    been (None)."""


@dataclass(slots=True)
class RecordLanded:
    """Kafka acknowledged a record that a writer sent, or failed to."""

    key: bytes
    offset: int
    append_time_ms: int
    error: Exception | None


@dataclass(slots=True)
class Delivered:
    """Kafka acknowledged an outcome, or failed to."""

    sequence: int
    offset: int
    error: Exception | None


@dataclass(slots=True)
class EndSeen:
    """There was no record to read, and the outcomes topic ended here."""

    offset: int
    transactions_position: int
    """How far the transactions topic was read, offsets without a record included."""


@dataclass(slots=True)
class Ended:
    """A thread that the term needs ended, or the term is to end."""

    error: BaseException
