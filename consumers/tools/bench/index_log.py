"""A table's log, made up: appends mostly, now and then a delete, a compaction, a refused attempt.

The records are what a leader would have written, so an index does all that it does for a real log;
except that no leader decided it. The same numbers give the same log.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import replace

from commitlog.codecs import avro
from commitlog.core.log.chain import first_hash
from commitlog.core.log.replica import Decided
from commitlog.core.manifest.manifest_state import ManifestDelta
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFragment, DeletionFile
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.operations import CreateTable, LanceCommit, Operation, Summary
from commitlog.model.records import (
    Code,
    Conflict,
    Genesis,
    LogRecord,
    OperationResult,
    Outcome,
    ProtocolVersion,
    Recording,
    Status,
    Submitted,
    Transaction,
)

TABLE = ("bench", "t")
ROWS = 100
FILE_BYTES = 3_210
WRITERS = 8
START_MS = 1_700_000_000_000
STEP_MS = 10
DELETE_EVERY = 25
REFUSE_EVERY = 40
FRAGMENTS_MAX = 1_000
"""So many become one: a million of them would not fit a manifest."""
NODE = "localhost:1"


class TableLog:
    """The decided transactions of one partition with one table, in order, as many as asked for."""

    def __init__(self, genesis: Genesis, protocol: ProtocolVersion) -> None:
        """Begin with the two records that every partition begins with."""
        self.version = 0
        self.sequence = 0
        self._protocol = protocol
        self.head = first_hash(genesis)
        self._incarnation = _uuid("table")
        self._next_fragment = 0
        self._standing: list[int] = []
        self._last = ""

    def decided(self, count: int) -> list[Decided]:
        """Return the next `count` transactions with their outcomes; nothing is encoded."""
        return [self._next() for _ in range(count)]

    def sealed(self, count: int) -> Iterator[tuple[LogRecord, Outcome, bytes]]:
        """Yield the next transactions with their outcomes, and these as records of a chain."""
        for _ in range(count):
            one = self._next()
            record, outcome = one.submitted.record, one.outcome
            if isinstance(record, Transaction):
                record = replace(record, payload_hash=avro.payload_hash(record))
                outcome = replace(outcome, payload_hash=record.payload_hash)
            outcome, data = avro.seal_outcome(outcome, previous_hash=self.head, epoch=1, node=NODE)
            self.head = outcome.hash
            yield record, outcome, data

    def _next(self) -> Decided:
        self.sequence += 1
        number = self.sequence
        outcome = Outcome(
            number,
            self._protocol.transaction_id,
            number - 1,
            Status.COMMITTED,
            time_ms=START_MS + number * STEP_MS,
            epoch=1,
            node=NODE,
            hash=hashlib.sha256(str(number).encode()).digest(),
        )
        record: LogRecord = self._protocol
        if number > 1:
            record, outcome = self._decide(number, outcome)
        submitted = Submitted(0, number - 1, outcome.time_ms, record)
        return Decided(submitted, outcome, number + 1)  # after Genesis and LeaderStarted

    def _decide(self, number: int, outcome: Outcome) -> tuple[Transaction, Outcome]:
        identifier = _uuid(f"transaction {number}")
        outcome = replace(outcome, transaction_id=identifier)
        operation, result = self._operation(number, identifier)
        record = Transaction(
            identifier,
            (operation,),
            principal=f"writer-{number % WRITERS}",
            submitted_at_ms=outcome.time_ms - 3,
            payload_hash=outcome.hash,
        )
        if number % REFUSE_EVERY == 0 and self._last:
            return record, replace(
                outcome,
                status=Status.RETRYABLE,
                code=Code.CONFLICT,
                message="rows of fragment 1 were deleted by another transaction",
                conflict=Conflict(
                    table=TABLE,
                    transaction_id=self._last,
                    version=self.version,
                    operation="Delete",
                    rule="delete_delete_rows_overlap",
                    fragments=(1,),
                    advice="Read the table again and redo the delete.",
                ),
            )
        self.version, self._last = result.version, identifier
        self._stand(number, operation)
        return record, replace(outcome, results=(result,))

    def _operation(self, number: int, identifier: str) -> tuple[Operation, OperationResult]:
        read = self.version
        result = OperationResult(TABLE, self._incarnation, "Append", read + 1, read_version=read)
        if not read:
            field = Field(name="id", id=0, parent_id=-1, logical_type="int64")
            fields = (field.SerializeToString(),)
            created = CreateTable(TABLE, self._incarnation, "/tables/bench/t", fields)
            return created, replace(result, operation="CreateTable", location=created.location)
        message = LanceMessage(read_version=read, uuid=identifier)
        if len(self._standing) > FRAGMENTS_MAX:
            return self._compaction(message, result)
        if number % DELETE_EVERY == 0 and self._standing:
            return self._delete(number, message, result)
        fragment = _fragment(number, 0, ROWS)
        message.append.fragments.append(fragment)
        summary = Summary(
            rows_added=ROWS,
            bytes_added=FILE_BYTES,
            fragments_added=1,
            data_files=(fragment.files[0].path,),
        )
        append = LanceCommit(TABLE, "Append", read, message.SerializeToString(), summary=summary)
        return append, replace(result, first_fragment_id=self._next_fragment)

    def _delete(
        self, number: int, message: LanceMessage, result: OperationResult
    ) -> tuple[Operation, OperationResult]:
        image = message.delete.updated_fragments.add()
        image.CopyFrom(_fragment(number, self._standing[number % len(self._standing)], ROWS))
        image.deletion_file.CopyFrom(
            DeletionFile(read_version=result.read_version, id=number, num_deleted_rows=1)
        )
        message.delete.predicate = f"id = {number}"
        summary = Summary(rows_removed=1, fragments_updated=1)
        data, read = message.SerializeToString(), result.read_version
        delete = LanceCommit(TABLE, "Delete", read, data, summary=summary)
        return delete, replace(result, operation="Delete")

    def _compaction(
        self, message: LanceMessage, result: OperationResult
    ) -> tuple[Operation, OperationResult]:
        made = _fragment(result.version, self._next_fragment, ROWS * len(self._standing))
        group = message.rewrite.groups.add()
        group.new_fragments.append(made)
        for fragment_id in self._standing:
            group.old_fragments.add(id=fragment_id)
        delta = ManifestDelta(
            version=result.version,
            timestamp_nanos=0,
            reader_feature_flags=0,
            writer_feature_flags=0,
            max_fragment_id=made.id,
            next_row_id=0,
            transaction_file=f"{message.uuid}.txn",
            removed=tuple(self._standing),
            fragments=((made.id, made.SerializeToString()),),
        ).to_bytes()
        summary = Summary(
            rows_added=made.physical_rows,
            bytes_added=FILE_BYTES,
            fragments_added=1,
            data_files=(made.files[0].path,),
        )
        data, read = message.SerializeToString(), result.read_version
        rewrite = LanceCommit(TABLE, "Rewrite", read, data, summary=summary)
        recording = Recording(hashlib.sha256(delta).digest(), len(delta), delta)
        return rewrite, replace(result, operation="Rewrite", delta=recording)

    def _stand(self, number: int, operation: Operation) -> None:
        if not isinstance(operation, LanceCommit) or operation.operation == "Delete":
            return
        if operation.operation == "Rewrite":
            self._standing.clear()
        self._standing.append(self._next_fragment)
        self._next_fragment += 1


def _fragment(number: int, fragment_id: int, rows: int) -> DataFragment:
    fragment = DataFragment(id=fragment_id, physical_rows=rows)
    fragment.files.add(
        path=f"{_uuid(f'file {number}')}.lance",
        fields=[0, 1, 2, 3],
        column_indices=[0, 1, 2, 3],
        file_major_version=2,
        file_size_bytes=FILE_BYTES,
    )
    return fragment


def _uuid(name: str) -> str:
    return str(uuid.UUID(bytes=hashlib.md5(name.encode(), usedforsecurity=False).digest()))
