"""One try to apply a group of writes: its files, its transaction, and what came of each write."""

from __future__ import annotations

from collections.abc import Sequence

from commitlog import CommitLog
from commitlog.client.accepted.row_application import find_rows, prepare_found, prepare_group
from commitlog.client.accepted.row_reading import Given, read_writes
from commitlog.client.accepted.row_tail import AcceptedWrite
from commitlog.client.commits.submission import prepared_commit
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.lance_request import new_transaction_id
from commitlog.client.rows.row_groups import Evaluate, ReadBase, RowsUnusable, Write, base_scan
from commitlog.client.rows.row_keys import KnownKeys
from commitlog.client.rows.rows import Prepared, remove_files
from commitlog.errors import CommitLogError, OutcomeUnknown
from commitlog.model.operations import AppliedWrite, ApplyRows, Operation
from commitlog.model.records import Code, Outcome, Status, Transaction

PROBLEM_CHARACTERS = 300


class Attempt:
    """One try to apply a group."""

    def __init__(
        self,
        log: CommitLog,
        info: TableInfo,
        after: int,
        group: Sequence[AcceptedWrite],
        refused: dict[tuple[int, int], str],
        read: ReadBase | None,
        known: KnownKeys,
        evaluate: Evaluate,
    ) -> None:
        self._read_base = read or known.read
        self._known = known if read is None else None
        self._log, self._info, self._after = log, info, after
        self._group, self._refused = group, refused
        self._evaluate = evaluate

    def run(self) -> Outcome:
        """Write files and submit; the files of what surely wasn't committed are removed."""
        writes = self._read()
        good = [write for write in writes if isinstance(write, Write)]
        prepared = self._prepare(good) if good else None
        try:
            transaction = self._transaction(writes, prepared)
            ticket = self._log.runtime().submit(transaction, id_is_new=True)
            outcome = ticket.result(wait="committed")
        except OutcomeUnknown:
            raise
        except CommitLogError:
            self._remove(prepared)
            raise
        if outcome.status is not Status.COMMITTED:
            self._remove(prepared)
        elif prepared is not None and self._known is not None:
            self._known.wrote(self._info, prepared)
        return outcome

    def _prepare(self, writes: Sequence[Write]) -> Prepared | None:
        info, opened, known = self._info, self._log.opened, self._known
        scan = base_scan(info, writes)
        if known is not None and scan is not None:
            found = find_rows(info, opened, known, scan)
            if found is not None:
                return prepare_found(info, opened, writes, scan, found)
        newest = opened.newest(info)
        return prepare_group(info, newest, writes, scan, self._read_base, self._evaluate)

    def _transaction(
        self, writes: Sequence[Write | RowsUnusable], prepared: Prepared | None
    ) -> Transaction:
        transaction_id = new_transaction_id()
        operations: list[Operation] = [self._range(writes)]
        if prepared is not None:
            operations.append(prepared_commit(self._info, prepared, transaction_id, id_is_new=True))
        return self._log.transaction(
            tuple(operations), transaction_id=transaction_id, properties=self._properties()
        )

    def _read(self) -> list[Write | RowsUnusable]:
        said = [self._refused.get((one.sequence, one.position)) for one in self._group]
        left = [one for one, problem in zip(self._group, said, strict=True) if problem is None]
        given = [Given(one.operation, one.payload, one.is_stale) for one in left]
        read = iter(read_writes(self._info, given))
        return [
            next(read) if problem is None else RowsUnusable(Code.ROWS_REFUSED, problem)
            for problem in said
        ]

    def _range(self, writes: Sequence[Write | RowsUnusable]) -> ApplyRows:
        came = []
        for one, write in zip(self._group, writes, strict=True):
            problem = write if isinstance(write, RowsUnusable) else write.refused
            if problem is not None:
                said = problem.problem[:PROBLEM_CHARACTERS]
                came.append(
                    AppliedWrite(
                        one.sequence, one.position, refused=problem.code.value, problem=said
                    )
                )
            elif isinstance(write, Write):
                counts = (write.inserted, write.updated, write.deleted)
                came.append(AppliedWrite(one.sequence, one.position, *counts))
        through = self._group[-1].sequence
        info = self._info
        return ApplyRows(
            table=info.table_id,
            incarnation=info.incarnation,
            after=self._after,
            through=through,
            writes=tuple(came),
        )

    def _properties(self) -> list[tuple[str, str]]:
        principals = sorted({one.principal for one in self._group if one.principal})
        return [("commitlog.rows.principals", ",".join(principals))] if principals else []

    def _remove(self, prepared: Prepared | None) -> None:
        if prepared is not None:
            remove_files(self._info, prepared)
