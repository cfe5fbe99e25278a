"""Writes the rows of tables again from the writes in the log.

A Lance file's bytes are its writer's, so the rows come as a table of their own, beside the
manifests that the log makes and not under them. It is made as row writers make versions, and
stands in its place once it is whole.

A table's rows are all in the log from the last version on that had none, up to the first that took
rows from files.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from commitlog.adapters.lance_datasets import open_dataset
from commitlog.client.accepted.row_application import RowCopy
from commitlog.client.accepted.row_reading import read_write
from commitlog.client.accepted.row_rebuild import KEPT_AS_THEY_ARE, content_of, info_of
from commitlog.client.accepted.row_tail import rows_of
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.row_groups import RowsUnusable, Write
from commitlog.core.manifest.encoded_fragments import living_rows
from commitlog.core.tables.lance_tables import Table
from commitlog.model.operations import ApplyRows, WriteRows
from commitlog.model.records import OperationResult, Transaction, is_commit
from consumers.runtime.progress import OnProgress
from consumers.tools.erasure.acts import RowExpiry, expiry_in
from consumers.tools.replay.rebuilt import RebuiltTable, RowsPlace
from consumers.tools.verify.findings import Problem, ProblemKind
from consumers.tools.verify.walk import Walk

WRITES_AT_ONCE = 20_000
BYTES_AT_ONCE = 64 * 1024 * 1024


def rebuild(
    tables: Sequence[Table],
    places: Mapping[str, RowsPlace],
    walk: Walk,
    through: int,
    on_progress: OnProgress,
) -> tuple[list[RebuiltTable], list[Problem]]:
    """Write tables' rows again; return what came of each, and where the log contradicts it.

    `walk` goes from the log's beginning up to a position.
    """
    making = {table.incarnation: _RowsAgain(table, places[table.incarnation]) for table in tables}
    all_decided = walk.decided(on_progress)
    for decided in takewhile(lambda one: one.outcome.sequence <= through, all_decided):
        record, outcome = decided.submitted.record, decided.outcome
        if is_commit(outcome) and isinstance(record, Transaction):
            for incarnation in {result.incarnation for result in outcome.results}:
                if incarnation in making:
                    making[incarnation].take(record, outcome.sequence, outcome.results)
        if (expiry := expiry_in(decided)) is not None and expiry.incarnation in making:
            making[expiry.incarnation].expire(expiry)
    rebuilt, problems = [], []
    for table in making.values():
        found, problem = table.compared(table.finish())
        rebuilt.append(found)
        problems += [problem] if problem is not None else []
    return rebuilt, problems


class _RowsAgain:
    """One table, followed from a version without rows on."""

    def __init__(self, table: Table, place: RowsPlace) -> None:
        info = info_of(table)
        assert info is not None
        assert table.manifest is not None
        self._info: TableInfo = replace(info, location=str(place.made_in))
        self._manifest, self._place = table.manifest, place
        self._since, self._version = place.empty
        self._accepted: dict[tuple[int, int], tuple[WriteRows, bytes | None]] = {}
        self._waiting: list[Write] = []
        self._size = 0
        self._on: tuple[str, ...] = ()
        self._copy: RowCopy | None = None
        self._gone = 0
        """The position of the first write whose rows are gone."""
        self._why = "" if self._since else "no version of it was without rows"
        if info.has_blobs:
            self._why = "it has columns of blobs, which no write of rows carries"
        shutil.rmtree(place.made_in, ignore_errors=True)

    def take(self, record: Transaction, sequence: int, results: Sequence[OperationResult]) -> None:
        """Take a committed transaction that names the table."""
        if self._why:
            return
        own = self._info.incarnation
        both = enumerate(zip(record.operations, results, strict=False))
        mine = {number: one for number, (one, result) in both if result.incarnation == own}
        written = {n: one for n, one in mine.items() if isinstance(one, WriteRows)}
        for number, rows in rows_of(record, written, self._place.at):
            self._accepted[sequence, number] = written[number], rows
        applied = [one for one in mine.values() if isinstance(one, ApplyRows)]
        for one in applied:
            self._apply(one, is_known=sequence <= self._since)
        for number in sorted(mine.keys() - written.keys()):
            result = results[number]
            if result.version > self._version and not self._why:
                is_kept = bool(applied) or result.operation in KEPT_AS_THEY_ARE
                self._commit(result, is_kept=is_kept)

    def expire(self, expiry: RowExpiry) -> None:
        """Say of rows that are missing that a record had them expire."""
        if 0 < self._gone <= expiry.through:
            self._gone = 0
            self._why = str(expiry)

    def _commit(self, result: OperationResult, *, is_kept: bool) -> None:
        if is_kept:
            self._version = result.version
        else:
            self._why = (
                f"version {result.version} ({result.operation}) has rows or columns from files,"
                " which the log doesn't hold"
            )

    def _apply(self, operation: ApplyRows, *, is_known: bool) -> None:
        """Apply a range, unless the version that it made is known to have no rows."""
        for one in operation.writes:
            written = self._accepted.pop((one.sequence, one.operation), None)
            if one.refused or is_known or self._why:
                continue
            assert written is not None, "what is applied was accepted before"
            try:
                self._add(read_write(self._info, *written))
            except RowsUnusable as problem:
                self._why = f"the rows of the write at position {one.sequence} are gone, or others"
                self._why += f": {problem.problem}"
                self._gone = one.sequence

    def _add(self, write: Write) -> None:
        on = write.operation.on
        is_full = len(self._waiting) >= WRITES_AT_ONCE or self._size >= BYTES_AT_ONCE
        if is_full or (on and self._on and on != self._on):
            self._flush()
        self._on = on or self._on
        self._waiting.append(write)
        self._size += write.operation.size

    def _flush(self) -> RowCopy:
        if self._copy is None:
            version = self._manifest.header.message.data_format.version
            self._copy = RowCopy(self._info, version)
        self._copy.apply(self._waiting)
        self._waiting, self._size, self._on = [], 0, ()
        return self._copy

    def finish(self) -> RebuiltTable:
        """Put the rows into their place, and record their version."""
        info, place = self._info, self._place
        found = RebuiltTable(info.name, info.version, self._version, why=self._why)
        shutil.rmtree(place.put_at, ignore_errors=True)
        if not self._waiting and self._copy is None:
            return found
        rows = self._flush().tidy()
        place.put_at.parent.mkdir(parents=True, exist_ok=True)
        place.made_in.rename(place.put_at)
        return replace(found, rows=rows, path=str(place.put_at))

    def compared(self, found: RebuiltTable) -> tuple[RebuiltTable, Problem | None]:
        """Compare the newest version with the log's count, and with its files if they are there."""
        if found.why or not found.path:
            return found, None
        expected = sum(living_rows(one) for one in self._manifest.fragments.values())
        if found.rows != expected:
            said = f"{found.rows:,} rows, and the log says that there are {expected:,}"
            return found, self._problem(said)
        old = self._place.at
        try:
            theirs = content_of(open_dataset(old, found.version))
        except (ValueError, OSError):
            return found, None  # it is why they are made again
        if theirs != content_of(open_dataset(found.path)):
            return found, self._problem(f"other rows than version {found.version} at {old} has")
        return replace(found, is_equal=True), None

    def _problem(self, said: str) -> Problem:
        name, version = self._info.name, self._info.version
        text = f"the writes of rows to {name} come to {said}"
        return Problem(ProblemKind.ROWS, text, table=name, version=version)
