"""A log as a busy shop has it, and its index: what the page is looked at with."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from commitlog.core.log.replica import Decided
from commitlog.model.operations import CreateTable, LanceCommit, Summary
from commitlog.model.records import (
    Application,
    Code,
    Conflict,
    LeaderStarted,
    OperationResult,
    Outcome,
    Status,
    Submitted,
    TableVersionIs,
    Transaction,
)
from commitlog.model.table import TableId, format_table_id
from consumers.views.version_index import IndexPosition, Term, VersionIndex
from consumers.views.version_index.rows import no_recordings

TABLES: tuple[tuple[TableId, int], ...] = (
    (("nyc", "flights"), 60),
    (("shop", "orders"), 16),
    (("shop", "customers"), 8),
    (("shop", "stock"), 6),
    (("nyc", "weather"), 4),
    (("ml", "features"), 3),
    (("ml", "embeddings"), 2),
    (("audit",), 1),
)
WRITERS: tuple[tuple[str, int], ...] = (
    ("spark/flights-stream", 40),
    ("desk-1", 9),
    ("desk-2", 9),
    ("desk-3", 8),
    ("desk-4", 6),
    ("etl/nightly", 12),
    ("backfill", 6),
    ("compaction", 6),
    ("ana@notebook", 3),
    ("", 1),
)
RULES = (
    ("Delete", "delete_delete_rows_overlap", "both delete rows of fragments {}"),
    ("Update", "update_update_rows_overlap", "both change rows of fragments {}"),
    ("Rewrite", "rewrite_touches_fragment", "a compaction replaced fragments {}"),
)
BATCH = 5000


class BusyLog:
    """Decided transactions of writers with habits, in their order; the same for the same seed."""

    def __init__(
        self, writers: Sequence[tuple[str, int]] = WRITERS, seed: int = 0, more_tables: int = 0
    ) -> None:
        """Begin with no table; so many more than the usual ones are made first, and stay empty."""
        self._more_tables = more_tables
        self._random = random.Random(seed)
        self._writers = [name for name, _ in writers]
        self._shares = [share for _, share in writers]
        self._versions: dict[TableId, int] = {}
        self._lives: dict[TableId, str] = {}
        self._last: dict[TableId, str] = {}
        self._committed: list[tuple[Transaction, int]] = []
        self._now = 0

    def decide(self, transactions: int) -> Iterator[Decided]:
        """Yield so many decided transactions, with quiet and busy hours."""
        for sequence in range(1, transactions + 1):
            is_quiet = hashlib.blake2b(str(sequence // 700).encode()).digest()[0] < 60
            self._now += int(self._random.expovariate(1 / (900 if is_quiet else 120))) + 1
            yield self._one(sequence)

    def _one(self, sequence: int) -> Decided:
        if sequence <= self._more_tables:
            made = self._transaction((f"team_{sequence % 97:02}", f"table_{sequence:05}"))
            results = tuple(self._result(made, one) for one in made.operations)  # type: ignore[arg-type]
            return self._decided(made, replace(self._outcome(sequence, made), results=results))
        dice = self._random.random()
        if dice < 0.02 and self._committed:
            first, answers = self._random.choice(self._committed)
            again = self._outcome(sequence, first)
            return self._decided(first, replace(again, answers=answers))
        transaction = self._transaction()
        outcome = self._outcome(sequence, transaction)
        operations = cast("tuple[CreateTable | LanceCommit, ...]", transaction.operations)
        first_table = operations[0].table
        lost_to = self._last.get(first_table) if isinstance(operations[0], LanceCommit) else None
        if dice < 0.12 and lost_to is not None:
            return self._decided(transaction, self._refused(outcome, first_table, lost_to))
        results = tuple(self._result(transaction, one) for one in operations)
        self._committed = [*self._committed[-200:], (transaction, sequence)]
        return self._decided(transaction, replace(outcome, results=results))

    def _decided(self, transaction: Transaction, outcome: Outcome) -> Decided:
        offset = outcome.transaction_offset
        return Decided(Submitted(0, offset, self._now, transaction), outcome, offset + 2)

    def _outcome(self, sequence: int, transaction: Transaction) -> Outcome:
        return Outcome(
            sequence,
            transaction.transaction_id,
            sequence - 1,
            Status.COMMITTED,
            time_ms=self._now,
            payload_hash=transaction.payload_hash,
            epoch=1,
            node="10.0.0.7:7001",
            hash=hashlib.sha256(str(sequence).encode()).digest(),
        )

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _transaction(self, of: TableId | None = None) -> Transaction:
        names = [name for name, _ in TABLES]
        chosen = self._random.choices(names, [share for _, share in TABLES], k=2)
        tables = dict.fromkeys(chosen if self._random.random() < 0.08 else chosen[:1])
        tables = {of: None} if of else tables
        identifier = self._uuid()
        stream = self._random.random() < 0.1
        return Transaction(
            identifier,
            tuple(self._operation(table) for table in tables),
            principal=self._random.choices(self._writers, self._shares)[0],
            submitted_at_ms=self._now - self._random.randrange(3, 12),
            application=Application("flights", self._random.randrange(10**6)) if stream else None,
            properties=(("job", "it's"),) if stream else (),
            expects=(TableVersionIs(chosen[0], self._versions.get(chosen[0], 1)),)
            if self._random.random() < 0.05
            else (),
            payload_hash=hashlib.sha256(identifier.encode()).digest(),
        )

    def _operation(self, table: TableId) -> CreateTable | LanceCommit:
        if table not in self._versions:
            place = f"/tables/{format_table_id(table)}"
            return CreateTable(table, self._uuid(), place, (), primary_key=("id",))
        kind = self._random.choices(
            ("Append", "Update", "Delete", "Rewrite", "Merge", "CreateIndex"), (60, 18, 12, 4, 4, 2)
        )[0]
        rows = self._random.randrange(1, 5000)
        adds, removes = kind in ("Append", "Update", "Merge"), kind in ("Update", "Delete")
        summary = Summary(
            rows_added=rows if adds else 0,
            rows_removed=rows // 3 if removes else 0,
            bytes_added=rows * 90 if adds else 0,
            fragments_added=int(adds),
            fragments_updated=2 if removes else 0,
            fragments_removed=6 if kind == "Rewrite" else 0,
            data_files=(f"{self._uuid()}.lance",) if adds else (),
        )
        late = self._random.choice((0, 0, 0, 0, 1, 1, 2, 5))
        read = max(1, self._versions[table] - late)
        return LanceCommit(table, kind, read, b"message", summary=summary)

    def _result(
        self, transaction: Transaction, operation: CreateTable | LanceCommit
    ) -> OperationResult:
        table = operation.table
        self._last[table] = transaction.transaction_id
        if isinstance(operation, CreateTable):
            self._versions[table] = 1
            self._lives[table] = operation.incarnation
            return OperationResult(
                table, operation.incarnation, "CreateTable", 1, location=operation.location
            )
        over = self._versions[table] - operation.read_version
        self._versions[table] += 1
        return OperationResult(
            table,
            self._lives[table],
            operation.operation,
            self._versions[table],
            read_version=self._versions[table] - 1,
            rebased_over=over,
            rebased=over > 0 and operation.operation == "Delete",
        )

    def _refused(self, outcome: Outcome, table: TableId, winner: str) -> Outcome:
        status, code = self._random.choices(
            (
                (Status.RETRYABLE, Code.CONFLICT),
                (Status.INCOMPATIBLE, Code.CONFLICT),
                (Status.REJECTED, Code.WRONG_SCHEMA),
            ),
            (80, 12, 8),
        )[0]
        refused = replace(outcome, status=status, code=code)
        if status is Status.REJECTED:
            return replace(refused, message="'amount' is float64, the table has decimal(10, 2)")
        operation, rule, words = self._random.choice(RULES)
        fragments = sorted({min(int(self._random.expovariate(0.15)), 60) for _ in range(3)})
        version = self._versions[table]
        conflict = Conflict(
            table,
            winner,
            version,
            operation,
            rule,
            fragments=tuple(fragments),
            advice="Read the new version and redo the operation.",
        )
        message = f"{format_table_id(table)} moved to version {version}: " + words.format(
            ", ".join(map(str, fragments))
        )
        return replace(refused, message=message, conflict=conflict)


def busy_log(
    transactions: int,
    *,
    end_ms: int = 1_760_100_000_000,
    writers: Sequence[tuple[str, int]] = WRITERS,
    more_tables: int = 0,
) -> tuple[list[Decided], list[Term]]:
    """Return what was decided, the last of it at `end_ms`, and the leader's term."""
    decided = list(BusyLog(writers, more_tables=more_tables).decide(transactions))
    shift = end_ms - decided[-1].outcome.time_ms
    leader = LeaderStarted(1, "10.0.0.7:7001", "leader-1", 0, b"hash", b"digest", "0.1.0", 1)
    return [_later(one, shift) for one in decided], [Term(leader, 1)]


def _later(decided: Decided, shift_ms: int) -> Decided:
    submitted, outcome = decided.submitted, decided.outcome
    assert isinstance(submitted.record, Transaction)
    record = replace(submitted.record, submitted_at_ms=submitted.record.submitted_at_ms + shift_ms)
    return replace(
        decided,
        submitted=replace(submitted, record=record),
        outcome=replace(outcome, time_ms=outcome.time_ms + shift_ms),
    )


def extend_index(root: Path, decided: Sequence[Decided], terms: Sequence[Term] = ()) -> None:
    """Take decided transactions into the index under `root`, and publish it."""
    with VersionIndex(root) as index:
        index.bind({"log": "commitlog", "cluster_id": "cluster", "log_id": "log-0"})
        for start in range(0, len(decided), BATCH):
            batch = decided[start : start + BATCH]
            last = batch[-1]
            position = IndexPosition(
                0,
                last.outcome.sequence,
                last.answered_offset + 1,
                last.submitted.offset + 1,
                last_outcome_offset=last.answered_offset,
                hash=last.outcome.hash,
                epoch=last.outcome.epoch,
                end_offset=last.answered_offset + 1,
                changed_at_ms=last.outcome.time_ms,
            )
            index.apply(
                batch, position, terms=terms if start == 0 else (), recordings=no_recordings
            )
        index.settle()
        index.publish()
