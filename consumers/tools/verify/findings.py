"""What a verification finds: problems, each with where it is, and one verdict per partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from commitlog.core.decisions import Change
from commitlog.model.records import Outcome
from commitlog.model.table import format_table_id
from consumers.partition.files.events import by_record, in_words
from consumers.tools.erasure.acts import RecordedErasure, RowExpiry

EXPIRIES_KEPT = 20
PROBLEMS_MAX = 100
"""So many are told one by one; all are counted."""


class ProblemKind(StrEnum):
    """What a problem is about."""

    CHAIN = "chain"
    """The outcomes topic: a hash, an order, a record that is missing."""
    TRANSACTION = "transaction"
    """The transaction that an outcome answers is missing or isn't the one that was decided, or
    names another principal than its content does."""
    END = "end"
    """Somebody remembers more of the log, or other outcomes, than it has."""
    DECISION = "decision"
    """The machine comes to another outcome than the log has."""
    STATE = "state"
    """A leader began its term on another state than the log makes."""
    ARCHIVE = "archive"
    """A file of the archive is gone, or isn't what was written."""
    RECORDING = "recording"
    """What an outcome recorded outside itself is gone."""
    MANIFEST = "manifest"
    """A version's manifest is missing or isn't what the log says."""
    BYPASS = "bypass"
    """A version that the log doesn't know."""
    FILE = "file"
    """A data or deletion file is missing or has another size than the log says."""
    ROWS = "rows"
    """A table's rows cannot be read, are not as many as its manifest says, or aren't those that
    the log's writes come to; or the rows of a write are gone, and no record erased them."""
    INDEX = "index"
    """The version index has other rows than the log makes."""
    CHECKPOINT = "checkpoint"
    """A committer couldn't continue from its checkpoint: a file of it is missing or damaged."""


OF_THE_LOG = frozenset(
    {
        ProblemKind.CHAIN,
        ProblemKind.TRANSACTION,
        ProblemKind.END,
        ProblemKind.DECISION,
        ProblemKind.STATE,
    }
)
"""These mean that the log itself is no longer what was written; the others can be built again."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that isn't as it has to be."""

    kind: ProblemKind
    message: str
    sequence: int | None = None
    """The outcome that it is about: where the log is bad, the first bad one."""
    offset: int | None = None
    """Where it was noticed in the outcomes topic."""
    table: str = ""
    version: int | None = None
    hurts: str = ""
    """The versions that can't be read without a file that is missing."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """Versions of a table that a record deleted."""

    table: str
    versions: str
    sequence: int
    time_ms: int
    principal: str

    def __str__(self) -> str:
        recorded = by_record(self.sequence, self.time_ms, self.principal)
        return f"versions {self.versions} of {self.table} were deleted{recorded}"


@dataclass(slots=True)
class Expired:
    """What records deleted of tables' versions."""

    versions: int = 0
    records: int = 0
    newest: list[Expiry] = field(default_factory=list)

    def take(self, changes: Iterable[Change], outcome: Outcome, principal: str) -> None:
        """Take what an outcome does, and who asked for it."""
        for change in changes:
            if not change.deleted:
                continue
            self.records += 1
            self.versions += sum(last - first + 1 for first, last in change.deleted)
            expiry = Expiry(
                table=format_table_id(change.table),
                versions=in_words(change.deleted),
                sequence=outcome.sequence,
                time_ms=outcome.time_ms,
                principal=principal,
            )
            self.newest = [*self.newest, expiry][-EXPIRIES_KEPT:]


@dataclass(slots=True)
class Erased:
    """What records erased, or had expire, of the rows in the log."""

    records: int = 0
    writes: int = 0
    """Writes whose rows were taken out of the log."""
    newest: list[str] = field(default_factory=list)
    """In words: the table, when, by whom and why."""

    def take(self, act: RecordedErasure | RowExpiry, writes: int) -> None:
        """Take an act, and how many writes have lost their rows by it."""
        self.records += 1
        self.writes += writes
        self.newest = [*self.newest, str(act)][-EXPIRIES_KEPT:]


@dataclass(slots=True)
class PartitionFindings:
    """What was found in one partition."""

    partition: int
    outcomes: int = 0
    committed: int = 0
    terms: int = 0
    voids: int = 0
    undecided: int = 0
    head: str = ""
    """The hash of the last outcome that was verified, in hex: `--expect-head SEQUENCE:HASH` next
    time."""
    decided_again: int = 0
    not_decided_again: int = 0
    """Transactions that were decided on files which are gone since."""
    unattributed: int = 0
    """Transactions whose principal no hash covers: their content doesn't name it."""
    versions: int = 0
    """Manifests that were compared with the log."""
    files: int = 0
    """Data and deletion files that were looked at."""
    rows: int = 0
    """Rows that were read (with `--contents`)."""
    rows_rebuilt: int = 0
    """Rows that were compared with what the log's writes of rows come to (with `--contents`)."""
    index_rows: int = 0
    """Rows of the version index that were compared."""
    archived: int = 0
    """Outcomes whose archive was proven."""
    retained: int = 0
    """The last outcome whose transaction was given up to an archive, by the log."""
    resumed_at: int = 0
    """The sequence that an interrupted run had come to; 0: this one began at Genesis."""
    expired: Expired = field(default_factory=Expired)
    erased: Erased = field(default_factory=Erased)
    rows_expired: Erased = field(default_factory=Erased)
    problems: list[Problem] = field(default_factory=list)
    problems_count: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems_count

    @property
    def is_log_whole(self) -> bool:
        """Whether the log is; what follows from it may still be missing or changed."""
        return not any(problem.kind in OF_THE_LOG for problem in self.problems)

    @property
    def first_bad_sequence(self) -> int | None:
        """The first outcome from which on the log cannot be trusted."""
        bad = (p.sequence for p in self.problems if p.kind in OF_THE_LOG)
        return min((sequence for sequence in bad if sequence is not None), default=None)

    @property
    def problem(self) -> str:
        """What is wrong first, in words; empty if nothing is."""
        worst = sorted(self.problems, key=lambda p: p.kind not in OF_THE_LOG)
        return worst[0].message if worst else ""

    def found(self, problems: Iterable[Problem]) -> None:
        """Add problems; of the log's own all are kept, of the others the first ones."""
        for problem in problems:
            self.problems_count += 1
            if len(self.problems) < PROBLEMS_MAX or (
                problem.kind in OF_THE_LOG and self.is_log_whole
            ):
                self.problems.append(problem)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        first = {"ok": self.is_whole, "first_bad_sequence": self.first_bad_sequence}
        return {**first, **asdict(self)}
