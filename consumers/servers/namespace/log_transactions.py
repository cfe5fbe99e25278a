"""Transactions over HTTP for programs in any language: one record, any number of tables.

`POST /v1/log/transactions` takes rows as JSON or as an Arrow stream in base64, changes of rows by
SQL, and Lance's own transactions as bytes. All of it is one record: it commits, or nothing does.
"""

from __future__ import annotations

import base64
import binascii
import io
from math import isfinite
from typing import Annotated, Any, Literal

import pyarrow as pa
from lance_namespace import InvalidInputError
from lance_namespace.errors import TransactionNotFoundError
from pyarrow import types
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
from consumers.servers.namespace.arrow_rows import open_rows
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
                return _table(self.rows or [], schema)
            return open_rows(io.BytesIO(_bytes("arrow", self.arrow)), []).read_all()
        except (InvalidInputError, *_UNREADABLE) as error:
            raise InvalidInputError(f"{self.table}: the rows can't be read: {error}") from error


class Append(_Rows):
    """Add rows."""

    def add_to(self, builder: TransactionBuilder, service: Service) -> None:
        """Add this to a transaction."""
        builder.append(self.table_id(), self.data(service.info(self.table_id()).schema))


class Delete(_OnTable):
    """Delete the rows of a predicate."""

    predicate: Annotated[StrictStr, Field(min_length=1)]

    def add_to(self, builder: TransactionBuilder, service: Service) -> None:
        """Add this to a transaction."""
        builder.delete(self.table_id(), self.predicate)


class Update(_OnTable):
    """Set columns to SQL expressions, where a predicate holds."""

    updates: Annotated[dict[StrictStr, StrictStr], Field(min_length=1)]
    predicate: StrictStr | None = None

    def add_to(self, builder: TransactionBuilder, service: Service) -> None:
        """Add this to a transaction."""
        builder.update(self.table_id(), self.updates, self.predicate)


class MergeInsert(_Rows):
    """Update the rows that match by key, and insert the others."""

    on: Annotated[list[StrictStr], Field(min_length=1)]
    when_matched_update_all: bool = True
    when_not_matched_insert_all: bool = True

    def add_to(self, builder: TransactionBuilder, service: Service) -> None:
        """Add this to a transaction."""
        rows = self.data(service.info(self.table_id()).schema)
        builder.merge_insert(
            self.table_id(),
            rows,
            self.on,
            when_matched_update_all=self.when_matched_update_all,
            when_not_matched_insert_all=self.when_not_matched_insert_all,
        )


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

    def add_to(self, builder: TransactionBuilder, service: Service) -> None:
        """Add this to a transaction."""
        message = _bytes("message", self.message)
        builder.submit(self.table_id(), message, read_version=self.read_version)


class IcebergChangeBody(_OnTable):
    """A commit to an Iceberg table, or to a view, as Iceberg's REST catalogue takes it.

    With the one requirement `assert-view-create` it makes a view.
    """

    requirements: list[dict[str, Any]] = []
    updates: list[dict[str, Any]]

    def check_places(self, service: Service, call: Call) -> None:
        """Refuse updates that name a place which who asks may not read."""
        named = [place for update in self.updates for place in of_update(update)]
        if named and service.table_places.is_on:
            home = service.table_places.home(self.table_id())
            own = [home] if home else []
            for place in named:
                service.table_places.check(call.principal, self.table_id(), place, own=own)

    def add_to(self, builder: TransactionBuilder, service: Service) -> None:
        """Add this to a transaction."""
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
        builder.submit(None, made)


Chosen = Append | Delete | Update | MergeInsert | LanceCommitBody | IcebergChangeBody


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


def submit_transaction(service: Service, call: Call) -> dict[str, Any]:
    """Commit operations on any tables as one record."""
    request = LogTransactionRequest.model_validate(call.fields)
    chosen = [one.chosen(index) for index, one in enumerate(request.operations)]
    for one in chosen:
        call.need(Access.WRITE, one.table_id())
        one.check_places(service, call)
    found = service.first_answer(call)
    if found is not None:
        call.committed, call.position = found[0].transaction_id, found[0].sequence
        return described(found[0])
    builder = service.log.transact(
        transaction_id=call.key,
        properties=[*request.properties.items(), *keyed(call)],
        timeout=request.timeout_seconds,
        wait=request.wait,
    )
    with builder:
        for index, one in enumerate(chosen):
            try:
                one.add_to(builder, service)
            except (InvalidInputError, Invalid) as error:
                raise InvalidInputError(f"operations[{index}]: {error}") from error
    outcome = builder.outcome
    assert outcome is not None
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


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return rows of JSON: each column as the table has it, and null where a row lacks it."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    unknown = [name for name in names if name not in schema.names]
    if unknown or not rows:
        raise InvalidInputError(
            f"the rows have the columns {unknown[:5]}, which the table doesn't have; it has "
            f"{schema.names}"
            if rows
            else "no rows are given"
        )
    for name in names:
        kind = schema.field(name).type
        wrong = next((row[name] for row in rows if name in row and _loses(row[name], kind)), None)
        if wrong is not None:
            raise InvalidInputError(
                f"column {name!r} is {kind}, which can't hold all of {str(wrong)[:100]}"
            )
    return pa.Table.from_pylist(rows, schema=pa.schema([schema.field(name) for name in names]))


def _loses(value: Any, kind: pa.DataType) -> bool:
    """Return True if Arrow would keep less than JSON says: it leaves things out without a word.

    These are fractions, fields of a struct that it doesn't have, and texts where lists belong.
    """
    if value is None:
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return _loses(value, kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _loses(value, kind.value_type)
    if isinstance(value, bool):
        return bool(types.is_floating(kind))
    if isinstance(value, int | float) and (most := _FLOATS_END.get(kind)) and isfinite(value):
        return abs(value) >= most
    if isinstance(value, float):
        return not value.is_integer() and bool(types.is_integer(kind) or types.is_temporal(kind))
    if types.is_struct(kind):
        known = {field.name: field.type for field in kind}
        return not isinstance(value, dict) or any(
            name not in known or _loses(part, known[name]) for name, part in value.items()
        )
    if types.is_map(kind):
        return _loses_pairs(value, kind)
    if types.is_nested(kind) and not types.is_union(kind):
        return not isinstance(value, list) or any(_loses(part, kind.value_type) for part in value)
    return False


def _loses_pairs(value: Any, kind: pa.MapType) -> bool:
    """Return the same for a map: an object, or a list of `{"key": ..., "value": ...}`."""
    if isinstance(value, dict):
        return any(_loses(part, kind.item_type) for part in value.values())
    return not isinstance(value, list) or any(
        not isinstance(pair, dict)
        or pair.keys() != {"key", "value"}
        or _loses(pair["key"], kind.key_type)
        or _loses(pair["value"], kind.item_type)
        for pair in value
    )


_FLOATS_END = {pa.float16(): 65520.0, pa.float32(): 3.4028235677973366e38}
"""From where on they have infinity for a number."""
