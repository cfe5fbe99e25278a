"""Creates, registers and drops tables, and checks what callers say about them."""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from commitlog.adapters.lance_datasets import open_dataset, stored_schema
from commitlog.adapters.places import bound, recorded
from commitlog.adapters.storage import local_path, store_for
from commitlog.adapters.storage_options import FILE_NAMED_BY, use_storage_options
from commitlog.client.leader.runtime import Runtime
from commitlog.client.leader.tables import TableInfo, Tables
from commitlog.client.leader.tickets import Ticket, Wait
from commitlog.client.rows.host import Host, Pairs
from commitlog.client.rows.opening import canonical_path
from commitlog.codecs.avro import decode_outcome_record, encode_transaction
from commitlog.errors import (
    CorruptLog,
    InvalidRequest,
    InvalidSettings,
    InvalidTransaction,
    NoSuchTable,
    NoSuchVersion,
    TableAlreadyExists,
    Unavailable,
    WrongColumns,
)
from commitlog.lancepb.file_pb2 import Field
from commitlog.messages import NO_SUCH_REQUEST, NamespaceDescription, base64_text
from commitlog.model.maintenance_policy import MaintenancePolicy
from commitlog.model.operations import (
    CreateTable,
    DropTable,
    Operation,
    Properties,
    RegisterTable,
)
from commitlog.model.records import Code, Genesis, Outcome, Transaction, found_standing
from commitlog.model.table import Policy, TableId, format_table_id

if TYPE_CHECKING:
    import pyarrow as pa

    from commitlog.codecs.lance_schema import SchemaMetadata

Change = CreateTable | RegisterTable | DropTable

DATA_STORAGE_VERSION = "2.2"
"""What pylance 14 writes by default."""
_FOLDER_CHARACTERS_MAX = 100
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def create_table(
    genesis: Genesis,
    table: TableId,
    schema: pa.Schema,
    *,
    location: str | os.PathLike[str] | None,
    primary_key: str | Sequence[str] | None,
    policy: str,
    stable_row_ids: bool,
    properties: Mapping[str, str] | None,
    storage_options: Mapping[str, str] | None,
    exist_ok: bool,
) -> CreateTable:
    """Make the operation that creates a table."""
    import pyarrow as pa

    if not isinstance(schema, pa.Schema) or not len(schema):
        given = "" if isinstance(schema, pa.Schema) else f", not {type(schema).__name__}"
        raise InvalidTransaction(
            f"a table needs a pyarrow.Schema with at least one column{given}",
            field="schema",
            value=schema,
            advice="Pass pa.schema([...]), or pa.table(rows).schema of rows that you then append",
        )
    from commitlog.client.accepted.row_writes import check_by_log

    key = _key(primary_key, schema)
    check_by_log(properties or {})
    fields, metadata = _stored_fields(schema)
    incarnation = str(uuid4())
    place = _location(location) or default_location(genesis, table, incarnation)
    reach(place, storage_options)
    return CreateTable(
        table=table,
        incarnation=incarnation,
        location=place,
        fields=tuple(field.SerializeToString(deterministic=True) for field in fields),
        schema_metadata=metadata,
        primary_key=key,
        policy=_policy(policy),
        stable_row_ids=stable_row_ids,
        data_storage_version=DATA_STORAGE_VERSION,
        properties=checked_properties(table, properties),
        exist_ok=exist_ok,
    )


def _stored_fields(schema: pa.Schema) -> tuple[list[Field], SchemaMetadata]:
    from commitlog.codecs.lance_schema import schema_fields

    schema_fields(schema)  # refuses names that Lance can't carry
    try:
        stored = stored_schema(schema, DATA_STORAGE_VERSION)
    except (ValueError, OSError) as error:
        raise InvalidTransaction(
            f"Lance cannot store this schema: {error}", field="schema", value=schema
        ) from error
    return schema_fields(stored)


def default_location(genesis: Genesis, table: TableId, incarnation: str) -> str:
    """Return where a table goes unless its caller says: under the log's root, uuid in the path."""
    if not genesis.tables_root:
        raise InvalidTransaction(
            f"the log {genesis.log} has no root for tables",
            field="location",
            advice="Pass location=, an absolute path of a folder that doesn't exist",
        )
    # The incarnation makes the path unique, so a long name can be cut.
    *folders, name = (_UNSAFE.sub("_", part)[:_FOLDER_CHARACTERS_MAX] for part in table)
    path = "/".join([*(f"{folder}.ns" for folder in folders), f"{name}-{incarnation}.lance"])
    return f"{genesis.tables_root.rstrip('/')}/{path}"


def register_table(
    table: TableId,
    location: str | os.PathLike[str],
    *,
    policy: str,
    primary_key: str | Sequence[str] | None,
    properties: Mapping[str, str] | None,
    storage_options: Mapping[str, str] | None = None,
) -> RegisterTable:
    """Make the operation that takes over a dataset, at the newest version it has now."""
    path = _location(location) or ""
    reach(path, storage_options)
    root = local_path(path)
    try:
        if root is not None:
            root.stat()  # refuses a name that is too long; pylance takes a minute, or hangs
        dataset = open_dataset(path)
    except (ValueError, OSError) as error:
        raise InvalidTransaction(
            f"no Lance dataset can be opened at {location!r}: {error}",
            field="location",
            value=location,
            advice="Pass the path of an existing dataset, or create_table() for a new one",
        ) from error
    version = dataset.version
    manifest_path = canonical_path(path, version)
    if manifest_path is None:
        raise NoSuchVersion(f"version {version} of {location} has no manifest")
    return RegisterTable(
        table=table,
        incarnation=str(uuid4()),
        location=path,
        version=version,
        manifest_path=manifest_path,
        policy=_policy(policy),
        primary_key=_key(primary_key, dataset.schema),
        properties=checked_properties(table, properties),
    )


def drop_table(log: Host, table: TableId, missing_ok: bool) -> DropTable | None:
    """Make the operation that drops the table as it stands now."""
    try:
        info = log.describe(table, fresh=True)
    except NoSuchTable:
        if missing_ok:
            return None
        raise
    return DropTable(table, info.incarnation)


def change(
    log: Host,
    tables: Tables,
    operation: Change,
    timeout: float,
    storage_options: Mapping[str, str] | None = None,
    schema: pa.Schema | None = None,
) -> Outcome:
    """Commit a change of the catalogue; raise the error of a refusal (see `raise_for_table`).

    Raise TableAlreadyExists if a table was found that can't serve a creation with this schema.
    """
    if not isinstance(operation, DropTable):
        check_leader_reaches(log.runtime(), operation.table, operation.location)
    try:
        outcome = commit(log, (operation,), timeout)
    finally:
        tables.forget(operation.table)
    if storage_options and outcome.results:
        # With `exist_ok` it may stand elsewhere.
        reach(outcome.results[0].location, storage_options)
    if schema is not None and outcome.results and found_standing(operation, outcome.results[0]):
        with suppress(NoSuchTable):  # dropped since: the creation found it, and that is the answer
            _check_serves(tables.ask(log.runtime(), operation.table), schema, operation)
    return outcome


def _check_serves(standing: TableInfo, schema: pa.Schema, wanted: Change) -> None:
    """Raise TableAlreadyExists for a table that rows of a schema don't fit, or with another key."""
    from commitlog.adapters.row_contract import check_columns

    problem = ""
    try:
        check_columns(schema, standing.schema, standing.name)
    except WrongColumns as error:
        problem = str(error)
    key = wanted.primary_key if isinstance(wanted, CreateTable) else ()
    # A table that Lance made has its key in its schema.
    in_schema = [one.name for one in standing.field_ids.values() if one.unenforced_primary_key]
    its_key = standing.primary_key or tuple(in_schema)
    if key and {*key} != {*its_key}:
        problem = problem or f"its primary key is {its_key}, not {key}"
    if problem:
        raise TableAlreadyExists(f"table {standing.name} already exists, and differs: {problem}")


def commit(
    log: Host,
    operations: Sequence[Operation],
    timeout: float,
    *,
    properties: Pairs = (),
    transaction_id: str | None = None,
    wait: Wait = "readable",
) -> Outcome:
    """Commit operations of the catalogue; raise the error of a refusal (see `raise_for_table`)."""
    transaction = log.transaction(
        tuple(operations), transaction_id=transaction_id, properties=properties
    )
    ticket = log.runtime().submit(transaction, id_is_new=transaction_id is None)
    return raise_for_table(ticket.result(timeout, wait))


def raise_for_table(outcome: Outcome) -> Outcome:
    """Return a committed outcome; else raise TableAlreadyExists, NoSuchTable or a conflict."""
    if outcome.code in (Code.TABLE_EXISTS, Code.LOCATION_TAKEN):
        raise TableAlreadyExists(f"{_as_bound(outcome)}.")
    if outcome.code is Code.NO_SUCH_TABLE:
        raise NoSuchTable(outcome.message)
    return outcome.raise_for_conflict()


def _as_bound(outcome: Outcome) -> str:
    """Return why an outcome was refused, with the place that it names as it is here."""
    arguments = outcome.reason.phrase().arguments if outcome.reason is not None else {}
    place = str(arguments.get("location", ""))
    return outcome.message.replace(place, bound(place)) if place else outcome.message


def dry_run(runtime: Runtime, transaction: Transaction) -> Ticket:
    """Have the leader decide a transaction without committing it."""
    encoded = base64_text(encode_transaction(transaction))
    partition = runtime.partition_of(transaction)
    answer = runtime.request(
        partition, "dry_run", transaction=encoded, transaction_id=transaction.transaction_id
    )
    outcome = decode_outcome_record(base64.b64decode(answer["outcome"]))
    if not isinstance(outcome, Outcome):
        raise CorruptLog("the leader answered a dry run with a record that is not an outcome")
    ticket = Ticket(transaction, lambda *_: None)
    ticket.deliver(outcome, True)
    return ticket


def log_properties(runtime: Runtime) -> Mapping[str, str]:
    """Return the log's own properties: those of the root of its namespaces."""
    for entry in map(NamespaceDescription.from_json, runtime.request(0, "namespaces", alone=True)):
        if not entry.namespace:
            return entry.properties
    return {}


def now_ms() -> int:
    """Return the writer's clock in milliseconds, as a record carries it."""
    return time.time_ns() // 1_000_000


def _location(location: str | os.PathLike[str] | None) -> str | None:
    if location is None:
        return None
    path = local_path(named := os.fspath(location))
    return recorded(named if path is None else os.path.abspath(path))


def _policy(policy: str) -> Policy:
    try:
        return Policy(policy)
    except ValueError:
        raise InvalidTransaction(
            f"policy {policy!r} is unknown",
            field="policy",
            value=policy,
            advice=f"Use one of {[str(known) for known in Policy]}",
        ) from None


def _key(primary_key: str | Sequence[str] | None, schema: pa.Schema) -> tuple[str, ...]:
    key = (primary_key,) if isinstance(primary_key, str) else tuple(primary_key or ())
    unknown = [name for name in key if schema.get_field_index(name) < 0]
    if unknown or len(set(key)) != len(key):
        raise InvalidTransaction(
            f"the primary key {key} names a column twice, or a column that is not in the schema",
            field="primary_key",
            value=key,
            advice=f"Use some of {', '.join(schema.names)}",
        )
    return key


def checked_properties(table: TableId, properties: Mapping[str, str] | None) -> Properties:
    """Return a table's or namespace's properties; InvalidRequest for a wrong policy among them."""
    given = {str(key): str(value) for key, value in (properties or {}).items()}
    check_policy(format_table_id(table), given)
    return tuple(sorted(given.items()))


def check_policy(whose: str, properties: Mapping[str, str]) -> None:
    """Raise InvalidRequest if the properties hold an invalid maintenance policy."""
    try:
        MaintenancePolicy.of_properties(whose, properties)
    except InvalidSettings as error:
        raise InvalidRequest(str(error), field="properties") from None


def reach(location: str, options: Mapping[str, str] | None) -> None:
    """Reach a location with these options from now on; InvalidTransaction if they are invalid."""
    if options:
        use_storage_options(location, options)
    try:
        store_for(location)
    except InvalidSettings as error:
        use_storage_options(location, {})
        raise InvalidTransaction(
            str(error),
            field="storage_options",
            advice=(
                "Nothing was changed; pass the storage options that pylance accepts for this store"
            ),
        ) from error


def check_leader_reaches(runtime: Runtime, table: TableId, location: str) -> None:
    """Raise Unavailable if the leader of a table can't reach its location; local ones pass.

    It would commit the table and never write its files. Its storage options are its own: a record
    holds none.
    """
    if local_path(location) is not None:
        return
    partition = runtime.domains.partition(table)
    try:
        problem = runtime.request(partition, "reach", location=location)["problem"]
    except InvalidRequest as error:
        if NO_SUCH_REQUEST not in str(error):
            raise
        return  # a leader of before there was the question
    if problem:
        raise Unavailable(
            f"the leader can't reach {location}, so {format_table_id(table)} was not made: "
            f"{problem} Configure the location under [stores] in the storage file of every "
            f"process of the log ({FILE_NAMED_BY}); options passed to this call apply to this "
            "process only"
        )
