"""A log's two topics, made up: many tables, writers, conflicts, repetitions and terms.

The records are valid for `Chain` and `Replica`; what they decide is plausible, not computed by the
machine. Deterministic for a seed, and a longer log begins with a shorter one of the same seed.
"""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from commitlog.adapters.memory_cluster import NeverMoved, Unconnected
from commitlog.core.log.chain import first_hash
from commitlog.core.log.replica import Decided, Replica
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    CreateTable,
    DropNamespace,
    DropTable,
    LanceCommit,
    Operation,
    RegisterTable,
    RenameTable,
    operation_name,
    target,
)
from commitlog.model.records import (
    Answered,
    Application,
    Code,
    Conflict,
    Genesis,
    LeaderStarted,
    Malformed,
    OperationResult,
    Outcome,
    ProtocolVersion,
    Recording,
    Status,
    Submitted,
    TableVersionIs,
    Transaction,
)
from commitlog.model.table import TableId
from commitlog.ports import LogIdentity
from tests.fakes.lance_contents import Contents, Made, lance_fields

START_MS = 1_700_000_000_000
TERM_LENGTH = 500
REPEATABLE = 1000
"""How far back a repeated request may lie."""


@dataclass
class Standing:
    """A table that stands now."""

    incarnation: str
    version: int
    last_transaction: str = ""
    contents: Contents = field(default_factory=Contents)


@dataclass(frozen=True)
class Truth:
    """A version: what is in it, and where the rows of its new fragments come from."""

    fragments: dict[int, DataFragment]
    fields: tuple[str, ...]
    indices: tuple[str, ...]
    origins: dict[int, list[int]]


@dataclass
class PartitionLog:
    """One partition's records, extended on demand."""

    partition: int = 0
    seed: int = 0
    submitted: list[Submitted] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with a Genesis."""
        self._random = random.Random(f"{self.seed}/{self.partition}")
        self.genesis = Genesis("commitlog", f"log-{self.seed}", "cluster", self.partition)
        self._tables: dict[TableId, Standing] = {}
        self._made: dict[bytes, Made] = {}
        self.truth: dict[tuple[str, int], Truth] = {}
        """What each version of each life has, as the generator knows it."""
        self._committed: list[tuple[Transaction, int]] = []
        self._requests = self._answers = 0
        self._sequence = 0
        self._epoch = 0
        self._hash = first_hash(self.genesis)
        self._append(self.genesis)

    def grow(self, transactions: int) -> None:
        """Add so many decided transactions."""
        for _ in range(transactions):
            if self._sequence % TERM_LENGTH == 0:
                self._start_term()
            self._one()

    def decided(self) -> list[Decided]:
        """Join the topics as any follower does."""
        replica = Replica()
        for submitted in self.submitted:
            replica.receive_submitted(submitted)
        for answered in self.answered:
            replica.receive_answered(answered)
        return list(replica.drain())

    def take(self) -> list[Decided]:
        """Return what was decided since the last call, and forget it: for long logs."""
        transactions = {one.offset: one for one in self.submitted}
        made = [
            Decided(transactions[one.record.transaction_offset], one.record, one.offset)
            for one in self.answered
            if isinstance(one.record, Outcome)
        ]
        self.submitted, self.answered = [], []
        self.truth.clear()
        return made

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _append(self, record: Genesis | LeaderStarted | Outcome) -> None:
        offset = self._answers
        self._answers += 1
        self.answered.append(Answered(self.partition, offset, START_MS, record))

    def _start_term(self) -> None:
        self._epoch += 1
        node = f"host:{7000 + self._epoch}"
        self._append(
            LeaderStarted(
                self._epoch, node, self._uuid(), self._sequence, self._hash, b"digest", "0.1.0", 1
            )
        )

    def _one(self) -> None:
        offset = self._requests
        self._requests += 1
        dice = self._random.random()
        when = START_MS + offset * 10
        if offset == 0:
            rules = ProtocolVersion("protocol", 1, 1, 1, 1)
            self.submitted.append(Submitted(self.partition, 0, when, rules))
            self._answer(offset, when, Outcome(0, "protocol", 0, Status.COMMITTED))
            return
        if dice < 0.01:
            broken = Malformed(f"broken-{offset}", "not Avro", b"h")
            self.submitted.append(Submitted(self.partition, offset, when, broken))
            refused = Outcome(0, broken.transaction_id, offset, Status.REJECTED, payload_hash=b"h")
            refused = replace(refused, code=Code.MALFORMED_RECORD, message="not Avro")
            self._answer(offset, when, refused)
            return
        if dice < 0.03 and self._committed:
            first, sequence = self._random.choice(self._committed)
            self.submitted.append(Submitted(self.partition, offset, when, first))
            again = Outcome(0, first.transaction_id, offset, Status.COMMITTED, answers=sequence)
            self._answer(offset, when, replace(again, payload_hash=first.payload_hash))
            return
        transaction = self._transaction(when)
        self.submitted.append(Submitted(self.partition, offset, when, transaction))
        outcome = self._refuse(offset, transaction) if dice < 0.2 else None
        self._answer(offset, when, outcome or self._commit(offset, transaction))

    def _answer(self, offset: int, when: int, outcome: Outcome) -> None:
        self._sequence += 1
        digest = hashlib.sha256(self._hash + str(self._sequence).encode()).digest()
        completed = replace(
            outcome,
            sequence=self._sequence,
            time_ms=when,
            epoch=self._epoch,
            node=f"host:{7000 + self._epoch}",
            previous_hash=self._hash,
            hash=digest,
        )
        self._hash = digest
        self._append(completed)
        record = self.submitted[-1].record
        effective = outcome.status is Status.COMMITTED and outcome.answers is None
        if isinstance(record, Transaction) and effective:
            self._committed.append((record, self._sequence))
            del self._committed[:-REPEATABLE]

    def _transaction(self, when: int) -> Transaction:
        count = 2 if self._random.random() < 0.1 else 1
        operations: list[Operation] = []
        used: set[TableId] = set()
        for _ in range(count):
            operation = self._operation()
            if target(operation) not in used:
                used.add(target(operation))
                operations.append(operation)
        application = None
        if self._random.random() < 0.1:
            application = Application("stream", self._random.randrange(1_000_000), "run")
        identifier = self._uuid()
        return Transaction(
            identifier,
            tuple(operations),
            principal=f"writer-{self._random.randrange(5)}",
            submitted_at_ms=when - 3,
            application=application,
            properties=(("job", "it's"),) if self._random.random() < 0.1 else (),
            expects=(TableVersionIs(("ns", "t0"), 3),) if self._random.random() < 0.1 else (),
            payload_hash=hashlib.sha256(identifier.encode()).digest(),
        )

    def _operation(self) -> Operation:
        dice = self._random.random()
        name = (f"ns{self.partition}", f"t{self._random.randrange(8)}")
        standing = self._tables.get(name)
        if standing is None:
            location = f"/tables/{self._uuid()}"
            if dice < 0.2:
                return RegisterTable(name, self._uuid(), location, 5, "_versions/5.manifest")
            properties = (("owner", "me"),)
            fields = tuple(one.SerializeToString() for one in lance_fields(Contents().fields))
            return CreateTable(name, self._uuid(), location, fields, properties=properties)
        if dice < 0.005:
            return DropTable(name)
        if dice < 0.01:
            other = (name[0], f"t{self._random.randrange(8, 12)}")
            return DropTable(name) if other in self._tables else RenameTable(name, other)
        if dice < 0.02:
            return AlterProperties(name, upserts=(("owner", "you"),), removals=("x",))
        if dice < 0.022:
            return CreateNamespace((f"n{self._random.randrange(9)}",), exist_ok=True)
        made = standing.contents.operation(self._random)
        made.message.uuid = self._uuid()
        read = max(1, standing.version - self._random.randrange(4))
        message = made.message.SerializeToString(deterministic=True)
        self._made[message] = made
        return LanceCommit(name, made.kind, read, message, summary=made.summary)

    def _refuse(self, offset: int, transaction: Transaction) -> Outcome | None:
        operation = transaction.operations[0]
        if not isinstance(operation, LanceCommit):
            return None
        standing = self._tables[operation.table]
        common = Outcome(
            0,
            transaction.transaction_id,
            offset,
            Status.RETRYABLE,
            code=Code.CONFLICT,
            message="lost",
            payload_hash=transaction.payload_hash,
        )
        if not standing.last_transaction:
            return replace(common, status=Status.REJECTED, code=Code.WRONG_SCHEMA)
        conflict = Conflict(
            operation.table,
            standing.last_transaction,
            standing.version,
            "Append",
            "delete_delete_rows_overlap",
            fragments=(1, 2),
            advice="Read again.",
        )
        return replace(common, conflict=conflict)

    def _commit(self, offset: int, transaction: Transaction) -> Outcome:
        results = tuple(self._effect(transaction, one) for one in transaction.operations)
        return Outcome(
            0,
            transaction.transaction_id,
            offset,
            Status.COMMITTED,
            payload_hash=transaction.payload_hash,
            results=results,
        )

    def _note(self, standing: Standing, origins: dict[int, list[int]]) -> None:
        there = standing.contents
        self.truth[standing.incarnation, standing.version] = Truth(
            dict(there.fragments), there.fields, there.indices, origins
        )

    def _effect(self, transaction: Transaction, operation: Operation) -> OperationResult:
        table, name = target(operation), operation_name(operation)
        if isinstance(operation, CreateNamespace | DropNamespace):
            return OperationResult(table, "", name)
        if isinstance(operation, CreateTable | RegisterTable):
            version = operation.version if isinstance(operation, RegisterTable) else 1
            made_now = self._tables[table] = Standing(operation.incarnation, version)
            self._note(made_now, {})
            place = operation.location
            return OperationResult(table, operation.incarnation, name, version, location=place)
        standing = self._tables[table]
        if isinstance(operation, DropTable):
            del self._tables[table]
            return OperationResult(table, standing.incarnation, name)
        if isinstance(operation, RenameTable):
            self._tables[operation.new_table] = self._tables.pop(table)
            return OperationResult(table, standing.incarnation, name)
        if isinstance(operation, AlterProperties):
            return OperationResult(table, standing.incarnation, name)
        assert isinstance(operation, LanceCommit)
        over = standing.version - operation.read_version
        standing.version += 1
        made = self._made.pop(operation.message)
        recording = None
        if made.is_recorded:
            delta = made.delta(standing.contents.fragments, standing.version)
            recording = Recording(hashlib.sha256(delta).digest(), len(delta), delta)
        standing.contents.commit(made)
        self._note(standing, made.origins)
        standing.last_transaction = transaction.transaction_id
        return OperationResult(
            table,
            standing.incarnation,
            name,
            standing.version,
            read_version=standing.version - 1,
            rebased_over=over,
            rebased=over > 0 and name == "Delete",
            first_fragment_id=made.first_id,
            delta=recording,
        )


Record = TypeVar("Record", Submitted, Answered)


class ListReader(Unconnected, Generic[Record]):
    """Reads a list that may grow."""

    def __init__(self, records: list[Record], offset: int) -> None:
        """Start at an offset."""
        self._records: list[Record] = records
        self._next = offset

    def poll(self, *, records_max: int = 500, timeout_seconds: float = 0.1) -> list[Record]:
        """Return what is there, or wait."""
        deadline = time.monotonic() + timeout_seconds
        while self._next >= len(self._records) and time.monotonic() < deadline:
            time.sleep(min(0.005, timeout_seconds))
        found = self._records[self._next : self._next + records_max]
        self._next += len(found)
        return found

    def position(self) -> int:
        """Return the next offset."""
        return self._next

    def end_offset(self, timeout_seconds: float = 10) -> int:
        """Return the end."""
        return len(self._records)

    def close(self) -> None:
        """Do nothing."""


@dataclass
class ReadOnlyLog(NeverMoved):
    """The reading half of a log over made-up partitions."""

    logs: list[PartitionLog]
    cluster_id: str = "cluster"
    name: str = "commitlog"

    def genesis(self, partition: int = 0) -> Genesis:
        """Return the first record."""
        return self.logs[partition].genesis

    def partitions(self) -> int:
        """Return their number."""
        return len(self.logs)

    def identity(self) -> LogIdentity:
        """Return fixed ids."""
        return LogIdentity(self.cluster_id, "transactions-id", "outcomes-id", self.name)

    def read_transactions(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> ListReader[Submitted]:
        """Read from an offset."""
        return ListReader(self.logs[partition].submitted, offset)

    def read_outcomes(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> ListReader[Answered]:
        """Read from an offset."""
        return ListReader(self.logs[partition].answered, offset)


def batches(decided: list[Decided], size: int) -> Iterator[list[Decided]]:
    """Cut into batches."""
    for start in range(0, len(decided), size):
        yield decided[start : start + size]
