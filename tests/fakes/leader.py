"""A small leader over a log in memory: it speaks the wire protocol and commits through pylance.

It decides one record after the other as pylance alone would, so it rebases nothing; what a test
wants decided otherwise it says with `decide`. Its socket can be stopped, and it can be muted.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from commitlog import wire
from commitlog.adapters.memory import MemoryLog
from commitlog.client.tables import TableInfo
from commitlog.codecs.avro import encode_leader_started, seal_outcome
from commitlog.codecs.lance_operations import to_lance_operation
from commitlog.codecs.lance_schema import schema_fields
from commitlog.codecs.manifest_file import manifest_name
from commitlog.core.log.chain import first_hash
from commitlog.errors import CommitLogError, NoSuchTable
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.operations import (
    CreateTable,
    CreateTableVersion,
    DropTable,
    LanceCommit,
    Operation,
)
from commitlog.model.records import (
    Code,
    Conflict,
    LeaderStarted,
    OperationResult,
    Outcome,
    Status,
    Submitted,
    Transaction,
)
from commitlog.model.table import TableId, parse_table_id
from consumers.partition.catalogue import no_such_table

Decide = Callable[[Submitted], Outcome | None]


@dataclass
class FakeTable:
    """A table as this leader knows it."""

    operation: CreateTable
    version: int = 1


@dataclass(eq=False)
class _Client:
    socket: socket.socket
    watches: list[wire.Watch] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, data: bytes) -> None:
        with self.lock, contextlib.suppress(OSError):
            self.socket.sendall(data)


class FakeLeader:
    """Leads partition 0 of a log in memory."""

    def __init__(self, log: MemoryLog, decide: Decide | None = None, epoch: int = 1) -> None:
        """Begin a term: append LeaderStarted, listen, decide."""
        self.log = log
        self.decide = decide
        self.epoch = epoch
        self.tables: dict[TableId, FakeTable] = {}
        self.answers: dict[str, tuple[Outcome, int, bytes]] = {}
        self.committed: list[tuple[Outcome, Transaction]] = []
        self.muted = threading.Event()
        self.paused = threading.Event()
        self.requests: list[str] = []
        self._lock = threading.RLock()
        self._clients: set[_Client] = set()
        self._closed = False
        self._writer = log.outcomes_writer(0)
        self._head = first_hash(log.genesis(0))
        self._sequence = 0
        self._offset = 0
        self.port = 0
        self._listening = self._listen()
        self._append(
            f"leader/{epoch}/x",
            encode_leader_started(LeaderStarted(epoch, self.node, "x", 0, self._head, bytes(32))),
        )
        threading.Thread(target=self._lead, daemon=True).start()

    @property
    def node(self) -> str:
        """The address of the socket."""
        return f"127.0.0.1:{self.port}"

    def stop_socket(self) -> None:
        """Refuse and drop connections; go on deciding."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            clients, self._clients = self._clients, set()
        for client in clients:
            with contextlib.suppress(OSError):
                client.socket.shutdown(socket.SHUT_RDWR)
            client.socket.close()

    def start_socket(self) -> None:
        """Listen again at the same address."""
        self._listening = self._listen()

    def close(self) -> None:
        """End."""
        self._closed = True
        with self.log.cluster.changed:
            self.log.cluster.changed.notify_all()
        self.stop_socket()

    def _listen(self) -> socket.socket:
        listening = socket.create_server(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()
        return listening

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = listening.accept()
                client = _Client(accepted)
                with self._lock:
                    self._clients.add(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: _Client) -> None:
        buffer = wire.FrameBuffer()
        with contextlib.suppress(OSError):
            while data := client.socket.recv(65536):
                for kind, body in buffer.feed(data):
                    self._handle(client, kind, body)
        with self._lock:
            self._clients.discard(client)
        client.socket.close()

    def _handle(self, client: _Client, kind: wire.FrameKind, body: bytes) -> None:
        if kind is wire.FrameKind.HELLO:
            client.send(wire.json_frame(wire.FrameKind.WELCOME, {"epoch": 1, "node": self.node}))
        elif kind is wire.FrameKind.WATCH:
            with self._lock:
                client.watches.append(wire.parse_watch(body))
                self._tell(client)
        elif kind is wire.FrameKind.REQUEST:
            request = wire.parse_json(body)
            self.requests.append(request["method"])
            if self.muted.is_set():
                return
            reply: dict[str, Any] = {"request": request["request"]}
            try:
                reply["result"] = self._answer(request["method"], request.get("params") or {})
            except CommitLogError as error:
                reply["error"] = {"type": type(error).__name__, "message": str(error)}
            client.send(wire.json_frame(wire.FrameKind.REPLY, reply))

    def _tell(self, client: _Client) -> None:
        if self.muted.is_set():
            return
        left = []
        for watch in client.watches:
            known = self.answers.get(watch.transaction_id)
            matches = known is not None and (
                known[0].attempt >= watch.attempt
                and watch.payload_hash in (b"", known[0].payload_hash)
            )
            if known is None or not matches:
                left.append(watch)
                continue
            client.send(wire.outcome_frame(True, known[1], known[2]))
        client.watches = left

    def _answer(self, method: str, params: dict[str, Any]) -> Any:
        if method in ("ping", "status"):
            return {}
        if method == "tables":
            return [self.describe(table) for table in self.tables]
        table = parse_table_id(params["table"])
        if table not in self.tables:
            raise NoSuchTable(no_such_table(table, self.tables))
        if method == "table":
            return self.describe(table)
        if method == "materialize":
            return {"path": f"_versions/{manifest_name(params['version'])}", **params}
        raise NoSuchTable(method)

    def describe(self, table: TableId) -> dict[str, Any]:
        """Describe a table as the real leader does."""
        found = self.tables[table]
        operation = found.operation
        fields: list[bytes] = list(operation.fields)
        if found.version > 1:
            schema = lance.dataset(operation.location).lance_schema
            fields = [f.SerializeToString() for f in schema_fields(schema)[0]]
        return {
            "table": list(table),
            "incarnation": operation.incarnation,
            "location": operation.location,
            "version": found.version,
            "readable_version": found.version,
            "policy": operation.policy.value,
            "primary_key": list(operation.primary_key),
            "properties": dict(operation.properties),
            "stable_row_ids": operation.stable_row_ids,
            "fields": [base64.b64encode(data).decode() for data in fields],
            "schema_metadata": {},
        }

    def _append(self, key: str, record: bytes) -> int:
        offsets: list[int] = []
        self._writer.append(key, record, lambda offset, error: offsets.append(offset))
        while not offsets:
            self._writer.poll(0.1)
        return offsets[0]

    def _lead(self) -> None:
        reader, changed = self.log.read_transactions(0), self.log.cluster.changed
        while not self._closed:
            with changed:
                changed.wait_for(lambda: self._closed or reader.position() < reader.end_offset())
            for submitted in reader.poll(timeout_seconds=0):
                while self.paused.is_set() and not self._closed:
                    threading.Event().wait(0.01)
                self._decide(submitted)

    def _decide(self, submitted: Submitted) -> None:
        outcome = self.decide(submitted) if self.decide else None
        if outcome is None:
            outcome = self._commit(submitted)
        self._sequence += 1
        record = submitted.record
        outcome = replace(
            outcome,
            sequence=self._sequence,
            transaction_id=record.transaction_id,
            transaction_offset=submitted.offset,
            attempt=getattr(record, "attempt", 0),
            payload_hash=getattr(record, "payload_hash", b""),
        )
        sealed, data = seal_outcome(
            outcome, previous_hash=self._head, epoch=self.epoch, node=self.node
        )
        self._head = sealed.hash
        offset = self._append(f"{self.epoch}/{self._sequence}", data)
        with self._lock:
            known = self.answers.get(sealed.transaction_id)
            if known is None or known[0].status is not Status.COMMITTED:
                self.answers[sealed.transaction_id] = (sealed, offset, data)
            for client in self._clients:
                self._tell(client)

    def _commit(self, submitted: Submitted) -> Outcome:
        transaction = submitted.record
        if not isinstance(transaction, Transaction):
            return blank(Status.COMMITTED)
        before = self.answers.get(transaction.transaction_id)
        if before is not None and before[0].status is Status.COMMITTED:
            if before[0].payload_hash == transaction.payload_hash:
                return replace(before[0], answers=before[0].sequence)
            return blank(Status.REJECTED, Code.ID_REUSED)
        results = []
        for operation in transaction.operations:
            result = self._apply(operation)
            if isinstance(result, Outcome):
                return result
            results.append(result)
        outcome = replace(blank(Status.COMMITTED), results=tuple(results))
        self.committed.append((outcome, transaction))
        return outcome

    def _apply(self, operation: Operation) -> OperationResult | Outcome:
        if isinstance(operation, CreateTable):
            return self._create(operation)
        assert isinstance(operation, LanceCommit | CreateTableVersion | DropTable)
        table = self.tables[operation.table]
        location = table.operation.location
        if isinstance(operation, DropTable):
            del self.tables[operation.table]
            return OperationResult(operation.table, operation.incarnation, "DropTable")
        if isinstance(operation, CreateTableVersion):
            if operation.version != table.version + 1:
                return blank(Status.RETRYABLE, Code.NOT_LATEST)
            path = f"{location}/_versions/{manifest_name(operation.version)}"
            os.rename(f"{location}/{operation.manifest_path}", path)
        else:
            message = LanceMessage.FromString(operation.message)
            try:
                lance.LanceDataset.commit(
                    location,
                    lance.Transaction(
                        operation.read_version or table.version,
                        to_lance_operation(message, operation.schema_metadata),
                        message.uuid,
                    ),
                    max_retries=1,
                )
            except OSError as error:
                conflict = Conflict(operation.table, "other", table.version, "?", "pylance")
                refused = blank(Status.RETRYABLE, Code.CONFLICT)
                return replace(refused, message=str(error)[:200], conflict=conflict)
        table.version = lance.dataset(location).version
        return OperationResult(
            operation.table, table.operation.incarnation, operation.operation, table.version
        )

    def _create(self, operation: CreateTable) -> OperationResult | Outcome:
        if operation.table in self.tables:
            if not operation.exist_ok:
                refusal = blank(Status.REJECTED, Code.TABLE_EXISTS)
                return replace(refusal, message="it exists; choose another name")
        else:
            schema = TableInfo(
                table_id=operation.table,
                incarnation="",
                location="",
                version=0,
                readable_version=0,
                policy=operation.policy,
                primary_key=(),
                properties={},
                stable_row_ids=False,
                fields=operation.fields,
            ).schema
            stable = operation.stable_row_ids
            empty = schema.empty_table()
            lance.write_dataset(empty, operation.location, enable_stable_row_ids=stable)
            self.tables[operation.table] = FakeTable(operation)
        version = self.tables[operation.table].version
        return OperationResult(operation.table, operation.incarnation, "CreateTable", version)


def blank(status: Status, code: Code = Code.NONE) -> Outcome:
    """Return an outcome that only says how it ended."""
    return Outcome(0, "", 0, status, code=code)


def memory_log(root: Path) -> MemoryLog:
    """Make a log in memory whose tables lie under a folder."""
    shutil.rmtree(root, ignore_errors=True)
    log = MemoryLog()
    log.create(tables_root=str(root))
    return log


def field_names(info: TableInfo) -> list[str]:
    """Return the names of a table's fields."""
    return [Field.FromString(data).name for data in info.fields]


SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])
