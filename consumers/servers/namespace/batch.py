"""Many tables, one record: either all of a batch is committed or none of it.

Operations are decided in the order of the request, each against what the ones before it left. The
answer has one result per operation, in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from lance_namespace import (
    BatchCommitTablesRequest,
    BatchCreateTableVersionsRequest,
    InvalidInputError,
    LanceNamespaceError,
)

from commitlog.client.commits.names import check_names
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.lance_request import new_transaction_id
from commitlog.core.catalogue.version_deletion import merged, without
from commitlog.core.tables.lance_tables import VersionRanges, is_in
from commitlog.errors import CommitLogError, InvalidRequest, NoSuchTable, OutcomeUnknown
from commitlog.model.operations import (
    CreateTableVersion,
    DeclareTable,
    DeleteTableVersions,
    DeregisterTable,
    LanceCommit,
    Operation,
)
from commitlog.model.records import Outcome, Status, Transaction
from commitlog.model.table import TableId, parse_table_id
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.deletion import deleted, deletion, naming, refuse_version, wanted
from consumers.servers.namespace.native import refuse_branch
from consumers.servers.namespace.service import Service
from consumers.servers.namespace.staged import (
    VERSION_FIELDS,
    Staged,
    StagedManifestMissing,
    read_staged,
)
from consumers.servers.namespace.tables import declaration, declared, ended, noting
from consumers.servers.namespace.versions import (
    commit_staged,
    raise_refusal,
    refuse_taken,
    version_of_record,
)
from consumers.servers.security.grants import Access
from consumers.servers.security.guard import BATCH_ACCESS
from consumers.servers.vending.vendor import Subject

KINDS = tuple(BATCH_ACCESS)
_PLACE = re.compile(r"operations\[([0-9]+)\]")


@dataclass(slots=True)
class _Batch:
    service: Service
    call: Call
    is_fresh: bool = False
    """Whether tables are asked for, or as they were learnt lately."""
    items: str = "operations"
    """What the request calls its parts."""
    operations: list[Operation] = field(default_factory=list)
    staged: list[Staged] = field(default_factory=list)
    infos: dict[TableId, TableInfo] = field(default_factory=dict)
    targets: dict[TableId, Subject | None] = field(default_factory=dict)
    newest: dict[TableId, int] = field(default_factory=dict)
    """The newest versions that operations of the batch make."""
    gone: dict[TableId, VersionRanges] = field(default_factory=dict)
    """The versions that are deleted once these operations are done."""
    lives: set[tuple[TableId, str]] = field(default_factory=set)
    """The tables whose versions are deleted, with their incarnations."""
    asked: list[int] = field(default_factory=list)
    """For each of `operations`, which one of the request it is for."""

    def target(self, table: TableId) -> Subject:
        """Return the table as the operations before this one leave it."""
        if table not in self.targets:
            info = self.service.info(table) if self.is_fresh else self.service.lately(table)
            self.infos[table] = info
            self.targets[table] = Subject.of(info)
        found = self.targets[table]
        if found is None:
            raise NoSuchTable(f"{'$'.join(table)} is deregistered by an earlier operation")
        return found

    def add(self, chosen: Sequence[tuple[str, Any]]) -> None:
        """Add operations of the four kinds, in order."""
        for index, (kind, body) in enumerate(chosen):
            with _named(f"operations[{index}]"):
                table = _table(body.id)
                if kind == "declare_table":
                    self.declare(table, body)
                elif kind == "create_table_version":
                    self.add_version(table, body)
                elif kind == "deregister_table":
                    self.deregister(table)
                else:
                    self.delete_versions(table, body)
            self.asked += [index] * (len(self.operations) - len(self.asked))

    def add_version(self, table: TableId, request: Any) -> None:
        target, info = self.target(table), self.infos.get(table)
        if table in self.gone:
            refuse_version(table, self.operations)
        stands = info is not None and info.incarnation == target.uuid
        try:
            staged = read_staged(target, request, info if stands else None)
        except StagedManifestMissing:
            if stands:
                refuse_taken(self.service, self.service.info(table), request.version)
            raise
        check_names([staged.operation], (), None, "")
        self.staged.append(staged)
        self.operations.append(staged.operation)
        self.newest[table] = staged.operation.version

    def declare(self, table: TableId, request: Any) -> None:
        made = declaration(self.service, self.call, table, request, len(self.operations))
        check_names([made], (), None, "")
        self.targets[table] = Subject(table, made.incarnation, made.location)
        self.newest.pop(table, None)
        self.gone.pop(table, None)
        self.operations.append(made)

    def delete_versions(self, table: TableId, request: Any) -> None:
        target, info = self.now(table)
        if info is not None and info.incarnation != target.uuid:
            info = None  # the batch declared another table of this name
        refuse_branch(self.call, table, request.branch)
        self.lives.add((table, target.uuid))
        standing = info.version if info is not None else 0
        newest = self.newest.get(table, standing)
        versions = wanted(request.ranges, newest)
        if newest != standing and is_in(newest, versions):
            raise InvalidInputError(
                f"version {newest} is created by this batch, so the batch cannot delete it"
            )
        gone = self.gone.get(table, info.deleted if info is not None else ())
        if info is None:
            made: list[Operation] = [DeleteTableVersions(table, without(versions, gone))]
        else:
            made = deletion(self.service, info, versions, gone, newest)
        self.operations += made
        self.gone[table] = merged(gone, versions)
        if len(made) > 1:
            self.newest[table] = standing + 1

    def commit(self) -> tuple[Outcome, Transaction]:
        """Commit what was added; the same request, repeated, is the same transaction."""
        content_id = _batch_id(self.call) if self.staged else new_transaction_id()
        operations = self.operations
        said = naming(life for _, life in self.lives)
        said += noting(self.call, operations, self.infos)
        outcome, transaction = commit_staged(self.service, self.call, operations, content_id, said)
        return replace(outcome, message=self.as_asked(outcome.message)), transaction

    def as_asked(self, message: str) -> str:
        """Return a refusal that names an operation by its place in the request."""
        found = _PLACE.match(message)
        if found is None or not self.asked:
            return message
        return f"{self.items}[{self.asked[int(found[1])]}]{message[found.end() :]}"

    def now(self, table: TableId) -> tuple[Subject, TableInfo | None]:
        """Return the same as `target`, and the table as it is if it stood before the batch."""
        target, known = self.target(table), self.infos.get(table)
        if known is None:
            return target, None
        info = self.infos[table] = self.service.info(table)
        if target.uuid == known.incarnation:
            # It may be another table by now than it was lately.
            target = Subject.of(info)
            self.targets[table] = target
        return target, info

    def deregister(self, table: TableId) -> None:
        target, _ = self.now(table)
        self.targets[table] = None
        self.operations.append(DeregisterTable(table, target.uuid))


def batch_create_versions(service: Service, call: Call) -> dict[str, Any]:
    """Commit staged manifests of many tables, all or none."""
    request = call.read(BatchCreateTableVersionsRequest, {"entries"})
    _check_count(service, "entries", len(request.entries))
    for index, entry in enumerate(request.entries):
        with _named(f"entries[{index}]"):
            call.need(Access.WRITE, _table(entry.id))
    found = _first(service, call)
    infos: dict[TableId, TableInfo] = {}
    if found is None:

        def fill(batch: _Batch) -> None:
            for index, entry in enumerate(request.entries):
                with _named(f"entries[{index}]"):
                    batch.add_version(_table(entry.id), entry)
                batch.asked.append(index)
            batch.items = "entries"

        infos, found = _committed(service, call, fill)
    outcome, transaction = found
    results = _results(service, call, outcome, transaction, infos, request.entries)
    return {
        "transaction_id": outcome.transaction_id,
        "versions": [result["create_table_version"]["version"] for result in results],
    }


def batch_commit(service: Service, call: Call) -> dict[str, Any]:
    """Commit operations of four kinds on many tables, all or none."""
    chosen = _chosen(service, call)
    found = _first(service, call)
    infos: dict[TableId, TableInfo] = {}
    if found is None:
        infos, found = _committed(service, call, lambda batch: batch.add(chosen))
    outcome, transaction = found
    offered = (body for kind, body in chosen if kind == "create_table_version")
    # One answer may tell of a thousand tables, so keys are for those that it is said of.
    vends = {tuple(body.id) for _, body in chosen if getattr(body, "vend_credentials", False)}
    return {
        "transaction_id": outcome.transaction_id,
        "results": _results(service, call, outcome, transaction, infos, offered, vends),
    }


def _committed(
    service: Service, call: Call, fill: Callable[[_Batch], None]
) -> tuple[dict[TableId, TableInfo], tuple[Outcome, Transaction]]:
    """Fill a batch and commit it; again if a table isn't the one that it was taken for."""
    batch = _Batch(service, call)
    try:
        fill(batch)
        found = batch.commit()
        raise_refusal(service, found[0], found[1].operations)
    except OutcomeUnknown:
        raise
    except (LanceNamespaceError, CommitLogError) as error:
        if call.key is None and (first := _first(service, call)) is not None:
            return batch.infos, first  # the same batch was sent twice at the same time
        infos = batch.infos.items()
        if all(service.is_as_known(info, error) for _, info in infos):
            raise
        deletes = [t for t, info in infos if (t, info.incarnation) in batch.lives]
        if any((t, service.info(t).incarnation) not in batch.lives for t in deletes):
            raise  # what it was to delete is gone
    else:
        return batch.infos, found
    batch = _Batch(service, call, is_fresh=True)
    fill(batch)
    found = batch.commit()
    raise_refusal(service, found[0], found[1].operations)
    return batch.infos, found


def batch_operations(service: Service, call: Call) -> tuple[Operation, ...]:
    """Return a batch's operations for a record that holds others too; nothing is committed."""
    batch = _Batch(service, call, is_fresh=True)
    batch.add(_chosen(service, call))
    return tuple(batch.operations)


def _chosen(service: Service, call: Call) -> list[tuple[str, Any]]:
    request = call.read(BatchCommitTablesRequest, {"operations"})
    _check_count(service, "operations", len(request.operations))
    chosen = []
    for index, operation in enumerate(request.operations):
        with _named(f"operations[{index}]"):
            sent = call.fields["operations"][index]
            given = [name for name, body in sent.items() if body is not None]
            if len(given) != 1 or given[0] not in KINDS:
                kinds = ", ".join(KINDS)
                raise InvalidInputError(f"give exactly one of {kinds}, not {given or 'none'}")
            call.check_items(sent[given[0]], f"{given[0]}.")
            chosen.append((given[0], _body(call, given[0], getattr(operation, given[0]))))
    return chosen


def _first(service: Service, call: Call) -> tuple[Outcome, Transaction] | None:
    """Return the commit of the same batch, if it was asked for before."""
    if call.key is not None:
        return service.first_answer(call)
    found = service.transaction(_batch_id(call))
    return found if found is not None and found[0].status is Status.COMMITTED else None


def _results(
    service: Service,
    call: Call,
    outcome: Outcome,
    transaction: Transaction,
    known: Mapping[TableId, TableInfo],
    offered: Iterable[Any],
    vends: Collection[TableId] = (),
) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    paths = (one.manifest_path for one in offered)
    transaction_id = outcome.transaction_id
    infos: dict[TableId, TableInfo | None] = {}
    declarations: dict[TableId, DeclareTable] = {}
    for operation, result in zip(transaction.operations, outcome.results, strict=True):
        if isinstance(operation, DeclareTable):
            asked = operation.table in vends
            body = declared(service, call, operation, transaction_id, vends=asked)
            results.append({"declare_table": body})
            declarations[operation.table] = operation
        elif isinstance(operation, LanceCommit):
            continue  # it makes room for a deletion; the client didn't send it
        elif isinstance(operation, DeleteTableVersions):
            results.append({"delete_table_versions": deleted(operation, transaction_id)})
        elif isinstance(operation, DeregisterTable):
            before = known.get(operation.table)
            body = ended(operation.table, before, result, transaction)
            if (made := declarations.get(operation.table)) is not None:
                body["properties"] = dict(made.properties)
            results.append({"deregister_table": body})
        elif isinstance(operation, CreateTableVersion):
            before = known.get(operation.table)
            body = _version(service, before, infos, operation, outcome, next(paths))
            results.append({"create_table_version": body})
    return results


def _version(
    service: Service,
    known: TableInfo | None,
    infos: dict[TableId, TableInfo | None],
    made: CreateTableVersion,
    outcome: Outcome,
    offered: str,
) -> dict[str, Any]:
    if known is not None and known.incarnation == made.incarnation:
        entry = service.made_entry(known.location, made, outcome)
        if entry is not None:
            return {"transaction_id": outcome.transaction_id, "version": entry}
    if made.table not in infos:
        infos[made.table] = service.find(made.table)
    return version_of_record(service, infos[made.table], made, outcome, offered)


def _body(call: Call, kind: str, body: Any) -> Any:
    takes = {
        "declare_table": {"location", "properties", "vend_credentials"},
        "create_table_version": VERSION_FIELDS,
        "delete_table_versions": {"ranges", "branch"},
        "deregister_table": set[str](),
    }[kind]
    call.refuse_others(body, takes, f"{kind}.")
    call.need(BATCH_ACCESS[kind], _table(body.id))
    return body


def _table(given: list[str] | None) -> TableId:
    if not given:
        raise InvalidInputError("id is missing: each operation of a batch needs its table's id")
    return parse_table_id(given)


def _batch_id(call: Call) -> str:
    """Return the id of a batch: the same request, repeated, is the same transaction."""
    return str(uuid5(NAMESPACE_OID, call.operation + call.content.decode(errors="replace")))


def _check_count(service: Service, name: str, count: int) -> None:
    limit = service.settings.operations_max
    if not 0 < count <= limit:
        raise InvalidInputError(f"{name}: a batch must have 1 to {limit}, not {count}")


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say in each error which part of the request it is about."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidInputError(f"{name}: {error}") from error
    except (LanceNamespaceError, CommitLogError) as error:
        error.args = (f"{name}: {error}", *error.args[1:])
        raise
