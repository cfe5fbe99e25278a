"""An Iceberg service without a log: decides in memory, keeps what was asked, and can replay it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commitlog.adapters.storage import LocalStore, local_path
from commitlog.core.iceberg.creating import register_change
from commitlog.core.iceberg.domain import IcebergRefused, IcebergResult, decide_iceberg
from commitlog.core.iceberg.iceberg_table import IcebergTable, is_compressed
from commitlog.core.iceberg.metadata_references import read_table
from commitlog.core.iceberg.reading import load_json
from commitlog.errors import InvalidTransaction
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    DeregisterTable,
    DropNamespace,
    DropTable,
    IcebergChange,
    Operation,
    RenameTable,
)
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code, Status
from commitlog.model.table import TableId
from consumers.servers.iceberg.service import CatalogView, Committed, RefusedChanges
from consumers.servers.security.grants import Principal


@dataclass
class State:
    """The catalogue; `decide` returns the next one or a refusal and changes nothing."""

    tables: dict[TableId, IcebergTable] = field(default_factory=dict)
    others: dict[TableId, str] = field(default_factory=dict)
    namespaces: dict[TableId, dict[str, str]] = field(default_factory=dict)

    def decide(
        self, operations: Sequence[Operation], time_ms: int, transaction_id: str
    ) -> tuple[State, tuple[IcebergResult, ...]] | IcebergRefused:
        after = State(
            dict(self.tables), self.others, {k: dict(v) for k, v in self.namespaces.items()}
        )
        changes = [o for o in operations if isinstance(o, IcebergChange)]
        decided = decide_iceberg(
            self.tables,
            changes,
            time_ms=time_ms,
            transaction_id=transaction_id,
            namespaces=self.namespaces,
            others=self.others,
        )
        if isinstance(decided, IcebergRefused):
            return decided
        after.tables.update({result.table: result.after for result in decided})
        for operation in operations:
            if refused := after._catalogue(operation):
                return refused
        return after, decided

    def _catalogue(self, operation: Operation) -> IcebergRefused | None:
        match operation:
            case DropTable(table=table) | DeregisterTable(table=table):
                if self.tables.pop(table, None) is None:
                    return IcebergRefused(
                        Status.REJECTED, Code.NO_SUCH_TABLE, Phrase("no such table")
                    )
            case RenameTable(table=table, new_table=new):
                if new in self.tables:
                    return IcebergRefused(
                        Status.REJECTED, Code.TABLE_EXISTS, Phrase("name is taken")
                    )
                self.tables[new] = self.tables.pop(table)
            case CreateNamespace(namespace=namespace, properties=properties):
                if namespace in self.namespaces:
                    return IcebergRefused(
                        Status.REJECTED, Code.TABLE_EXISTS, Phrase("name is taken")
                    )
                self.namespaces[namespace] = dict(properties)
            case DropNamespace(namespace=namespace):
                if self.namespaces.pop(namespace, None) is None:
                    return IcebergRefused(
                        Status.REJECTED, Code.NO_SUCH_TABLE, Phrase("no namespace")
                    )
            case AlterProperties(target=namespace, upserts=upserts, removals=removals):
                found = self.namespaces[namespace]
                found.update(upserts)
                for name in removals:
                    found.pop(name, None)
        return None


class MemoryIcebergService:
    """One lock is the log. Files go to a folder, or to `files` where a location isn't local."""

    def __init__(self, *, time_ms: int = 1_800_000_000_000) -> None:
        self.state = State()
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[tuple[Operation, ...], int, str]] = []
        self.failure: Exception | None = None
        self.appended = 0
        self._time_ms = time_ms
        self._answers: dict[str, tuple[tuple[Operation, ...], Committed | RefusedChanges]] = {}
        self._lock = threading.Lock()

    def view(self, *, timeout_seconds: float) -> CatalogView:
        with self._lock:
            state = self.state
            heads = {name: one.metadata_location for name, one in state.tables.items()}
            return CatalogView(state.tables, state.others, state.namespaces, heads=heads)

    def submit(
        self,
        operations: Sequence[Operation],
        *,
        transaction_id: str,
        id_is_new: bool,
        timeout_seconds: float,
    ) -> Committed | RefusedChanges:
        if self.failure is not None:
            raise self.failure
        with self._lock:
            if transaction_id in self._answers:
                assert not id_is_new
                asked, answer = self._answers[transaction_id]
                if asked == tuple(operations):
                    return answer
                return RefusedChanges(
                    Status.REJECTED, Code.ID_REUSED, "the id came with other content"
                )
            self._time_ms += 1
            self.appended += 1
            self.asked.append((tuple(operations), self._time_ms, transaction_id))
            answer = self._decided(operations, transaction_id)
            self._answers[transaction_id] = (tuple(operations), answer)
            return answer

    def _decided(
        self, operations: Sequence[Operation], transaction_id: str
    ) -> Committed | RefusedChanges:
        decided = self.state.decide(operations, self._time_ms, transaction_id)
        if isinstance(decided, IcebergRefused):
            return RefusedChanges(decided.status, decided.code, decided.message, decided.failed)
        after, results = decided
        for result in results:
            if result.writes_file:
                self._write(result.after.metadata_location, result.after.encode())
        ended = {o.table for o in operations if isinstance(o, DropTable | DeregisterTable)}
        locations = {name: self.state.tables[name].metadata_location for name in ended}
        self.state = after
        return Committed(
            transaction_id,
            locations | {result.table: result.after.metadata_location for result in results},
            {result.table: result.after for result in results},
        )

    def operations(self, transaction_id: str) -> Sequence[Operation]:
        with self._lock:
            return self._answers[transaction_id][0] if transaction_id in self._answers else ()

    def read_metadata(self, location: str) -> bytes:
        data = self.read_file(location)
        return gzip.decompress(data) if is_compressed(location) else data

    def registration(
        self,
        table: TableId,
        location: str,
        replaces: str,
        *,
        read_only: bool = False,
        repeats: str = "",
    ) -> IcebergChange:
        read_table(self.read_file(location), location)
        metadata = load_json(self.read_metadata(location), location)
        return register_change(
            table,
            metadata=metadata,
            metadata_location=location,
            replaces=replaces,
            read_only=read_only,
        )

    def read_file(self, location: str) -> bytes:
        path = local_path(location)
        if path is not None:
            return path.read_bytes()
        if location not in self.files:
            raise FileNotFoundError(location)
        return self.files[location]

    def has_file(self, location: str) -> bool:
        path = local_path(location)
        return location in self.files if path is None else path.exists()

    def make_folders(self, location: str) -> None:
        pass

    def lance_operations(
        self, items: Sequence[Any], transaction_id: str, who: Principal
    ) -> tuple[Operation, ...]:
        raise InvalidTransaction("this service has no Lance tables", field="lance-operations")

    def replayed(self) -> State:
        """Return what all that was asked comes to, decided again from the start."""
        state = State()
        for operations, time_ms, transaction_id in self.asked:
            decided = state.decide(operations, time_ms, transaction_id)
            if not isinstance(decided, IcebergRefused):
                state = decided[0]
        return state

    def _write(self, location: str, data: bytes) -> None:
        path = local_path(location)
        if path is None:
            assert self.files.setdefault(location, data) == data
            return
        store = LocalStore(Path(path).parent)
        assert store.create(path.name, data) or store.read(path.name) == data


def _refused(code: Code, why: str) -> IcebergRefused:
    return IcebergRefused(Status.REJECTED, code, Phrase(why))
