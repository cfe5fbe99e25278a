"""Tables: their names, locations and properties."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lance_namespace import (
    DeclareTableRequest,
    DeregisterTableRequest,
    DescribeTableRequest,
    DropTableRequest,
    InvalidInputError,
    RegisterTableRequest,
    RenameTableRequest,
    TableExistsRequest,
    TableTagNotFoundError,
)
from starlette.responses import Response

from commitlog.adapters.places import bound
from commitlog.client.commits import catalogue
from commitlog.client.leader.tables import TableInfo
from commitlog.errors import NoSuchTable
from commitlog.model.operations import (
    DeclareTable,
    DeregisterTable,
    DropTable,
    Operation,
    RegisterTable,
    RenameTable,
)
from commitlog.model.records import OperationResult, Transaction
from commitlog.model.table import TableId, format_table_id, parse_table_id
from consumers.servers.namespace.arrow_json import schema_json
from consumers.servers.namespace.branch_rows import open_branch
from consumers.servers.namespace.branches import is_branch
from consumers.servers.namespace.call import Call, one_of
from consumers.servers.namespace.service import Service, need_version
from consumers.servers.namespace.transactions import noted_ended, noting_ended, visible
from consumers.servers.security.grants import Access
from consumers.servers.vending.sessions import session_options
from consumers.servers.vending.vendor import Subject

_UUID_AT_END = re.compile(r"-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.lance/*$")


def declare_table(service: Service, call: Call) -> dict[str, Any]:
    """Take a name and a location; the first writer commits the first version."""
    request = call.read(DeclareTableRequest, {"location", "properties", "vend_credentials"})
    operation = declaration(service, call, call.table, request)
    outcome, transaction = service.change(call, operation)
    made = transaction.operations[0]
    assert isinstance(made, DeclareTable)
    return declared(service, call, made, outcome.transaction_id, vends=request.vend_credentials)


def declaration(
    service: Service, call: Call, table: TableId, request: DeclareTableRequest, number: int = 0
) -> DeclareTable:
    """Make the operation that declares a table."""
    incarnation = service.incarnation(call, number)
    if request.location:
        location = service.location(request.location)
        service.places.check(call.principal, table, location)
    else:
        genesis = service.log.runtime().genesis
        location = catalogue.default_location(genesis, table, incarnation)
    properties = catalogue.checked_properties(table, request.properties)
    return DeclareTable(table, incarnation, location, properties=properties)


def declared(
    service: Service,
    call: Call,
    made: DeclareTable,
    transaction_id: str,
    *,
    vends: bool | None,
) -> dict[str, Any]:
    """Describe a table that was declared."""
    subject = Subject(made.table, made.incarnation, made.location)
    return {
        "transaction_id": transaction_id,
        "location": bound(made.location),
        "storage_options": vended_options(service, call, subject, vends=vends),
        "properties": dict(made.properties),
        "managed_versioning": True,
    }


def describe_table(service: Service, call: Call) -> dict[str, Any]:
    """Say where a table is, and more if asked to."""
    request = call.read(
        DescribeTableRequest,
        {
            *("version", "tag", "with_table_uri", "load_detailed_metadata", "check_declared"),
            *("vend_credentials", "branch"),
        },
    )
    service.older_clients.note(call)
    info = service.info(call.table)
    subject = Subject.of(info)
    vends = request.vend_credentials
    body: dict[str, Any] = {
        "table": info.table_id[-1],
        "namespace": list(info.table_id[:-1]),
        "location": info.location,
        "storage_options": vended_options(service, call, subject, vends=vends),
        "properties": visible(info.properties),
        "managed_versioning": True,
    }
    if request.with_table_uri:
        body["table_uri"] = info.location
    if request.check_declared or request.load_detailed_metadata:
        body["is_only_declared"] = info.version == 0
    if is_branch(request.branch):
        dataset = open_branch(service, info, request.branch, request.version)
        version, schema = dataset.version, dataset.schema
    else:
        version = _wanted_version(service, info, request) or info.version
        is_head = version == info.version
        schema = info.schema if is_head else service.open(info, version).schema
    if version or call.is_remote:
        body["version"] = version
        body["schema"] = schema_json(schema, by_lance=call.is_remote)
    if request.load_detailed_metadata and version:
        if not is_branch(request.branch):
            dataset = service.open(info, version)
        body["stats"] = {
            "num_deleted_rows": sum(f.num_deletions for f in dataset.get_fragments()),
            "num_fragments": len(dataset.get_fragments()),
        }
        metadata = dataset.schema.metadata or {}
        body["metadata"] = {k.decode(): v.decode() for k, v in metadata.items()}
    return body


def _wanted_version(service: Service, info: TableInfo, request: DescribeTableRequest) -> int | None:
    version = request.version
    if request.tag:
        if version is not None:
            raise InvalidInputError("version and tag exclude each other; give one of them")
        tags = service.open(info).tags.list() if info.version else {}
        if request.tag not in tags:
            raise TableTagNotFoundError(f"{info.name} has no tag {request.tag!r}")
        version = int(tags[request.tag]["version"])
    if version is not None:
        need_version(info, version)
    return version


def table_exists(service: Service, call: Call) -> Response:
    """Say whether a table, and a version of it, exists, by the status."""
    request = call.read(TableExistsRequest, {"version"})
    info = service.info(call.table)
    if request.version is not None:
        need_version(info, request.version)
    return Response()


def drop_table(service: Service, call: Call) -> dict[str, Any]:
    """Forget a table; its files are vacuum's."""
    call.read(DropTableRequest)
    return _end(service, call, DropTable)


def deregister_table(service: Service, call: Call) -> dict[str, Any]:
    """Forget a table; its files stay."""
    call.read(DeregisterTableRequest)
    return _end(service, call, DeregisterTable)


def _end(
    service: Service, call: Call, kind: type[DropTable] | type[DeregisterTable]
) -> dict[str, Any]:
    table = call.table
    info = service.find(table)
    if info is None:
        first = service.first_answer(call)
        if first is None:
            service.info(table)
            raise NoSuchTable(f"the log has no table {call.object_id}")
        outcome, transaction = first
    else:
        ends = kind(table, info.incarnation)
        said = noting(call, [ends], {table: info})
        outcome, transaction = service.change(call, ends, properties=said)
    return ended(table, info, outcome.results[0], transaction)


def noting(
    call: Call, operations: Iterable[Operation], infos: Mapping[TableId, TableInfo]
) -> list[tuple[str, str]]:
    """Return what a record under a key says of the tables that it ends."""
    ends = (one for one in operations if isinstance(one, DropTable | DeregisterTable))
    known = (infos[one.table] for one in ends if one.table in infos)
    return noting_ended(call, {info.name: visible(info.properties) for info in known})


def ended(
    table: TableId, info: TableInfo | None, result: OperationResult, transaction: Transaction
) -> dict[str, Any]:
    """Describe a table that is forgotten; a repetition doesn't find it any more, or another one."""
    known = visible(info.properties) if info else {}
    return {
        "transaction_id": transaction.transaction_id,
        "id": list(table),
        "location": bound(result.location) or (info.location if info else ""),
        "properties": noted_ended(transaction).get(format_table_id(table), known),
    }


def register_table(service: Service, call: Call) -> dict[str, Any]:
    """Take over a dataset that is somewhere allowed, at its newest version."""
    request = call.read(RegisterTableRequest, {"location", "mode", "properties"})
    table = call.table
    mode = one_of("mode", request.mode, "create", "overwrite")
    if not request.location:
        raise InvalidInputError("location is empty")
    first = service.first_answer(call)
    if first is None:
        location = service.location(request.location)
        service.places.check(call.principal, table, location)
        operation = catalogue.register_table(
            table,
            location,
            policy="every",
            primary_key=None,
            properties=request.properties,
        )
        operations: list[Operation] = [_as_it_was(operation)]
        standing = service.find(table)
        if mode == "overwrite" and standing is not None:
            operations.insert(0, DeregisterTable(table, standing.incarnation))
        first = service.change(call, *operations)
    outcome, transaction = first
    made = transaction.operations[-1]
    assert isinstance(made, RegisterTable)
    return {
        "transaction_id": outcome.transaction_id,
        "location": bound(made.location),
        "properties": dict(made.properties),
    }


def _as_it_was(operation: RegisterTable) -> RegisterTable:
    """Give a table that the log made its own incarnation back: a location has but one."""
    found = _UUID_AT_END.search(operation.location)
    if found is None:
        return operation
    return replace(operation, incarnation=found[1])


def rename_table(service: Service, call: Call) -> dict[str, Any]:
    """Give a table another name, in the same namespace or another one."""
    request = call.read(RenameTableRequest, {"new_table_name", "new_namespace_id"})
    table = call.table
    # Lance's generated Java client sends an empty list unless its user names a namespace.
    namespace = tuple(request.new_namespace_id or table[:-1])
    new_table = parse_table_id((*namespace, request.new_table_name))
    call.need(Access.ADMIN, new_table)
    outcome, _ = service.change(call, RenameTable(table, new_table))
    return {"transaction_id": outcome.transaction_id}


def vended_options(
    service: Service, call: Call, subject: Subject, *, vends: bool | None
) -> dict[str, str]:
    """Return a table's storage options: with keys of a session unless the client wants none.

    Keys that the operator wrote down open what the store lets them open, so they are for who asks
    for them (`vends`) and may write everything.
    """
    found = service.storage_options(subject.location)
    if vends is False:
        return found
    vendor, principal = service.vendor, call.principal
    access = vendor.access(principal, subject)
    session = access and vendor.session(principal, subject, min(access, service.most))
    if session:
        return session_options(session, vendor.address(subject), found)
    if vends and service.security.may(principal, Access.WRITE, ()):
        return found | service.settings.credentials.at(bound(subject.location))
    return found
