"""What the log holds: transactions, outcomes, and the records that frame them.

One Transaction is one record, however many tables it touches. One Outcome answers one record of
the transactions topic. All are frozen; the Avro schemas in `schemas/` say the same on the wire
and carry the documentation of each field.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from textwrap import shorten
from typing import Self

from commitlog.errors import (
    CommitConflict,
    IncompatibleConflict,
    RetryableConflict,
    TransactionRejected,
    TransactionSuperseded,
)
from commitlog.model.operations import CreateTable, Operation
from commitlog.model.reasons import Reason
from commitlog.model.table import TableId, format_table_id
from commitlog.model.values import made_fast


class Status(StrEnum):
    """How a transaction ended."""

    COMMITTED = "committed"
    RETRYABLE = "retryable"
    INCOMPATIBLE = "incompatible"
    REJECTED = "rejected"
    SUPERSEDED = "superseded"

    __hash__ = str.__hash__  # Enum's own is Python's


class Code(StrEnum):
    """Why a transaction was not committed; empty for a commit."""

    NONE = ""
    CONFLICT = "CONFLICT"
    READ_VERSION_PRUNED = "READ_VERSION_PRUNED"
    EXPECTATION_FAILED = "EXPECTATION_FAILED"
    MALFORMED_RECORD = "MALFORMED_RECORD"
    INVALID_OPERATION = "INVALID_OPERATION"
    UNSUPPORTED_OPERATION = "UNSUPPORTED_OPERATION"
    ID_REUSED = "ID_REUSED"
    TOO_OLD = "TOO_OLD"
    DOMAIN_MISMATCH = "DOMAIN_MISMATCH"
    NO_SUCH_TABLE = "NO_SUCH_TABLE"
    NO_SUCH_NAMESPACE = "NO_SUCH_NAMESPACE"
    TABLE_EXISTS = "TABLE_EXISTS"
    TABLE_REPLACED = "TABLE_REPLACED"
    LOCATION_TAKEN = "LOCATION_TAKEN"
    LOCATION_NOT_ALLOWED = "LOCATION_NOT_ALLOWED"
    FUTURE_READ_VERSION = "FUTURE_READ_VERSION"
    WRONG_SCHEMA = "WRONG_SCHEMA"
    UNKNOWN_FRAGMENT = "UNKNOWN_FRAGMENT"
    DUPLICATE_FRAGMENT = "DUPLICATE_FRAGMENT"
    MISSING_FILE = "MISSING_FILE"
    BUILD_REFUSED = "BUILD_REFUSED"
    NOT_LATEST = "NOT_LATEST"
    SPLIT_TRANSACTION = "SPLIT_TRANSACTION"
    ROWS_BACKLOG = "ROWS_BACKLOG"
    ROWS_RANGE = "ROWS_RANGE"
    ROWS_REFUSED = "ROWS_REFUSED"

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True)
class Application:
    """A stream's own numbering: one (id, sequence) commits at most once for a table."""

    application_id: str
    sequence: int
    run: str = ""
    """What distinguishes two streams that share an id (Spark: the query's id)."""


@dataclass(frozen=True, slots=True)
class TableVersionIs:
    """Expect `table` at exactly `version` when the transaction is decided."""

    table: TableId
    version: int


@dataclass(frozen=True, slots=True)
class TableAbsent:
    """Expect that no table of this name exists."""

    table: TableId


@dataclass(frozen=True, slots=True)
class KeyAbsent:
    """Expect that this key (its exact hash) was not inserted after `since_version`."""

    table: TableId
    key_hash: bytes
    since_version: int


@dataclass(frozen=True, slots=True)
class PredicateUnchanged:
    """Expect that the rows of `predicate` read at `version` (their digest) are still the same.

    Decided conservatively: any change of the table's rows since `version` fails it.
    """

    table: TableId
    predicate: str
    digest: bytes
    version: int


Expect = TableVersionIs | TableAbsent | KeyAbsent | PredicateUnchanged


@made_fast
@dataclass(frozen=True, slots=True)
class Transaction:
    """A request: operations that commit together or not at all."""

    transaction_id: str
    operations: tuple[Operation, ...]
    attempt: int = 0
    principal: str = ""
    submitted_at_ms: int = 0
    application: Application | None = None
    properties: tuple[tuple[str, str], ...] = ()
    expects: tuple[Expect, ...] = ()
    payload_hash: bytes = b""
    """sha256 of the encoded content: all but id, attempt, principal and time. Set by the codec."""
    payloads: tuple[bytes, ...] = field(default=(), repr=False)
    """Rows that its operations name by hash: no part of the content, which has the hashes."""
    unread: Malformed | None = field(default=None, compare=False, repr=False)
    """How programs that know no rows read the record."""


@dataclass(frozen=True, slots=True)
class ProtocolVersion:
    """From this record on, these rules hold."""

    transaction_id: str
    protocol: int
    id_horizon_ms: int
    history_versions: int
    operations_max: int
    lance_release: str = ""
    """The release of Lance that manifests name as their writer; empty: as before."""
    unread: Malformed | None = field(default=None, compare=False)
    """How programs that know no release read the record."""

    @property
    def payload_hash(self) -> bytes:
        """The hash of its content in its outcome, whichever program decides it."""
        return self.unread.payload_hash if self.unread is not None else b""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A record that this program cannot decode; it is decided as rejected, never skipped."""

    transaction_id: str
    reason: str
    payload_hash: bytes
    problem: str = "record_broken"
    """The name of the problem; `reason` has the words of this program and its libraries."""


LogRecord = Transaction | ProtocolVersion | Malformed


@made_fast
@dataclass(frozen=True, slots=True)
class Submitted:
    """A record of the transactions topic with its metadata from Kafka."""

    partition: int
    offset: int
    append_time_ms: int
    record: LogRecord
    key: bytes = field(default=b"", compare=False)
    """The record's key, which may name the session that waits for the outcome."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What it asks for; nothing, if it is no transaction."""
        return self.record.operations if isinstance(self.record, Transaction) else ()

    @property
    def principal(self) -> str:
        """Who submitted it; empty, if it doesn't say."""
        return self.record.principal if isinstance(self.record, Transaction) else ""


@dataclass(frozen=True, slots=True)
class FileWritten:
    """A file that the leader wrote for this outcome, before it."""

    path: str
    """Relative to the table's location."""
    size: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Recording:
    """Bytes from pylance or a client that a replay needs: inline, or by content address."""

    sha256: bytes
    size: int
    inline: bytes | None = None
    """None: the bytes are the object `recordings/<sha256 in hex>` under the log's root."""


@dataclass(frozen=True, slots=True)
class FragmentImage:
    """A fragment after a rebase; `image` is None when all its rows are deleted."""

    fragment_id: int
    image: bytes | None


@made_fast
@dataclass(frozen=True, slots=True)
class OperationResult:
    """The result of one operation of a committed transaction."""

    table: TableId
    incarnation: str
    operation: str
    version: int = 0
    """The version that the operation made; 0 if it made none (a drop)."""
    read_version: int = 0
    """The version that it finally built on: the one it read, or the head it was rebased to."""
    first_fragment_id: int = -1
    first_row_id: int = -1
    rebased_over: int = 0
    """How many versions were committed between its read version and itself."""
    rebased: bool = False
    """Whether its content changed too (deletion vectors merged), not only its position."""
    files: tuple[FileWritten, ...] = ()
    images: tuple[FragmentImage, ...] = ()
    delta: Recording | None = None
    """The manifest delta that pylance or a client built; None if the leader built it."""
    location: str = ""
    """The table's location, where the operation made or ended one."""
    metadata_location: str = ""
    """An Iceberg table's metadata file as the transaction left it."""
    snapshot_id: int = -1
    """An Iceberg table's current snapshot; -1 if it has none."""


@dataclass(frozen=True, slots=True)
class FailedRequirement:
    """A requirement on an Iceberg table that didn't hold."""

    table: TableId
    requirement: str
    """As the client sent it, in JSON."""
    actual: str
    """What the table has instead, in JSON."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Which commit won, on what, and what to do next."""

    table: TableId
    transaction_id: str
    version: int
    operation: str
    rule: str
    """The grid's rule, e.g. `delete_delete_rows_overlap`."""
    fragments: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()
    advice: str = ""
    """What to do next; from protocol 4 on not in the record, but rendered for readers."""


@made_fast
@dataclass(frozen=True, slots=True)
class Observation:
    """Bytes outside the log that a decision looked at."""

    path: str
    size: int
    """-1: it was not there."""
    sha256: bytes = b""

    @classmethod
    def of(cls, path: str, data: bytes) -> Observation:
        """Return what says that a file has these bytes."""
        return cls(path, len(data), hashlib.sha256(data).digest())


@made_fast
@dataclass(frozen=True, slots=True, repr=False)
class Outcome:
    """The answer to one record of the transactions topic. The commit is this record."""

    sequence: int
    transaction_id: str
    transaction_offset: int
    status: Status
    attempt: int = 0
    code: Code = Code.NONE
    message: str = ""
    """Why, for people; of an outcome with a `reason` not of the record, but said of that."""
    answers: int | None = None
    """The sequence of the earlier outcome that this one repeats for a duplicate; it has no
    effect of its own."""
    time_ms: int = 0
    payload_hash: bytes = b""
    results: tuple[OperationResult, ...] = ()
    conflict: Conflict | None = None
    observed: tuple[Observation, ...] = ()
    failed_requirements: tuple[FailedRequirement, ...] = ()
    """Every requirement that didn't hold, in the order of the request."""
    reason: Reason | None = None
    """Why it was refused, under protocol 4."""
    epoch: int = 0
    node: str = ""
    """`host:port` of the leader's socket."""
    previous_hash: bytes = b""
    hash: bytes = b""

    def __repr__(self) -> str:
        """Return the result in one line."""
        facts = [f"sequence={self.sequence}"] if self.sequence else []
        facts += [f"{table}@{version}" for table, version in list(self.versions().items())[:5]]
        if self.code:
            facts.append(str(self.code))
        if self.message:
            facts.append(repr(shorten(self.message, 120, placeholder=" …")))
        return f"<Outcome {self.status} {self.transaction_id} {' '.join(facts)}>"

    def _repr_html_(self) -> str:
        """Return a small table, for notebooks."""
        facts = {
            "status": self.status,
            "transaction": self.transaction_id,
            "sequence": self.sequence or "",
            "versions": ", ".join(f"{name} {made}" for name, made in self.versions().items()),
            "code": self.code,
            "message": self.message,
            "next": self.conflict.advice if self.conflict else "",
        }
        rows = (
            f"<tr><th>{name}</th><td>{escape(str(fact))}</td></tr>"
            for name, fact in facts.items()
            if fact != ""
        )
        return f"<table>{''.join(rows)}</table>"

    @property
    def version(self) -> int:
        """The version made by the first operation that made one, else 0."""
        return next((result.version for result in self.results if result.version), 0)

    def versions(self) -> dict[str, int]:
        """Return the newest version made per table name."""
        return {format_table_id(r.table): r.version for r in self.results if r.version}

    def raise_for_conflict(self) -> Self:
        """Return self if committed, else raise the error that says what to do next."""
        if self.status is Status.COMMITTED:
            return self
        kind: type[CommitConflict] = {
            Status.RETRYABLE: RetryableConflict,
            Status.INCOMPATIBLE: IncompatibleConflict,
            Status.SUPERSEDED: TransactionSuperseded,
        }.get(self.status, TransactionRejected)
        advice = f" {self.conflict.advice}" if self.conflict and self.conflict.advice else ""
        code = f" [{self.code}]" if self.code else ""
        raise kind(
            f"transaction {self.transaction_id}: {self.status}{code}: {self.message}{advice}", self
        )


def found_standing(operation: Operation | None, result: OperationResult | None) -> bool:
    """Return True if a creation with `exist_ok` made nothing: its result is a standing table's."""
    if result is None or not isinstance(operation, CreateTable):
        return False
    return result.incarnation != operation.incarnation


def is_commit(outcome: Outcome) -> bool:
    """Return True if an outcome has an effect of its own: it commits, and repeats no other."""
    return outcome.status is Status.COMMITTED and outcome.answers is None


@dataclass(frozen=True, slots=True)
class Genesis:
    """The first record of each partition of the outcomes topic: what this log is."""

    log: str
    log_id: str
    cluster_id: str
    partition: int
    domains: tuple[tuple[str, int], ...] = ()
    tables_root: str = ""
    created_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class LeaderStarted:
    """A term begins, if its epoch is the highest valid one plus 1."""

    epoch: int
    node: str
    leader_id: str
    """A fresh UUID per attempt to lead, so that a leader knows its own record."""
    sequence: int
    previous_hash: bytes
    state_digest: bytes
    version: str = ""
    started_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class RetainedSegment:
    """A part of the archive whose transactions are given up."""

    first_sequence: int
    last_sequence: int
    outcomes_digest: bytes
    """sha256 over every byte of its records, offsets and times included."""
    transactions_digest: bytes


@dataclass(frozen=True, slots=True)
class Retained:
    """A decided prefix is in an archive; the tombstones of its transactions follow.

    Valid if the prefix stands before it. It has no sequence and changes nothing that is decided.
    """

    sequence: int
    hash: bytes
    transactions_offset: int
    """All transactions before it are in the archive."""
    segments: tuple[RetainedSegment, ...]
    version: str
    """Of the program that archived."""
    retained_at_ms: int


OutcomeRecord = Genesis | LeaderStarted | Outcome | Retained


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record of the outcomes topic that this program cannot decode."""

    reason: str


@made_fast
@dataclass(frozen=True, slots=True)
class Answered:
    """A record of the outcomes topic with its metadata from Kafka."""

    partition: int
    offset: int
    append_time_ms: int
    record: OutcomeRecord | Unreadable
    raw: bytes = field(default=b"", repr=False)
