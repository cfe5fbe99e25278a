"""Logs made up for measurements: real records in a log in memory, really decided, without a leader.

Records are encoded, hashed, decided and chained as a leader does it; only Kafka and the tables'
files are missing, so what reads such a log does all of its own work and waits for no other.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

from pyroaring import BitMap

from commitlog.adapters.log_records import encode_to_append
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.reading import read_to
from commitlog.codecs.avro import encode_leader_started, payload_hash, seal_outcome
from commitlog.core.decisions import Decision, FileWanted, Found, VectorWanted, Wanted
from commitlog.core.log.chain import first_hash
from commitlog.core.log.replica import Decided, Replica
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.partition.driving import drive
from commitlog.core.partition.machine import Machine
from commitlog.core.tables.creation import STORAGE_VERSIONS
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFragment, DeletionFile
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.operations import CreateTable, LanceCommit, Summary
from commitlog.model.records import (
    Genesis,
    LeaderStarted,
    Observation,
    Outcome,
    Submitted,
    Transaction,
)
from commitlog.model.table import Policy
from commitlog.ports import Log
from commitlog.protocol import outcomes_topic, transaction_key, transactions_topic

FILE_BYTES = 5_000
NODE = "127.0.0.1:1"
COLUMNS = 3
ROWS = 1_000
START_MS = 1_700_000_000_000
STEP_MS = 10
WRITERS = 8
DELETE_EVERY, REFUSE_EVERY = 25, 40
FRAGMENTS_MAX = 1_000
"""So many become one: a million of them would not fit a manifest."""


def append_to(table: str, number: int, *, fragments: int = 1, read_version: int = 0) -> Transaction:
    """Return an append of fragments of one file, as a writer sends it; `number` makes its id."""
    name = f"{number:032x}"
    message = LanceTransaction(uuid=str(uuid.UUID(int=number)), read_version=read_version)
    for _ in range(fragments):
        _fill(message.append.fragments.add(physical_rows=ROWS), name)
    summary = Summary(
        rows_added=ROWS * fragments,
        bytes_added=FILE_BYTES,
        fragments_added=fragments,
        data_files=(f"{name}.lance",),
    )
    return commit_of(table, "Append", message, summary)


def _fill(fragment: DataFragment, name: str) -> None:
    """Give a fragment its one file."""
    fragment.files.add(
        path=f"{name}.lance",
        fields=range(COLUMNS),
        column_indices=range(COLUMNS),
        file_major_version=2,
        file_size_bytes=FILE_BYTES,
    )


def create(table: str, *, location: str = "") -> Transaction:
    """Return the creation of a table of three columns."""
    fields = tuple(
        Field(
            name=f"c{number}", id=number, parent_id=-1, logical_type="int64", nullable=True
        ).SerializeToString()
        for number in range(COLUMNS)
    )
    operation = CreateTable(
        (table,),
        str(uuid.uuid4()),
        location or f"/tables/{table}",
        fields,
        policy=Policy.LATEST,
        data_storage_version=STORAGE_VERSIONS[0],
    )
    return Transaction(str(uuid.uuid4()), (operation,))


def configure(table: str, number: int) -> Transaction:
    """Return a change of one of a table's config keys, which leaves its fragments alone."""
    message = LanceTransaction(uuid=str(uuid.UUID(int=2**64 + number)), read_version=number)
    message.update_config.config_updates.update_entries.add(key="bench", value=str(number))
    return commit_of(table, "UpdateConfig", message)


def commit_of(
    table: str, name: str, message: LanceTransaction, summary: Summary | None = None
) -> Transaction:
    """Return a message of Lance's as a writer sends it."""
    data = message.SerializeToString(deterministic=True)
    operation = LanceCommit(
        (table,), name, message.read_version, data, summary=summary or Summary()
    )
    return Transaction(message.uuid, (operation,), principal="bench", submitted_at_ms=0)


def decide(machine: Machine, submitted: Submitted) -> Decision:
    """Decide a record; files that it names are there. Nothing changes."""
    return drive(machine, submitted, look)


def look(wanted: Wanted) -> Found:
    """Return a file as found, of the size that `append_to` gives it."""
    assert isinstance(wanted, FileWanted), wanted
    return Found(Observation(wanted.path, FILE_BYTES))


class MadeLog:
    """Writes a log as a leader with very fast storage would."""

    def __init__(self) -> None:
        """Begin a term on an empty log."""
        self.log = MemoryLog()
        self.bytes = {"transactions": 0, "outcomes": 0}
        """Of the values that `run` appended to each topic."""
        self._begin(self.log, self.log.create(tables_root="/tables"))
        for submitted in self.log.read_transactions(0).poll():
            self.decide(submitted)

    def _begin(self, log: Log, genesis: Genesis) -> None:
        """Begin the first term of an empty log."""
        self.machine, self.replica = Machine(genesis), Replica()
        for answered in read_to(log.read_outcomes(0)):
            self.replica.receive_answered(answered)
        self.lead()

    def lead(self) -> None:
        """Begin another term."""
        chain, machine = self.replica.chain, self.machine
        started = LeaderStarted(
            epoch=chain.epoch + 1,
            node=NODE,
            leader_id="leader",
            sequence=machine.sequence,
            previous_hash=chain.hash,
            state_digest=machine.digest(),
        )
        self._append_outcome(f"leader/{started.epoch}/leader", encode_leader_started(started))
        assert not chain.admit(started)

    def run(self, transaction: Transaction) -> None:
        """Append a transaction and decide it."""
        self.decide(self.append(transaction))

    def append(self, transaction: Transaction) -> Submitted:
        """Append a transaction, as the leader will read it."""
        value = encode_to_append(transaction)
        self.bytes["transactions"] += len(value)
        key = transaction_key(transaction.transaction_id)
        cluster, topic = self.log.cluster, transactions_topic(self.log.name)
        offset = cluster.append(topic, 0, key, value)
        time_ms = cluster.partition(topic, 0).records[-1].time_ms
        record = replace(transaction, payload_hash=payload_hash(transaction))
        return Submitted(0, offset, time_ms, record)

    def decide(self, submitted: Submitted) -> Outcome:
        """Decide a record in this term and append its outcome."""
        decision = decide(self.machine, submitted)
        chain = self.replica.chain
        outcome, record = seal_outcome(
            decision.outcome, previous_hash=chain.hash, epoch=chain.epoch, node=NODE
        )
        assert not chain.admit(outcome)
        self.machine.apply(submitted, outcome, changes=decision.changes)
        self._append_outcome(f"{chain.epoch}/{outcome.sequence}", record)
        return outcome

    def _append_outcome(self, key: str, value: bytes) -> None:
        self.bytes["outcomes"] += len(value)
        self.log.cluster.append(outcomes_topic(self.log.name), 0, key.encode(), value)


class TableLog:
    """The decided transactions of a log with one table, in order, as many as asked for.

    Appends mostly; now and then a delete, a compaction, an attempt that is refused.
    """

    NAME = "t"

    def __init__(self) -> None:
        """Begin with the two records that every partition begins with."""
        self.log = MemoryLog()
        genesis = self.log.create(tables_root="/tables")
        self._machine = Machine(genesis)
        self.head = first_hash(genesis)
        self._deleted: LanceTransaction | None = None

    @property
    def sequence(self) -> int:
        """The last outcome's."""
        return self._machine.sequence

    @property
    def version(self) -> int:
        """The table's newest one."""
        table = self._machine.tables.get((self.NAME,))
        return 0 if table is None else table.version

    def decided(self, count: int) -> list[Decided]:
        """Return the next `count` transactions with their outcomes."""
        return [one for one, _ in self.sealed(count)]

    def sealed(self, count: int) -> Iterator[tuple[Decided, bytes]]:
        """Yield the next transactions with their outcomes, and these as records of a chain."""
        for _ in range(count):
            number = self.sequence + 1
            submitted = self._first() if number == 1 else self._submitted(number)
            decision = drive(self._machine, submitted, self._look)
            outcome, data = seal_outcome(
                decision.outcome, previous_hash=self.head, epoch=1, node=NODE
            )
            self._machine.apply(submitted, outcome, changes=decision.changes)
            self.head = outcome.hash
            yield Decided(submitted, outcome, number + 1), data  # after Genesis and LeaderStarted

    def _look(self, wanted: Wanted) -> Found:
        """Return what is wanted as found; the last deletion's file has the first rows."""
        if not isinstance(wanted, VectorWanted):
            return look(wanted)
        assert self._deleted is not None
        [image] = self._deleted.delete.updated_fragments
        gone = BitMap(range(image.deletion_file.num_deleted_rows))
        return Found(Observation(wanted.path, FILE_BYTES), vector=gone)

    def _first(self) -> Submitted:
        [first] = self.log.read_transactions(0).poll()
        return first

    def _submitted(self, number: int) -> Submitted:
        time_ms = START_MS + number * STEP_MS
        record = replace(
            self._transaction(number),
            principal=f"writer-{number % WRITERS}",
            submitted_at_ms=time_ms - 3,
        )
        record = replace(record, payload_hash=payload_hash(record))
        return Submitted(0, number - 1, time_ms, record)

    def _transaction(self, number: int) -> Transaction:
        table = self._machine.tables.get((self.NAME,))
        if table is None or table.manifest is None:
            return create(self.NAME)
        message = LanceTransaction(uuid=str(uuid.UUID(int=number)), read_version=table.version)
        if number % REFUSE_EVERY == 0 and self._deleted is not None:
            self._deleted.uuid = message.uuid  # as it was: late by now
            return commit_of(self.NAME, "Delete", self._deleted)
        fragments = table.manifest.fragments
        if len(fragments) > FRAGMENTS_MAX:
            return self._compaction(message, table.manifest)
        if number % DELETE_EVERY == 0 and fragments:
            return self._delete(message, table.manifest, number)
        return append_to(self.NAME, number, read_version=table.version)

    def _delete(self, message: LanceTransaction, state: ManifestState, number: int) -> Transaction:
        """Return the deletion of one more row of a fragment."""
        encoded = [*state.fragments.values()][number % len(state.fragments)]
        image = message.delete.updated_fragments.add()
        image.MergeFromString(encoded)
        gone = image.deletion_file.num_deleted_rows + 1
        image.deletion_file.CopyFrom(
            DeletionFile(read_version=message.read_version, id=number, num_deleted_rows=gone)
        )
        message.delete.predicate = f"id = {number}"
        self._deleted = message
        summary = Summary(rows_removed=1, fragments_updated=1)
        return commit_of(self.NAME, "Delete", message, summary)

    def _compaction(self, message: LanceTransaction, state: ManifestState) -> Transaction:
        """Return what makes one fragment of all."""
        group = message.rewrite.groups.add()
        for encoded in state.fragments.values():
            group.old_fragments.add().MergeFromString(encoded)
        deleted = sum(one.deletion_file.num_deleted_rows for one in group.old_fragments)
        rows = sum(one.physical_rows for one in group.old_fragments) - deleted
        _fill(group.new_fragments.add(physical_rows=rows), message.uuid)
        summary = Summary(rows_added=rows, bytes_added=FILE_BYTES, fragments_added=1)
        return commit_of(self.NAME, "Rewrite", message, summary)
