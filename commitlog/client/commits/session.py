"""Operations on many tables, collected into one transaction.

Adding an operation reads rows and writes files, from the head at that moment; nothing is appended
before the end of the block. The transaction is not retried automatically: rows read from one
table may have determined rows written to another, and only the caller knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Unpack

from commitlog.client.accepted.row_writes import key_of, made_write
from commitlog.client.commits.submission import AffectedRowsLike, as_operation, prepared_commit
from commitlog.client.leader.arguments import check_options, checks_arguments
from commitlog.client.leader.row_tickets import settled_if_rows
from commitlog.client.leader.tables import TableInfo
from commitlog.client.leader.tickets import Ticket, Wait, deadline_after, in_time
from commitlog.client.rows import direct
from commitlog.client.rows.data import rows_reader, rows_table
from commitlog.client.rows.host import Host, TableName
from commitlog.client.rows.lance_request import new_transaction_id
from commitlog.client.rows.merging import DEFAULTS, MergeOptions
from commitlog.client.rows.options import MergeChoices, UpsertChoices
from commitlog.client.rows.rows import NOTHING_APPENDED, Prepared, prepare_append, remove_files
from commitlog.errors import InvalidRequest, InvalidTransaction
from commitlog.model.operations import KeyHashes, Operation
from commitlog.model.records import Application, Code, Expect, Outcome, Status
from commitlog.model.table import parse_table_id


@checks_arguments
class TransactionBuilder:
    """The value of `with CommitLog.transact()`: add operations, then leave the block.

    None of them sees the rows that another one adds, changes or deletes.

    ```python
    with log.transact() as t:
        t.append("shop$orders", {"id": [4], "amount": [4.0]})
        t.update("shop$orders", {"amount": 0.0}, "id = 7")
    ```
    """

    def __init__(
        self,
        log: Host,
        *,
        transaction_id: str | None,
        application: Application | None,
        properties: tuple[tuple[str, str], ...],
        expects: tuple[Expect, ...],
        timeout: float,
        wait: Wait,
    ) -> None:
        self._log = log
        self.transaction_id = transaction_id or new_transaction_id()
        self._id_is_new = transaction_id is None
        self._application = application
        self._properties = properties
        self._expects = list(expects)
        self._timeout = timeout
        self._wait: Wait = wait
        self._operations: list[Operation] = []
        self._payloads: tuple[bytes, ...] = ()
        self._written: list[tuple[TableInfo, Prepared]] = []
        # For type checkers `| Any` instead of `| None`: few blocks may be empty, and the others'
        # callers needn't ask for None.
        self.ticket: Ticket | Any = None
        """Of the transaction, once the block has ended."""
        self.outcome: Outcome | Any = None
        """What the transaction ended as; None before the end, and of a block that added nothing."""
        self._is_over = False

    def expect(self, expectation: Expect) -> None:
        """Add a precondition of the whole transaction."""
        self._check_open()
        self._expects.append(expectation)

    @property
    def _deadline(self) -> float:
        """When a call that begins now has to have its answers."""
        return deadline_after(self._timeout)

    @in_time
    def submit(
        self,
        table_id: TableName | None,
        operation: Any,
        *,
        read_version: int | None = None,
        affected_rows: AffectedRowsLike | None = None,
        inserted_keys: KeyHashes | None = None,
    ) -> None:
        """Add one operation, as in `CommitLog.submit`."""
        self._check_open()
        built, _, _ = as_operation(
            self._log,
            table_id,
            operation,
            read_version=read_version,
            transaction_id=self.transaction_id,
            affected_rows=affected_rows,
            inserted_keys=inserted_keys,
        )
        self._operations.append(built)

    @in_time
    def append(self, table_id: TableName, data: Any) -> None:
        """Add rows to a table."""
        self._check_open()
        info = self._log.describe(parse_table_id(table_id), fresh=True)
        rows = rows_reader(data, info.schema, info.name)
        self._add(info, prepare_append(info, self._log.opened.for_writing(info), rows))

    @in_time
    def delete(self, table_id: TableName, predicate: str) -> None:
        """Delete rows of a table."""
        info = self._head(table_id)
        self._add(info, direct.delete(info, self._log.opened, predicate))

    @in_time
    def update(
        self, table_id: TableName, values: Mapping[str, Any], where: str | None = None
    ) -> None:
        """Set columns of rows of a table."""
        info = self._head(table_id)
        self._add(info, direct.update(info, self._log.opened, values, where))

    @in_time
    def merge_insert(
        self,
        table_id: TableName,
        data: Any,
        on: str | Sequence[str] | None = None,
        **options: Unpack[MergeChoices],
    ) -> None:
        """Join rows with a table by key, as `CommitLog.merge_insert`, with `MergeOptions`."""
        info = self._head(table_id)
        source = rows_table(data, info.schema, info.name)
        keys = key_of(info, on)
        check_options(options, MergeChoices.__annotations__)
        merge = MergeOptions(**options) if options else DEFAULTS
        self._add(info, direct.merge(info, self._log.opened, source, keys, merge))

    @in_time
    def write_rows(
        self,
        table_id: TableName,
        data: Any,
        *,
        mode: str = "append",
        on: str | Sequence[str] | None = None,
        **options: Unpack[UpsertChoices],
    ) -> None:
        """Put rows directly into the record, like `CommitLog.write_rows`.

        They are accepted with the whole transaction, and applied to their table afterwards.
        """
        self._check_open()
        table = parse_table_id(table_id)
        identity = self.transaction_id
        operation, payloads = made_write(self._log, table, data, mode, on, options, identity)
        self._operations.append(operation)
        self._payloads += payloads

    def __enter__(self) -> TransactionBuilder:
        self._check_open()
        return self

    def _check_open(self) -> None:
        """Refuse what comes after the block: its record is sent, and nothing would follow it."""
        if self._is_over:
            raise InvalidRequest(
                f"the block of transaction {self.transaction_id} has ended",
                field="transaction_id",
                value=self.transaction_id,
                advice="Call log.transact() again for another transaction",
            )

    @in_time
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Submit and wait, unless the block failed; raise unless committed."""
        self._is_over = True
        if kind is not None:
            self._remove_files()
            return
        if not self._operations:
            return
        deadline = self._deadline
        try:
            outcome = self.outcome = self._submitted()
        except NOTHING_APPENDED:
            self._remove_files()
            raise
        if outcome.status is not Status.COMMITTED and outcome.code is not Code.ID_REUSED:
            # Else another program's record was refused, and this one's may be the first.
            self._remove_files()
        self._check_tables(outcome)
        # Rows that are refused later leave the record's commits as they are.
        self.outcome = settled_if_rows(self._log.runtime(), outcome, self._wait, deadline)
        self.outcome.raise_for_conflict()

    def _submitted(self) -> Outcome:
        transaction = self._log.transaction(
            tuple(self._operations),
            transaction_id=self.transaction_id,
            application=self._application,
            properties=self._properties,
            expects=self._expects,
            payloads=self._payloads,
        )
        # Files differ each time a block is repeated under its id: what was committed first counts.
        self.ticket = self._log.runtime().submit(
            transaction, id_is_new=self._id_is_new, any_content=bool(self._written)
        )
        return self.ticket.result(self._timeout, self._wait)

    def _check_tables(self, outcome: Outcome) -> None:
        """Refuse the commit of an earlier block on other tables, which isn't this one's answer."""
        made = {result.incarnation for result in outcome.results}
        if outcome.status is not Status.COMMITTED or self._id_is_new:
            return
        for info, _ in self._written:
            if info.incarnation not in made:
                self._remove_files()
                raise InvalidTransaction(
                    f"transaction {self.transaction_id} was committed before, and didn't change"
                    f" {info.name}",
                    field="transaction_id",
                    value=self.transaction_id,
                    advice="Use a new id for other rows",
                )

    def _head(self, table_id: TableName) -> TableInfo:
        self._check_open()
        return self._log.describe(parse_table_id(table_id), fresh=True, readable=True)

    def _add(self, info: TableInfo, prepared: Prepared) -> None:
        self._written.append((info, prepared))
        self._operations.append(
            prepared_commit(info, prepared, self.transaction_id, id_is_new=self._id_is_new)
        )

    def _remove_files(self) -> None:
        for info, prepared in self._written:
            remove_files(info, prepared)
