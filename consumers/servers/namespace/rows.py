"""Rows: tables made of them, added, changed, removed, counted and read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lance
import pyarrow as pa
from lance_namespace import (
    CountTableRowsRequest,
    CreateTableRequest,
    CreateTableVersionRequest,
    DeclareTableRequest,
    DeleteFromTableRequest,
    InsertIntoTableRequest,
    InvalidInputError,
    MergeInsertIntoTableRequest,
    TableSchemaValidationError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
    UpdateTableRequest,
)

from commitlog.adapters.lance_datasets import check_gate
from commitlog.adapters.lance_namespace import object_path
from commitlog.adapters.places import bound
from commitlog.client.commits.execution import Execution
from commitlog.client.leader.repeats import noted_counts
from commitlog.client.leader.row_tickets import settled, writes_rows
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.contents import contents
from commitlog.client.rows.lance_request import parse_message
from commitlog.client.rows.merging import MergeOptions, check_first_merge
from commitlog.client.rows.rows import whole
from commitlog.errors import InvalidTransaction, TableAlreadyExists, WrongColumns
from commitlog.model.operations import CreateTableVersion, DeclareTable, Operation
from commitlog.model.records import Outcome, Status, Transaction
from commitlog.model.table import TableId
from consumers.servers.namespace.branch_rows import (
    answered,
    change_branch,
    merged,
    read_from,
    whole_condition,
)
from consumers.servers.namespace.branches import is_branch
from consumers.servers.namespace.call import Call, condition, one_of
from consumers.servers.namespace.first_version import as_it_is, known_rows, stage_first_version
from consumers.servers.namespace.native import commit_natively
from consumers.servers.namespace.remote import TIMEOUT_SECONDS, TIMEOUT_SECONDS_MAX, timeout_of
from consumers.servers.namespace.service import Service, keyed
from consumers.servers.namespace.staged import read_staged
from consumers.servers.namespace.tables import declaration
from consumers.servers.namespace.transactions import visible
from consumers.servers.namespace.versions import commit_staged, raise_refusal
from consumers.servers.vending.vendor import Subject


def create_table(service: Service, call: Call) -> dict[str, Any]:
    """Make a table of an Arrow stream; its name and its rows are one record of the log."""
    request = call.read(CreateTableRequest, {"mode", "properties"})
    table = call.table
    mode = one_of("mode", request.mode, "create", "exist_ok", "overwrite")
    first = service.first_answer(call)
    if first is None:
        standing = service.find(table)
        if standing is not None and mode == "exist_ok":
            return _created(service, standing, standing.version, None)
        if standing is not None and mode == "create":
            raise TableAlreadyExists(
                f"table {standing.name} already exists at {standing.location}; choose "
                "another name, or the mode exist_ok or overwrite"
            )
        if standing is not None and standing.version and mode == "overwrite":
            if request.properties:
                raise UnsupportedOperationError(
                    "CreateTable: the table exists, so its properties cannot be set "
                    "here; leave them out to overwrite"
                )
            return _overwritten(service, call, standing)
        if standing is not None and not request.properties:
            outcome = _first_rows(service, call, standing)[0]
            return _created(service, standing, 1, outcome.transaction_id)
        first = _create(service, call, table, request.properties)
    outcome, transaction = first
    made = transaction.operations[0]
    if not isinstance(made, DeclareTable):
        return _created(service, service.info(table), outcome.version, outcome.transaction_id)
    return {
        "transaction_id": outcome.transaction_id,
        "location": bound(made.location),
        "version": 1,
        "storage_options": service.storage_options(made.location),
        "properties": dict(made.properties),
    }


def _create(
    service: Service, call: Call, table: TableId, properties: Mapping[str, str] | None
) -> Any:
    made = declaration(service, call, table, DeclareTableRequest(properties=dict(properties or {})))
    target = Subject(table, made.incarnation, made.location)
    return _commit_first(service, call, target, [made])


def _first_rows(service: Service, call: Call, info: TableInfo) -> tuple[Outcome, Transaction]:
    """Give a declared table its first version."""
    return _commit_first(service, call, Subject.of(info), [])


def _commit_first(
    service: Service, call: Call, target: Subject, before: list[Operation]
) -> tuple[Outcome, Transaction]:
    rows = call.arrow()
    try:
        manifest = stage_first_version(target.table, target.location, rows)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidInputError(f"the rows cannot be written: {error}") from error
    path = object_path(target.location, manifest.path)
    request = CreateTableVersionRequest(
        version=1, manifest_path=path, naming_scheme=manifest.naming_scheme
    )
    staged = read_staged(target, request)
    found = commit_staged(service, call, [*before, staged.operation], staged.transaction_id)
    raise_refusal(service, found[0], found[1].operations)
    return found


def _overwritten(service: Service, call: Call, info: TableInfo) -> dict[str, Any]:
    body = _replaced(service, call)
    return _created(service, info, body["version"], body.get("transaction_id"))


def _replaced(service: Service, call: Call) -> dict[str, Any]:
    return commit_natively(
        service, call, lambda dataset: lance.write_dataset(call.arrow(), dataset, mode="overwrite")
    )


def _created(
    service: Service, info: TableInfo, version: int, transaction_id: str | None
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "location": info.location,
        "version": version,
        "storage_options": service.storage_options(info.location),
        "properties": visible(info.properties),
    }
    if transaction_id is not None:
        body["transaction_id"] = transaction_id
    return body


@as_it_is
def insert(service: Service, call: Call) -> dict[str, Any]:
    """Add the rows of an Arrow stream, or put them in the place of all others."""
    request = call.read(InsertIntoTableRequest, {"mode", "branch"})
    mode = one_of("mode", request.mode, "append", "overwrite")
    # A key's transaction may be refused for what was known, and can't be another one then.
    is_asked = mode == "overwrite" or call.key is not None
    info = service.info(call.table) if is_asked else known_rows(service, call)
    if is_branch(request.branch):
        dataset, _ = change_branch(
            service, call, request.branch, lambda dataset: dataset.insert(call.arrow(), mode=mode)
        )
        return {**answered(dataset), "num_inserted_rows": _counted_again(call)}
    if not info.version and service.first_decision(call) is None:
        outcome, transaction = _first_rows(service, call, info)
        return {
            "transaction_id": outcome.transaction_id,
            "version": 1,
            "num_inserted_rows": _counts_of(transaction)["inserted"],
        }
    if mode == "overwrite":
        body = _replaced(service, call)
        return {**body, "num_inserted_rows": _counted_again(call)}
    outcome, counts = _carried_out(service, call, lambda made: made.append(call.rows()))
    return _told(outcome, num_inserted_rows=counts.get("inserted", 0))


def _counted_again(call: Call) -> int:
    """Count a request's rows. They may be gigabytes: they are read once more rather than held."""
    assert call.stream is not None
    call.stream.seek(0)
    return sum(batch.num_rows for batch in call.arrow())


@as_it_is
def merge_insert(service: Service, call: Call) -> dict[str, Any]:
    """Join the rows of an Arrow stream with the table by key."""
    request = call.read(
        MergeInsertIntoTableRequest,
        {
            *("branch", "on", "when_matched_update_all", "when_matched_update_all_filt"),
            *("when_not_matched_insert_all", "when_not_matched_by_source_delete"),
            *("when_not_matched_by_source_delete_filt", "timeout", "use_index"),
        },
    )
    if not request.on:
        raise InvalidInputError("on is missing: name the key columns")
    # A filter by itself asks for what it filters.
    updates = bool(request.when_matched_update_all or request.when_matched_update_all_filt)
    deletes = bool(
        request.when_not_matched_by_source_delete or request.when_not_matched_by_source_delete_filt
    )
    if not (updates or deletes or request.when_not_matched_insert_all):
        raise InvalidInputError(
            "the merge would do nothing: set when_matched_update_all, "
            "when_not_matched_insert_all or when_not_matched_by_source_delete"
        )
    options = MergeOptions(
        when_matched_update_all=bool(updates),
        when_matched_update_all_filt=request.when_matched_update_all_filt,
        when_not_matched_insert_all=bool(request.when_not_matched_insert_all),
        when_not_matched_by_source_delete=bool(deletes),
        when_not_matched_by_source_delete_filt=request.when_not_matched_by_source_delete_filt,
        use_index=bool(request.use_index),
    )
    on, timeout = tuple(request.on), timeout_of(call.headers, request.timeout)
    if is_branch(request.branch):
        rows = call.arrow().read_all()
        dataset, found = change_branch(
            service, call, request.branch, lambda dataset: merged(dataset, rows, on, options)
        )
        return {**answered(dataset), **found}
    info = known_rows(service, call)
    if not info.version and service.first_decision(call) is None:
        return _first_merge(service, call, info, on, options)
    outcome, counts = _carried_out(
        service, call, lambda made: made.merge_insert(call.rows(), on, options), timeout
    )
    return _told(
        outcome,
        num_updated_rows=counts.get("updated", 0),
        num_inserted_rows=counts.get("inserted", 0),
        num_deleted_rows=counts.get("deleted", 0),
    )


def _first_merge(
    service: Service, call: Call, info: TableInfo, on: Sequence[str], options: MergeOptions
) -> dict[str, Any]:
    """Insert all rows into a table that was only declared: there are none to match."""
    if not options.when_not_matched_insert_all:
        raise TableVersionNotFoundError(
            f"{info.name} is declared and has no version yet; insert rows first, or set "
            "when_not_matched_insert_all"
        )
    check_first_merge(info.name, call.arrow().read_all(), on)
    assert call.stream is not None
    call.stream.seek(0)
    outcome, transaction = _first_rows(service, call, info)
    return {
        "transaction_id": outcome.transaction_id,
        "num_updated_rows": 0,
        "num_inserted_rows": _counts_of(transaction)["inserted"],
        "num_deleted_rows": 0,
        "version": 1,
    }


def update(service: Service, call: Call) -> dict[str, Any]:
    """Set columns to SQL expressions, where a predicate holds."""
    request = call.read(UpdateTableRequest, {"branch", "predicate", "updates"})
    values: dict[str, Any] = {}
    for pair in request.updates:
        if len(pair) != 2 or pair[0] in values:
            raise InvalidInputError(
                f"updates must hold one [column, expression] per column, not {pair}"
            )
        values[pair[0]] = pair[1]
    where = condition("predicate", request.predicate)
    if is_branch(request.branch):
        dataset, found = change_branch(
            service,
            call,
            request.branch,
            lambda dataset: dataset.update(
                {name: whole(sql, name) for name, sql in values.items()},
                whole_condition("predicate", where),
            ),
        )
        return {**answered(dataset), "updated_rows": int(found["num_rows_updated"])}
    outcome, counts = _carried_out(service, call, lambda made: made.update(values, where))
    return _told(outcome, updated_rows=counts.get("updated", 0))


def delete(service: Service, call: Call) -> dict[str, Any]:
    """Delete the rows for which a predicate holds."""
    request = call.read(DeleteFromTableRequest, {"branch", "predicate"})
    condition("predicate", request.predicate, all_rows="use `true`")
    if is_branch(request.branch):
        dataset, found = change_branch(
            service, call, request.branch, lambda dataset: dataset.delete(whole(request.predicate))
        )
        return {**answered(dataset), "num_deleted_rows": int(found["num_deleted_rows"])}
    outcome, counts = _carried_out(service, call, lambda made: made.delete(request.predicate))
    return _told(outcome, num_deleted_rows=counts.get("deleted", 0))


class NeedsRows(BaseException):
    """What is asked can't be told without reading rows. No failure, so nobody puts it in words."""


def count_by_manifest(service: Service, call: Call) -> int:
    """Count the rows of a version as its manifest does; raise NeedsRows if that isn't enough."""
    request = call.read(CountTableRowsRequest, {"version", "branch", "predicate"})
    if condition("predicate", request.predicate) or is_branch(request.branch):
        raise NeedsRows
    info = service.info(call.table)
    version = info.version if request.version is None else request.version
    if not info.version:
        raise NeedsRows
    check_gate(info.location, ())
    rows = service.versions.rows(info, version, service.readable(info, version))
    if rows is None:
        raise NeedsRows
    return rows


def count_rows(service: Service, call: Call) -> int:
    """Count the rows of a version for which a predicate holds."""
    request = call.read(CountTableRowsRequest, {"version", "branch", "predicate"})
    predicate = whole_condition("predicate", request.predicate)
    return read_from(
        service,
        call,
        request.branch,
        request.version,
        lambda dataset: dataset.count_rows(predicate),
    )


def _carried_out(
    service: Service,
    call: Call,
    work: Callable[[Execution], Outcome],
    timeout: float | None = None,
) -> tuple[Outcome, Mapping[str, int]]:
    """Change rows until that is committed; return the outcome and how many rows it was.

    Under an Idempotency-Key, the first answer is given again. If the client named no timeout, only
    the log's answer has one: a large upload, or a search of a large table, takes its time.
    """
    answer_seconds = TIMEOUT_SECONDS if timeout is None else timeout
    first = service.first_decision(call)
    if first is None or first[0].status is not Status.COMMITTED:
        execution = Execution(
            service.log,
            call.table,
            transaction_id=call.key,
            timeout=TIMEOUT_SECONDS_MAX if timeout is None else timeout,
            answer_seconds=answer_seconds,
            properties=keyed(call),
            notes_counts=call.key is not None,
        )
        began = time.monotonic()
        outcome = work(execution)
        service.metrics.outcome(outcome, time.monotonic() - began)
        counts = execution.counts
        # Somebody else may have been faster with the same key.
        first = service.first_decision(call) if outcome.answers is not None else None
    if first is not None:
        outcome, counts = first[0], _counts_of(first[1])
        if writes_rows(outcome):
            deadline = time.monotonic() + answer_seconds
            again = settled(service.log.runtime(), outcome, "readable", deadline)
            outcome, counts = again, again.counts
    call.position = outcome.sequence
    if outcome.status is Status.COMMITTED:
        call.committed = outcome.transaction_id
    return outcome.raise_for_conflict(), counts


def _told(outcome: Outcome, **counts: int) -> dict[str, Any]:
    return {"transaction_id": outcome.transaction_id, "version": outcome.version, **counts}


def _counts_of(transaction: Transaction) -> Mapping[str, int]:
    """Return how many rows a transaction changed, by what it noted, or by the first version."""
    made = transaction.operations[-1]
    if isinstance(made, CreateTableVersion):
        _, fragments, _, _ = contents(parse_message(made.message))
        return {"inserted": sum(fragment.physical_rows for fragment in fragments)}
    return noted_counts(transaction.properties)


def schema_error(error: InvalidTransaction) -> Exception:
    """Return a mistake in the rows' columns by its own code."""
    if isinstance(error, WrongColumns) or error.field == "schema":
        return TableSchemaValidationError(str(error))
    return error
