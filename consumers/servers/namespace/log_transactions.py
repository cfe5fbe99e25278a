"""Transactions over HTTP for programs in any language: one record, any number of tables.

`POST /v1/log/transactions` takes rows as JSON or as an Arrow stream in base64, changes of rows by
SQL, and Lance's own transactions as bytes. All of it is one record: it commits, or nothing does.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pyarrow as pa
from lance_namespace import InvalidInputError
from lance_namespace.errors import TransactionNotFoundError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, StrictStr

from commitlog.adapters.lance_datasets import check_gate
from commitlog.client.commits.catalogue import default_location
from commitlog.client.commits.iceberg_text import (
    check_view_updates,
    number_problem,
    with_type_names,
)
from commitlog.client.commits.session import TransactionBuilder
from commitlog.client.rows.lance_request import parse_message
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.reading import Node, dump_json
from commitlog.core.iceberg.requests import parse_table_commit
from commitlog.core.iceberg.views import is_view_change
from commitlog.model import operations as logged
from commitlog.model.operations import target
from commitlog.model.records import Outcome, Status
from commitlog.model.table import TableId, parse_table_id
from consumers.servers.namespace.arrow_rows import open_rows, rows_of_json
from consumers.servers.namespace.call import Call, id_of_key
from consumers.servers.namespace.service import Service, keyed
from consumers.servers.security.grants import Access
from consumers.servers.security.places import of_update

TIMEOUT_SECONDS_MAX = 300.0
_UNREADABLE = (pa.ArrowException, OSError, OverflowError, TypeError, ValueError)

TableName = StrictStr | list[StrictStr]
_SAID_BY_THE_LOG = ("commitlog.", "context.", "http.", "identity.")
"""What properties of a record begin with that tell who asked for it, and what it is."""


def _check_said(properties: dict[str, str]) -> dict[str, str]:
    for name in properties:
        if name.startswith(_SAID_BY_THE_LOG):
            raise ValueError(
                f"{name!r} is the log's own to say; choose a name that begins with none of "
                f"{', '.join(_SAID_BY_THE_LOG)}"
            )
    return properties


Said = Annotated[dict[StrictStr, StrictStr], AfterValidator(_check_said)]
"""What a request has its record say besides."""


class Strict(BaseModel):
    """A part of a request, which has no other fields than these."""

    model_config = ConfigDict(extra="forbid")


class _OnTable(Strict):
    table: TableName

    def table_id(self) -> TableId:
        return parse_table_id(self.table)

    def check_places(self, service: Service, call: Call) -> None:
        """Refuse what names a place which who asks may not read: rows name none."""


class _Rows(_OnTable):
    rows: list[dict[str, Any]] | None = None
    arrow: StrictStr | None = None
    """An Arrow IPC stream in base64, in the place of `rows`."""

    def data(self, schema: pa.Schema) -> pa.Table:
        """Return the rows, with the table's types where JSON has none."""
        if (self.rows is None) is (self.arrow is None):
            raise InvalidInputError(f"{self.table}: give either rows or arrow")
        try:
            if self.arrow is None:
                return rows_of_json(self.rows or [], schema)
            return open_rows(io.BytesIO(_bytes("arrow", self.arrow)), []).read_all()
        except (InvalidInputError, *_UNREADABLE) as error:
            raise InvalidInputError(f"{self.table}: the rows can't be read: {error}") from error


class Append(_Rows):
    """Add rows."""


class Delete(_OnTable):
    """Delete the rows of a predicate."""

    predicate: Annotated[StrictStr, Field(min_length=1)]


class Update(_OnTable):
    """Set columns to SQL expressions, where a predicate holds."""

    updates: Annotated[dict[StrictStr, StrictStr], Field(min_length=1)]
    predicate: StrictStr | None = None


class MergeInsert(_Rows):
    """Update the rows that match by key, and insert the others."""

    on: Annotated[list[StrictStr], Field(min_length=1)]
    when_matched_update_all: bool = True
    when_not_matched_insert_all: bool = True


class LanceCommitBody(_OnTable):
    """Lance's own transaction, its message in base64."""

    message: StrictStr
    read_version: StrictInt | None = None

    def check_places(self, service: Service, call: Call) -> None:
        """Refuse a message that names a place which who asks may not read."""
        message = parse_message(_bytes("message", self.message))
        bases = [*message.update_bases.new_bases, *message.overwrite.initial_bases]
        named = [base.path for base in bases] + [message.clone.ref_path]
        known = service.find(self.table_id())
        genesis = service.log.runtime().genesis
        home = known.location if known else default_location(genesis, self.table_id(), "new")
        check_gate(home, list(filter(None, named)))


class IcebergChangeBody(_OnTable):
    """A commit to an Iceberg table, or to a view, as Iceberg's REST catalogue takes it.

    With the one requirement `assert-view-create` it makes a view.
    """

    requirements: list[dict[str, Any]] = []
    updates: list[dict[str, Any]]

    def check_places(self, service: Service, call: Call) -> None:
        """Refuse updates that name a place which who asks may not read."""
        named = [place for update in self.updates for place in of_update(update)]
        if named and service.security.is_on:
            home = service.places.home(self.table_id())
            own = [home] if home else []
            for place in named:
                service.places.check(call.principal, self.table_id(), place, own=own)

    def change(self) -> logged.IcebergChange:
        """Return what the log is asked for."""
        with_type_names({"updates": self.updates})
        sent, asked = dump_json(self.requirements), dump_json(self.updates)
        if problem := number_problem(sent.encode()) or number_problem(asked.encode()):
            raise InvalidInputError(problem)
        made = logged.IcebergChange(self.table_id(), sent, asked)
        if is_view_change(made):
            check_view_updates(Node(self.updates, "updates"))
        else:
            body = {"requirements": self.requirements, "updates": self.updates}
            made = parse_table_commit(body, self.table_id()).sent
        return made


Chosen = Append | Delete | Update | MergeInsert | LanceCommitBody | IcebergChangeBody


def _add(one: Chosen, builder: TransactionBuilder, service: Service) -> None:
    """Add an operation to a transaction."""
    table = one.table_id()
    match one:
        case Append():
            builder.append(table, one.data(service.info(table).schema))
        case Delete():
            builder.delete(table, one.predicate)
        case Update():
            builder.update(table, one.updates, one.predicate)
        case MergeInsert():
            builder.merge_insert(
                table,
                one.data(service.info(table).schema),
                one.on,
                when_matched_update_all=one.when_matched_update_all,
                when_not_matched_insert_all=one.when_not_matched_insert_all,
            )
        case LanceCommitBody():
            message = _bytes("message", one.message)
            builder.submit(table, message, read_version=one.read_version)
        case IcebergChangeBody():
            builder.submit(None, one.change())


class Operation(Strict):
    """One of these."""

    append: Append | None = None
    delete: Delete | None = None
    update: Update | None = None
    merge_insert: MergeInsert | None = None
    lance_commit: LanceCommitBody | None = None
    iceberg_change: IcebergChangeBody | None = None

    def chosen(self, index: int) -> Chosen:
        """Return the one that is given."""
        given = [one for one in vars(self).values() if one is not None]
        if len(given) != 1:
            kinds = ", ".join(type(self).model_fields)
            raise InvalidInputError(
                f"operations[{index}] must have exactly one of {kinds}, not {len(given)}"
            )
        found: Chosen = given[0]
        return found


class LogTransactionRequest(Strict):
    """A transaction: all of it commits, or nothing."""

    operations: Annotated[list[Operation], Field(min_length=1)]
    properties: Said = {}
    wait: Literal["committed", "readable"] = "readable"
    timeout_seconds: Annotated[float, Field(gt=0, le=TIMEOUT_SECONDS_MAX)] = 30.0
    identity: dict[str, Any] | None = None
    context: dict[str, Any] | None = None


class OneRecord(Strict):
    """Another request that becomes one record."""

    properties: Said = {}
    timeout_seconds: Annotated[float, Field(gt=0, le=TIMEOUT_SECONDS_MAX)] = 120.0
    identity: dict[str, Any] | None = None
    context: dict[str, Any] | None = None


def submit_transaction(service: Service, call: Call) -> dict[str, Any]:
    """Commit operations on any tables as one record."""
    request = LogTransactionRequest.model_validate(call.fields)
    chosen = [one.chosen(index) for index, one in enumerate(request.operations)]
    for one in chosen:
        call.need(Access.WRITE, one.table_id())
        one.check_places(service, call)

    def commit(**asked: Any) -> Outcome | None:
        with service.log.transact(wait=request.wait, **asked) as builder:
            for index, one in enumerate(chosen):
                try:
                    _add(one, builder, service)
                except (InvalidInputError, Invalid) as error:
                    raise InvalidInputError(f"operations[{index}]: {error}") from error
        return builder.outcome

    return once(service, call, request, commit)


def once(
    service: Service,
    call: Call,
    request: LogTransactionRequest | OneRecord,
    commit: Callable[..., Outcome | None],
) -> dict[str, Any]:
    """Commit a request as one record, or answer as before if its key was used."""
    first = service.first_answer(call)
    if first is not None:
        outcome: Outcome | None = first[0]
    else:
        outcome = commit(
            transaction_id=call.key,
            properties=[*request.properties.items(), *keyed(call)],
            timeout=request.timeout_seconds,
        )
    if outcome is None:
        return {"results": []}  # all of them are as they were
    call.committed, call.position = outcome.transaction_id, outcome.sequence
    return described(outcome)


def describe_log_transaction(service: Service, call: Call) -> dict[str, Any]:
    """Return the outcome of a transaction, by its id or by the key that it was sent under."""
    asked = call.object_id or ""
    ids = dict.fromkeys((asked, id_of_key(asked)))
    found = next(filter(None, map(service.transaction, ids)), None)
    if found is None:
        raise TransactionNotFoundError(f"the log has no outcome of {call.object_id!r} yet")
    outcome, _ = found
    for operation in found[1].operations:
        call.need(Access.READ, target(operation))
    call.position = outcome.sequence
    return described(outcome)


def described(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON."""
    body: dict[str, Any] = {
        "transaction_id": outcome.transaction_id,
        "status": str(outcome.status),
        "sequence": outcome.sequence,
        "attempt": outcome.attempt,
        "time_ms": outcome.time_ms,
        "results": [
            {
                "table": list(result.table),
                "operation": result.operation,
                "version": result.version,
                "rebased_over": result.rebased_over,
            }
            for result in outcome.results
        ],
    }
    if outcome.status is not Status.COMMITTED:
        body |= {"code": str(outcome.code), "message": outcome.message}
        conflict = outcome.conflict
        if conflict is not None:
            body["conflict"] = {
                "rule": conflict.rule,
                "transaction_id": conflict.transaction_id,
                "version": conflict.version,
                "operation": conflict.operation,
            }
    return body


def _bytes(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputError(f"{name} isn't base64: {error}") from error
