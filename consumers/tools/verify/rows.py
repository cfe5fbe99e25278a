"""Rows: are those in transactions what their records name, and has each newest version its own?

The chain covers the hash of a write's rows, not the rows. So what is gone from a transaction is a
check of its own: a record must have taken it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from commitlog.adapters.lance_datasets import count_rows
from commitlog.codecs.payloads import inline_rows
from commitlog.core.log.replica import Decided
from commitlog.core.manifest.encoded_fragments import living_rows
from commitlog.core.tables.lance_tables import Table
from commitlog.errors import CommitLogError
from commitlog.model.operations import ApplyRows, WriteRows
from commitlog.model.records import Status, Transaction
from commitlog.model.table import format_table_id
from commitlog.ports import Log
from consumers.tools.erasure.acts import Position, act_in, expiry_in
from consumers.tools.verify.findings import PartitionFindings, Problem, ProblemKind
from consumers.tools.verify.versions import LifeManifests

if TYPE_CHECKING:
    from commitlog.client.accepted.row_rebuild import RowHistories


class _Lacking(NamedTuple):
    """A write without its rows."""

    incarnation: str
    is_applied: bool = False
    table: str = ""
    """Its name then: an act on a table names writes to an earlier one of its name, too."""


class WrittenRows:
    """Follows the writes of rows of one partition."""

    def __init__(self, *, contents: bool = False) -> None:
        """Begin before the first record; with `contents` tables can be compared at the end."""
        self._histories: RowHistories | None = None
        if contents:
            # Loaded here: it brings half of the client in.
            from commitlog.client.accepted.row_rebuild import RowHistories

            self._histories = RowHistories()
        self._lacking: dict[Position, _Lacking] = {}
        """Writes without their rows that no record erased."""

    def take(self, decided: Decided, findings: PartitionFindings) -> None:
        """Take the next outcome; what was erased or expired is noted in `findings`."""
        record, outcome = decided.submitted.record, decided.outcome
        if not isinstance(record, Transaction) or outcome.answers is not None:
            return
        if self._histories is not None:
            self._histories.take(decided)
        if (act := act_in(decided)) is not None:
            findings.erased.take(act, len(act.writes))
            for at in act.writes:
                one = self._lacking.get(at)
                if one and (one.incarnation == act.incarnation or one.table == act.table):
                    del self._lacking[at]
        if (expiry := expiry_in(decided)) is not None:
            before = len(self._lacking)
            self._lacking = {
                at: one
                for at, one in self._lacking.items()
                if one.incarnation != expiry.incarnation or at.sequence > expiry.through
            }
            findings.rows_expired.take(expiry, before - len(self._lacking))
        if outcome.status is not Status.COMMITTED:
            return
        for number, rows in inline_rows(record).items():
            operation = record.operations[number]
            assert isinstance(operation, WriteRows)
            if rows is None or hashlib.sha256(rows).digest() != operation.sha256:
                incarnation = outcome.results[number].incarnation
                one = _Lacking(incarnation, table=format_table_id(operation.table))
                self._lacking[Position(outcome.sequence, number)] = one
        for operation in record.operations if self._lacking else ():
            for write in operation.writes if isinstance(operation, ApplyRows) else ():
                at = Position(write.sequence, write.operation)
                if write.refused:
                    self._lacking.pop(at, None)
                elif at in self._lacking:
                    self._lacking[at] = self._lacking[at]._replace(is_applied=True)

    def problems(self) -> Iterator[Problem]:
        """Yield the writes that were applied, and whose rows are gone or others."""
        for (sequence, number), one in self._lacking.items():
            if one.is_applied:
                text = (
                    f"the rows that operation {number} of outcome {sequence} wrote aren't in its "
                    "transaction, and no record says that they were erased or expired"
                )
                yield Problem(ProblemKind.ROWS, text, sequence)

    def compare(
        self, log: Log, partition: int, tables: Iterable[Table], on_rows: Callable[[int], None]
    ) -> Iterator[Problem]:
        """Rebuild tables from what was written by the log; yield where a version has other rows."""
        from commitlog.client.accepted.row_rebuild import info_of
        from commitlog.client.accepted.row_tail import Tail

        assert self._histories is not None
        with closing(Tail(log, partition)) as tail:
            for info in filter(None, map(info_of, tables)):
                found = self._histories.compare(info, tail, on_rows)
                if found is not None:
                    yield Problem(
                        kind=ProblemKind.ROWS,
                        message=found.text,
                        sequence=found.sequence,
                        table=info.name,
                        version=found.version,
                    )

    def to_json(self) -> list[Any]:
        """Return it as JSON-able values."""
        return [[*at, *one] for at, one in self._lacking.items()]

    def restore(self, data: list[Any]) -> None:
        """Take back what `to_json` returned."""
        self._lacking = {Position(*one[:2]): _Lacking(*one[2:]) for one in data}


def read_contents(
    lives: Iterable[LifeManifests], on_rows: Callable[[int], None] = lambda rows: None
) -> Iterator[Problem]:
    """Read the tables one after the other; `on_rows` is called with how many rows were read."""
    for life in lives:
        name, version = format_table_id(life.table), life.state.version
        read: dict[int, int] = {}
        try:
            for fragment_id, rows in count_rows(life.location, version):
                read[fragment_id] = rows
                on_rows(rows)
        except (CommitLogError, OSError) as error:
            text = f"the rows of {name}, version {version}, cannot be read: {error}"
            yield Problem(ProblemKind.ROWS, text, table=name, version=version)
            continue
        expected = {number: living_rows(data) for number, data in life.state.fragments.items()}
        wrong = [n for n in sorted({*expected, *read}) if expected.get(n) != read.get(n)]
        for number in wrong:
            text = (
                f"fragment {number} of {name}, version {version}, has {read.get(number)} rows, "
                f"and the log says {expected.get(number)}"
            )
            yield Problem(ProblemKind.ROWS, text, table=name, version=version)
