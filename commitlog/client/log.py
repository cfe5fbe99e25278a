"""`CommitLog`: a writer's and reader's connection to a log."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from commitlog.adapters.lance_import import import_pylance
from commitlog.client.columns import ChangesColumns
from commitlog.client.commits import catalogue
from commitlog.client.commits.caller import NOBODY, caller
from commitlog.client.commits.names import check_names, checked_principal, pairs
from commitlog.client.commits.properties import ChangesNames
from commitlog.client.habits import KnowsHabits
from commitlog.client.history.positions import When
from commitlog.client.history.roots import BindsPlaces
from commitlog.client.history.snapshot import Reads
from commitlog.client.history.undoing import UndoesChanges
from commitlog.client.leader import arguments
from commitlog.client.leader.row_tickets import RowsWait, settled_if_rows
from commitlog.client.leader.runtime import Runtime, RuntimeSettings
from commitlog.client.leader.tables import TableInfo, Tables, ask_all
from commitlog.client.leader.tickets import RESULT_TIMEOUT_SECONDS, Ticket, Wait, deadline_after
from commitlog.client.row_verbs import WritesRows
from commitlog.client.rows.host import Pairs, TableName
from commitlog.client.rows.lance_request import new_transaction_id
from commitlog.client.rows.opening import Opened, are_readable
from commitlog.errors import LogClosed
from commitlog.model.operations import KeyHashes, Operation
from commitlog.model.records import Application, Expect, Outcome, Transaction
from commitlog.model.table import TableId, parse_table_id
from commitlog.ports import Log
from commitlog.protocol import LOG_NAME_DEFAULT

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

    from commitlog.client.commits.session import TransactionBuilder
    from commitlog.client.commits.submission import AffectedRowsLike
    from commitlog.codecs.lance_schema import SchemaMetadata

CONNECT_TIMEOUT_SECONDS = 30.0
TOKEN_VARIABLE = "COMMITLOG_TOKEN"


@arguments.checks_arguments
class CommitLog(
    Reads, ChangesColumns, UndoesChanges, WritesRows, BindsPlaces, ChangesNames, KnowsHabits
):
    """A connection to a log, and to the tables whose commits it orders.

    Threads may share it. Its methods block: in an event loop, call them by `asyncio.to_thread`, or
    await the tickets of `submit` and `write_rows`. A forked child connects again, but Lance may
    crash there: start children that read or write rows by `spawn`. A program may end without
    closing it; it also closes soon after nothing refers to it or to what it opened.
    """

    def __init__(
        self,
        open_log: Callable[[], Log],
        *,
        principal: str = "",
        settings: RuntimeSettings | None = None,
    ) -> None:
        """Use `connect`; this takes how to open a log, which happens once in each process."""
        if not callable(open_log):
            raise arguments.refusal("open_log", open_log, "Call CommitLog.connect(HOST:PORT)")
        self._open_log = open_log
        self._principal = checked_principal(principal)
        self._settings = settings or RuntimeSettings()
        self._tables = Tables()
        self._runtime: Runtime | None = None
        self._pid, self._is_closed = os.getpid(), False
        self._lock = threading.Lock()
        self.opened, reference = Opened(self.runtime), weakref.ref(self)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: _new_locks(reference()))

    @classmethod
    def connect(
        cls,
        bootstrap_servers: str,
        log: str = LOG_NAME_DEFAULT,
        *,
        principal: str = "",
        token: str = "",
        timeout: float = CONNECT_TIMEOUT_SECONDS,
        **kafka_settings: Any,
    ) -> CommitLog:
        """Connect to the log of this name on a Kafka cluster.

        Kafka's client settings are keywords, with `_` or `.` between words:
        `security_protocol="SASL_SSL"`, or `**settings` of a `dict[str, Any]`. Without a `token`,
        the client uses that of the environment variable COMMITLOG_TOKEN, if the leader needs one.

        Raises Unavailable if the cluster can't be reached, WrongLog if it has no such log, and
        InvalidSettings or InvalidTransaction for invalid arguments.
        """
        from commitlog.adapters.kafka import KafkaLog

        names = {name: name.removeprefix("kafka.").replace("_", ".") for name in kafka_settings}
        settings = {names[name]: str(value) for name, value in kafka_settings.items()}

        def open_log() -> Log:
            return KafkaLog.connect(
                bootstrap_servers, log=log, settings=settings, timeout_seconds=timeout
            )

        connected = cls(
            open_log,
            principal=principal,
            settings=RuntimeSettings(
                token=token or os.environ.get(TOKEN_VARIABLE, ""), request_timeout_seconds=timeout
            ),
        )
        connected.runtime().connection(0)
        return connected

    def __repr__(self) -> str:
        """Show which log this is, and where."""
        runtime = self._runtime
        state = "closed" if self._is_closed else "not connected"
        return f"CommitLog({state if runtime is None else repr(runtime.log)})"

    def runtime(self) -> Runtime:
        """Return this process's part, made on first use."""
        runtime = self._runtime
        if runtime is not None and self._pid == os.getpid():
            return runtime
        with self._lock:
            if self._pid != os.getpid():
                self._after_fork()
            if self._is_closed:
                raise LogClosed
            if self._runtime is None:
                is_readable = partial(are_readable, self._tables)
                self._runtime = Runtime(self._open_log(), self._settings, is_readable)
            return self._runtime

    def create_table(
        self,
        table_id: TableName,
        schema: pa.Schema,
        *,
        location: str | os.PathLike[str] | None = None,
        primary_key: str | Sequence[str] | None = None,
        policy: str = "every",
        stable_row_ids: bool = False,
        properties: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        exist_ok: bool = False,
        timeout: float = RESULT_TIMEOUT_SECONDS,
    ) -> Outcome:
        """Create an empty table at version 1; TableAlreadyExists unless `exist_ok`.

        With `exist_ok`, a table that exists stays as it is. It must take rows of this schema, and
        have this `primary_key` if one is given; its policy and properties may differ.

        The policy `every` writes a manifest file for each version, `latest` only for the newest.
        `primary_key` makes concurrent writes of one key conflict; it doesn't keep keys unique.
        `storage_options` are pylance's. Only this process uses them; they are never recorded.
        """
        operation = catalogue.create_table(
            self.runtime().genesis,
            parse_table_id(table_id),
            schema,
            location=location,
            primary_key=primary_key,
            policy=policy,
            stable_row_ids=stable_row_ids,
            properties=properties,
            storage_options=storage_options,
            exist_ok=exist_ok,
        )
        return catalogue.change(self, self._tables, operation, timeout, storage_options, schema)

    def register_table(
        self,
        table_id: TableName,
        location: str | os.PathLike[str],
        *,
        policy: str = "every",
        primary_key: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        timeout: float = RESULT_TIMEOUT_SECONDS,
    ) -> Outcome:
        """Take over an existing Lance dataset at its newest version."""
        operation = catalogue.register_table(
            parse_table_id(table_id),
            location,
            policy=policy,
            primary_key=primary_key,
            properties=properties,
            storage_options=storage_options,
        )
        return catalogue.change(self, self._tables, operation, timeout)

    def drop_table(
        self,
        table_id: TableName,
        *,
        missing_ok: bool = False,
        timeout: float = RESULT_TIMEOUT_SECONDS,
    ) -> Outcome | Any:
        """Drop a table; its files may be removed later.

        If there is no such table, raise NoSuchTable, or return None with `missing_ok`.
        """
        made = catalogue.drop_table(self, parse_table_id(table_id), missing_ok)
        return None if made is None else catalogue.change(self, self._tables, made, timeout)

    def tables(self) -> list[TableInfo]:
        """Return all tables, by name, without their schemas."""
        return ask_all(self.runtime())

    def table(self, table_id: TableName) -> TableInfo:
        """Return a table's description at its head; NoSuchTable suggests similar names."""
        return self._tables.ask(self.runtime(), parse_table_id(table_id))

    @arguments.checks_itself
    def submit(
        self,
        table_id: TableName | None,
        operation: Any,
        *,
        read_version: int | None = None,
        transaction_id: str | None = None,
        attempt: int = 0,
        affected_rows: AffectedRowsLike | None = None,
        inserted_keys: KeyHashes | None = None,
        schema_metadata: SchemaMetadata | None = None,
        application: Application | None = None,
        properties: Pairs = (),
        expects: Sequence[Expect] = (),
        dry_run: bool = False,
    ) -> Ticket:
        """Append one operation as a transaction and return at once.

        One of `lance.LanceOperation`, a `lance.Transaction` (whose uuid is its id), the bytes of
        one, or of this package's own. Name the `read_version` that its files were written for (by
        default the newest). What is certain to be refused raises, and nothing is appended.
        """
        from commitlog.client.commits.append_records import submit_append
        from commitlog.client.commits.submission import as_operations

        more = transaction_id or attempt or affected_rows or application or properties or expects
        is_plain = not (more or dry_run) and inserted_keys is None and schema_metadata is None
        is_plain = is_plain and (read_version is None or type(read_version) is int)
        if is_plain and table_id is not None and caller() is NOBODY:
            ticket = submit_append(self, table_id, operation, read_version, self._principal)
            if ticket is not None:
                return ticket
        of_operation: dict[str, Any] = {
            "read_version": read_version,
            "transaction_id": transaction_id,
            "affected_rows": affected_rows,
            "inserted_keys": inserted_keys,
            "schema_metadata": schema_metadata,
        }
        of_record: dict[str, Any] = {"attempt": attempt, "application": application}
        of_record |= {"properties": properties, "expects": expects}
        given = {"table_id": table_id, **of_operation, **of_record, "dry_run": dry_run}
        arguments.check_arguments(CommitLog.submit, given)
        built, chosen, is_new = as_operations(self, table_id, operation, **of_operation)
        transaction = self.transaction(built, transaction_id=chosen, **of_record)
        if dry_run:
            return catalogue.dry_run(self.runtime(), transaction)
        return self.runtime().submit(transaction, id_is_new=is_new)

    def transact(
        self,
        *,
        transaction_id: str | None = None,
        application: Application | None = None,
        properties: Pairs = (),
        expects: Sequence[Expect] = (),
        timeout: float = RESULT_TIMEOUT_SECONDS,
        wait: Wait = "readable",
    ) -> TransactionBuilder:
        """Collect operations on any tables and commit them as one record at the end of the block.

        At its end, the block waits for the outcome and raises if it isn't committed. If an
        exception leaves the block, nothing is submitted.
        """
        from commitlog.client.commits.session import TransactionBuilder

        return TransactionBuilder(
            self,
            transaction_id=transaction_id,
            application=application,
            properties=pairs(properties),
            expects=tuple(expects),
            timeout=timeout,
            wait=wait,
        )

    def open(
        self, table_id: TableName, version: int | None = None, *, fresh: bool = False,
        position: When = None,
    ) -> lance.LanceDataset:  # fmt: skip
        """Open a version (the head by default) to read and write, or a `fresh` view to read."""
        import_pylance()
        from commitlog.client.managed import opened

        if fresh or position is not None:
            return self.open_fresh(table_id, version, position, fresh=fresh)
        info = self.table(table_id)
        return opened(self, self._tables, info, version, self._principal)

    def outcome(
        self,
        transaction_id: str,
        timeout: float = RESULT_TIMEOUT_SECONDS,
        wait: RowsWait = "committed",
    ) -> Outcome:
        """Ask for the outcome of any transaction; OutcomeUnknown if none comes in time."""
        deadline = deadline_after(timeout)
        ticket = self.runtime().watch(transaction_id)
        try:
            outcome = ticket.result(timeout, "committed" if wait == "accepted" else wait)
        finally:
            self.runtime().forget(ticket)
        return settled_if_rows(self.runtime(), outcome, wait, deadline)

    def close(self, timeout: float = 5.0) -> None:
        """Send submitted transactions to Kafka, then end threads and connections.

        All calls then raise LogClosed, waiting ones too; those for a commit OutcomeUnknown.
        """
        with self._lock:
            self._is_closed = True
            runtime, self._runtime = self._runtime, None
        if runtime is not None and self._pid == os.getpid():  # a forked child has the parent's
            runtime.close(timeout)

    def __enter__(self) -> CommitLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @arguments.checks_itself
    def describe(self, table: TableId, *, fresh: bool, readable: bool = False) -> TableInfo:
        """Return a table's description, from the leader if `fresh`, else perhaps from memory."""
        known = None if fresh or self._is_closed else self._tables.known(table)
        return known or self._tables.ask(self.runtime(), table, readable=readable)

    def ask_table(self, table: TableId) -> tuple[TableInfo | None, Callable[[], TableInfo]]:
        """Ask for a table's description; return what it likely is, and what waits for the answer.

        The guess is what the leader said the last two times, None if it said two things.
        """
        return self._tables.settled(table), self._tables.asked(self.runtime(), table)

    def transaction(
        self,
        operations: tuple[Operation, ...],
        *,
        transaction_id: str | None = None,
        attempt: int = 0,
        application: Application | None = None,
        properties: Pairs = (),
        expects: Sequence[Expect] = (),
        payloads: tuple[bytes, ...] = (),
    ) -> Transaction:
        """Make a transaction of operations, under a new id if none is given."""
        who = caller()
        said = (*who.properties, *pairs(properties)) if properties else who.properties
        check_names(operations, said, application, transaction_id or "")
        return Transaction(
            transaction_id or new_transaction_id(),
            operations,
            attempt=attempt,
            principal=who.principal or self._principal,
            submitted_at_ms=catalogue.now_ms(),
            application=application,
            properties=said,
            # A name as text would be taken for the path of its characters.
            expects=tuple(replace(one, table=parse_table_id(one.table)) for one in expects),
            payloads=payloads,
        )

    def _after_fork(self) -> None:
        """Drop references to the parent's threads and sockets without closing them."""
        self._runtime, self._pid = None, os.getpid()
        self._tables, self.opened = Tables(), Opened(self.runtime)


def _new_locks(log: CommitLog | None) -> None:
    if log is not None:  # a forked child waits for no thread that its parent has
        log._lock = threading.Lock()
        log._tables.renew_locks()
        log.opened.renew_locks()
