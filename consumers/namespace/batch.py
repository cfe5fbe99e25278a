"""Many tables, one record: either all of a batch is committed or none of it.

Operations are decided in the order of the request, each against what the ones before it left. The
answer has one result per operation, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lance_namespace import (
    BatchCommitTablesRequest,
    BatchCreateTableVersionsRequest,
    InvalidInputError,
    LanceNamespaceError,
    UnsupportedOperationError,
)

from commitlog.client.submission import new_transaction_id
from commitlog.client.tables import TableInfo
from commitlog.errors import CommitLogError, InvalidTransaction, NoSuchTable
from commitlog.model.operations import (
    CreateTableVersion,
    DeclareTable,
    DeregisterTable,
    Operation,
)
from commitlog.model.records import Outcome, Status, Transaction
from commitlog.model.table import TableId, parse_table_id
from consumers.namespace.call import Call
from consumers.namespace.service import Service
from consumers.namespace.staged import Staged, Target, read_staged
from consumers.namespace.tables import declaration, declared, ended
from consumers.namespace.versions import (
    batch_id,
    commit_staged,
    raise_refusal,
    version_created,
)

KINDS = ("declare_table", "create_table_version", "delete_table_versions", "deregister_table")
_VERSION_FIELDS = {
    *("version", "branch", "manifest_path", "manifest_size", "e_tag", "metadata", "naming_scheme")
}


@dataclass(slots=True)
class _Batch:
    service: Service
    call: Call
    operations: list[Operation] = field(default_factory=list)
    staged: list[Staged] = field(default_factory=list)
    infos: dict[TableId, TableInfo] = field(default_factory=dict)
    targets: dict[TableId, Target | None] = field(default_factory=dict)

    def target(self, table: TableId) -> Target:
        """Return the table as the operations before this one leave it."""
        if table not in self.targets:
            info = self.infos[table] = self.service.info(table)
            self.targets[table] = Target(info.table_id, info.location, info.incarnation)
        found = self.targets[table]
        if found is None:
            raise NoSuchTable(f"{'$'.join(table)} is deregistered by an operation before")
        return found

    def add(self, chosen: Sequence[tuple[str, Any]]) -> None:
        """Add operations of the four kinds, in order."""
        for index, (kind, body) in enumerate(chosen):
            with _Named(f"operations[{index}]"):
                table = _table(body.id)
                if kind == "declare_table":
                    self.declare(table, body)
                elif kind == "create_table_version":
                    self.add_version(table, body)
                elif kind == "deregister_table":
                    self.deregister(table)
                else:
                    raise UnsupportedOperationError("delete_table_versions is not supported yet")

    def add_version(self, table: TableId, request: Any) -> None:
        staged = read_staged(self.target(table), request)
        self.staged.append(staged)
        self.operations.append(staged.operation)

    def declare(self, table: TableId, request: Any) -> None:
        made = declaration(self.service, self.call, table, request, len(self.operations))
        self.targets[table] = Target(table, made.location, made.incarnation)
        self.operations.append(made)

    def commit(self) -> tuple[Outcome, Transaction]:
        """Commit what was added; the same request, repeated, is the same transaction."""
        content_id = batch_id(self.call) if self.staged else new_transaction_id()
        return commit_staged(self.service, self.call, self.operations, content_id)

    def deregister(self, table: TableId) -> None:
        target = self.target(table)
        self.targets[table] = None
        self.operations.append(DeregisterTable(table, target.incarnation))


def batch_create_versions(service: Service, call: Call) -> dict[str, Any]:
    """Commit staged manifests of many tables, all or none."""
    request = call.read(BatchCreateTableVersionsRequest, {"entries"})
    _check_count(service, "entries", len(request.entries))
    found = _first(service, call)
    if found is None:
        batch = _Batch(service, call)
        for index, entry in enumerate(request.entries):
            with _Named(f"entries[{index}]"):
                batch.add_version(_table(entry.id), entry)
        found = batch.commit()
        raise_refusal(service, *found)
    outcome, transaction = found
    results = _results(service, outcome, transaction, {})
    return {
        "transaction_id": outcome.transaction_id,
        "versions": [result["create_table_version"]["version"] for result in results],
    }


def batch_commit(service: Service, call: Call) -> dict[str, Any]:
    """Commit operations of four kinds on many tables, all or none."""
    chosen = _chosen(service, call)
    found = _first(service, call)
    batch = _Batch(service, call)
    if found is None:
        batch.add(chosen)
        found = batch.commit()
        raise_refusal(service, *found)
    outcome, transaction = found
    return {
        "transaction_id": outcome.transaction_id,
        "results": _results(service, outcome, transaction, batch.infos),
    }


def batch_operations(service: Service, call: Call) -> tuple[Operation, ...]:
    """Return a batch's operations for a record that holds others too; nothing is committed."""
    batch = _Batch(service, call)
    batch.add(_chosen(service, call))
    return tuple(batch.operations)


def _chosen(service: Service, call: Call) -> list[tuple[str, Any]]:
    request = call.read(BatchCommitTablesRequest, {"operations"})
    _check_count(service, "operations", len(request.operations))
    chosen = []
    for index, operation in enumerate(request.operations):
        with _Named(f"operations[{index}]"):
            chosen.append(_kind(call, operation))
    return chosen


def _first(service: Service, call: Call) -> tuple[Outcome, Transaction] | None:
    """Return the commit of the same batch, if it was asked for before."""
    if call.key is not None:
        return service.first_answer(call)
    found = service.transaction(batch_id(call))
    return found if found is not None and found[0].status is Status.COMMITTED else None


def _results(
    service: Service,
    outcome: Outcome,
    transaction: Transaction,
    known: Mapping[TableId, TableInfo],
) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    transaction_id = outcome.transaction_id
    infos: dict[TableId, TableInfo | None] = {}
    for operation, result in zip(transaction.operations, outcome.results, strict=True):
        if isinstance(operation, DeclareTable):
            results.append({"declare_table": declared(service, operation, transaction_id)})
        elif isinstance(operation, DeregisterTable):
            before = known.get(operation.table)
            body = ended(operation.table, before, result, transaction_id)
            results.append({"deregister_table": body})
        else:
            assert isinstance(operation, CreateTableVersion)
            if operation.table not in infos:
                infos[operation.table] = service.find(operation.table)
            info = infos[operation.table]
            results.append(
                {"create_table_version": _version(service, info, operation, transaction_id)}
            )
    return results


def _version(
    service: Service, info: TableInfo | None, made: CreateTableVersion, transaction_id: str
) -> dict[str, Any]:
    if info is not None and info.incarnation == made.incarnation:
        return version_created(service, info, made, transaction_id)
    # The table was deregistered since, perhaps by this very batch.
    entry = {"version": made.version, "manifest_path": made.manifest_path.split(".manifest-")[0]}
    entry["manifest_path"] = f"{entry['manifest_path']}.manifest"
    return {"transaction_id": transaction_id, "version": entry}


def _kind(call: Call, operation: Any) -> tuple[str, Any]:
    given = [kind for kind in KINDS if getattr(operation, kind) is not None]
    if len(given) != 1:
        raise InvalidInputError(
            f"exactly one of {', '.join(KINDS)} is given, not {given or 'none'}"
        )
    kind = given[0]
    body = getattr(operation, kind)
    takes = {
        "declare_table": {"location", "properties", "vend_credentials"},
        "create_table_version": _VERSION_FIELDS,
        "delete_table_versions": {"ranges"},
        "deregister_table": set[str](),
    }[kind]
    call.refuse_others(body, takes, f"{kind}.")
    _table(body.id)
    return kind, body


def _table(given: list[str] | None) -> TableId:
    if not given:
        raise InvalidInputError("id is missing: a batch names each table by its id")
    return parse_table_id(given)


def _check_count(service: Service, name: str, count: int) -> None:
    limit = service.settings.operations_max
    if not 0 < count <= limit:
        raise InvalidInputError(f"{name}: a batch has 1 to {limit}, not {count}")


class _Named:
    """Says in each error which part of the request it is about."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LanceNamespaceError):
            error.args = (f"{self._name}: {error}", *error.args[1:])
        elif isinstance(error, InvalidTransaction):
            raise InvalidInputError(f"{self._name}: {error}") from error
        elif isinstance(error, CommitLogError):
            error.args = (f"{self._name}: {error}", *error.args[1:])
