"""The verbs of `CommitLog` that change rows, and read what isn't applied yet.

What carries them out is imported when one is called: pylance and pyarrow take longer to import
than a program that submits prepared operations takes to connect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Unpack

from commitlog.adapters.lance_import import import_pylance
from commitlog.client.history.positions import When
from commitlog.client.leader.arguments import check_options, heed_interrupt, lances_words
from commitlog.client.leader.row_tickets import RowsTicket
from commitlog.client.rows.host import Host, Pairs, TableName
from commitlog.client.rows.options import (
    MergeInsertOptions,
    RowsOptions,
    UpsertChoices,
)
from commitlog.errors import InvalidRequest, without_build_paths
from commitlog.model.records import Application, Expect, Outcome
from commitlog.model.table import format_table_id, parse_table_id

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

    from commitlog.client.commits.execution import Execution


class WritesRows(Host):
    """Adds to `CommitLog` the methods that change rows."""

    def append(self, table_id: TableName, data: Any, **options: Unpack[RowsOptions]) -> Outcome:
        """Append rows: an Arrow table or stream, a data frame, columns by name, or a list of dicts.

        A refusal is returned, not raised; end the call with `.raise_for_conflict()` to raise it.

        ```python
        log.append("shop$orders", {"id": [1, 2], "amount": [9.5, 3.0]}).raise_for_conflict()
        ```

        `append`, `delete`, `update` and `merge_insert` take these options: `timeout` (60 seconds),
        `attempts_max` (50), `wait` ("readable", or "committed"), `by_log` (True; False never writes
        rows into the log), `transaction_id`, `application`, `properties`, `expects`, and
        `notes_counts`. `Execution` says what each means.

        Raises:
            InvalidTransaction: rows don't fit the table; nothing was appended.
            NoSuchTable: the log has no such table.
            OutcomeUnknown: the time is up, and the rows may be committed.
            Unavailable: the time is up, and nothing was appended.
        """
        return self._execution(table_id, options).append(data)

    def delete(
        self,
        table_id: TableName,
        predicate: str,
        *,
        said: str | None = None,
        **options: Unpack[RowsOptions],
    ) -> Outcome:
        """Delete the rows for which a SQL predicate holds.

        A refusal is returned, not raised, as by `append`, which has the same options.

        If `said` is given, the log and the table's files record it in place of the predicate, which
        may contain values that must not be readable there.

        ```python
        log.delete("shop$orders", "id = 1")
        ```
        """
        return self._execution(table_id, options).delete(predicate, said)

    def update(
        self,
        table_id: TableName,
        values: Mapping[str, Any],
        where: str | None = None,
        **options: Unpack[RowsOptions],
    ) -> Outcome:
        """Set columns where a SQL predicate holds, or in all rows if there is none.

        A string value is a SQL expression (`"delay + 1"`, `"'text'"`), as in pylance;
        anything else is the value itself. A refusal is returned, not raised, as by `append`,
        which has the same options.

        ```python
        log.update("shop$orders", {"amount": "amount * 2", "id": 7}, "id = 2")
        ```
        """
        return self._execution(table_id, options).update(values, where)

    def merge_insert(
        self,
        table_id: TableName,
        data: Any,
        on: str | Sequence[str] | None = None,
        **options: Unpack[MergeInsertOptions],
    ) -> Outcome:
        """Update the rows whose keys `data` has and insert the others.

        `on` names the columns of the key, the table's own key if it is left out. Columns that
        `data` lacks keep their values, and are null in new rows.

        ```python
        log.merge_insert("shop$orders", [{"id": 7, "amount": 1.0}], on="id")
        ```

        A refusal is returned, not raised, as by `append`. The options are those of `append` and, as
        in pylance, `when_matched_update_all`, `when_matched_update_all_filt`,
        `when_not_matched_insert_all`, `when_matched_delete`, `when_matched_fail`,
        `when_not_matched_by_source_delete`, `when_not_matched_by_source_delete_filt` and
        `use_index`: see `MergeOptions`.
        """
        import_pylance()
        from commitlog.client.rows.merging import MergeOptions

        check_options(options, MergeInsertOptions.__annotations__)
        merge, others = MergeOptions.taken_from(options)
        return self._execution(table_id, others).merge_insert(data, on, merge)

    def scan(
        self,
        table_id: TableName,
        filter: str | None = None,  # as Lance calls it
        columns: Sequence[str] | None = None,
        *,
        fresh: bool = False,
        position: When = None,
    ) -> pa.Table:
        """Read rows; with `fresh` also those that are accepted but not applied yet.

        ```python
        log.scan("shop$orders", "amount < 5", columns=["id"]).to_pylist()
        ```

        To repeat a fresh read, pass the `position` of a fresh view, or any other position in a form
        that `CommitLog.position` takes.

        Raises InvalidRequest for a filter or columns that can't be read, FileNotFoundError if a
        file of the table is gone.
        """
        import_pylance()
        from commitlog.client.rows.rows import whole

        condition = None if filter is None else whole(filter, "filter")
        dataset = self.open(table_id, fresh=fresh, position=position)
        chosen = None if columns is None else list(columns)
        try:
            return dataset.to_table(columns=chosen, filter=condition)
        except (ValueError, RuntimeError) as error:  # the latter if Lance panics
            heed_interrupt(error)
            told = without_build_paths(str(error))
            if "LanceError(IO)" in told:  # the store's or the files', not the caller's
                kind = FileNotFoundError if "Not found: " in told else OSError
                raise kind(
                    f"a file of {format_table_id(parse_table_id(table_id))} can't be read: {told}"
                ) from error
            asked = {"columns": chosen, "filter": filter}
            named = [f"{name}={value!r}" for name, value in asked.items() if value is not None]
            raise InvalidRequest(
                f"{' and '.join(named)} can't be read: {lances_words(error)}",
                field="columns" if filter is None else "filter",
                value=chosen if filter is None else filter,
                advice=f"Use the columns {', '.join(dataset.schema.names)}",
            ) from None

    def open_fresh(
        self,
        table_id: TableName,
        version: int | None = None,
        position: When = None,
        *,
        fresh: bool = True,
    ) -> lance.LanceDataset:
        """Open a table to read, with all rows that are accepted now, or were at a position."""
        import_pylance()
        from commitlog.client.accepted.fresh import open_fresh

        if not fresh:
            raise InvalidRequest(
                f"position={position} only applies to fresh views",
                field="position",
                value=position,
                advice="Add fresh=True, or open a version by its number",
            )
        if version is not None:
            raise InvalidRequest(
                f"version={version} and fresh=True exclude each other",
                field="version",
                value=version,
                advice="Pass only one of them",
            )
        table = parse_table_id(table_id)
        if isinstance(position, str | date | Mapping):
            partition = self.runtime().domains.partition(table)
            position = self.position(position)[partition]
        is_whole = isinstance(position, int) and not isinstance(position, bool)
        if position is not None and not (is_whole and position > 0):
            raise InvalidRequest(
                f"position {position!r} is no position of a log, which are whole numbers from 1 on",
                field="position",
                value=position,
                advice="Give the position of a fresh view, the sequence of an outcome, a time or a"
                " tag of the log",
            )
        return open_fresh(self, table, position)

    def write_rows(
        self,
        table_id: TableName,
        data: Any,
        *,
        mode: str = "append",
        on: str | Sequence[str] | None = None,
        transaction_id: str | None = None,
        application: Application | None = None,
        properties: Pairs = (),
        expects: Sequence[Expect] = (),
        **options: Unpack[UpsertChoices],
    ) -> RowsTicket:
        """Put rows into the log and return at once; a row writer applies them in order.

        The mode is `append`, `upsert` or `delete`. The latter two match rows by the columns `on`,
        by default the table's primary key. An upsert takes the options `when_matched_update_all`,
        `when_matched_update_all_filt` and `when_not_matched_insert_all` of `MergeOptions`; columns
        that `data` lacks keep their values. A delete uses only the key columns of its data.

        The ticket's `result(wait="accepted")` waits until the rows are in the log, in order.
        By default, it waits until the version that has them can be opened by path.
        """
        import_pylance()
        from commitlog.client.accepted.row_writes import made_write

        table = parse_table_id(table_id)
        operation, payloads = made_write(self, table, data, mode, on, options, transaction_id)
        transaction = self.transaction(
            (operation,),
            transaction_id=transaction_id,
            application=application,
            properties=properties,
            expects=expects,
            payloads=payloads,
        )
        runtime = self.runtime()
        ticket = runtime.submit(
            transaction, id_is_new=transaction_id is None, awaits_rows=runtime.rows_hint
        )
        # A retry after a refusal needs the table's current description.
        return RowsTicket(runtime, ticket, lambda: self.describe(table, fresh=True))

    def _execution(self, table_id: TableName, options: Mapping[str, Any]) -> Execution:
        import_pylance()
        from commitlog.client.commits.execution import Execution

        check_options(options, RowsOptions.__annotations__)
        return Execution(self, parse_table_id(table_id), **options)
