"""The version index as its keeper sees it: rows and position in one DuckDB transaction.

`apply` commits a batch of decided transactions with the Kafka offsets after them, so a killed
process continues exactly where its rows end. `publish` shows them to everybody. Positions that were
published once never go back: an index that is rebuilt is shown only when it has caught up.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import duckdb

from commitlog.core.log.replica import Decided
from commitlog.errors import CorruptLog, Unavailable
from commitlog.model.records import LeaderStarted
from consumers.runtime.places import another_log
from consumers.views.version_index import returns
from consumers.views.version_index.appends import Appends
from consumers.views.version_index.contents import Recordings, Row
from consumers.views.version_index.counting import Counting
from consumers.views.version_index.heads import COLUMNS, IndexedLife, fold
from consumers.views.version_index.layout import Layout, note_whole, noted_counts
from consumers.views.version_index.live import Damaged, open_live
from consumers.views.version_index.operation_results import read
from consumers.views.version_index.publish import publish, published_positions
from consumers.views.version_index.rows import (
    MICROSECONDS_PER_MS,
    leader_row,
    rows_of,
)
from consumers.views.version_index.schema import EVENTS, LEADERS, POSITIONS, TABLES
from consumers.views.version_index.segments import Sealer

HOT_TRANSACTIONS_MAX = 8_000
"""Rows of so many transactions stay in the live file, and are copied at each publication."""

GRACE_SECONDS = 3600.0
"""How long a reader may keep a snapshot open after a newer one was published."""

FRAGMENTS_NOW = """
SELECT incarnation, fragment_id,
       arg_max(physical_rows, (sequence, ordinal)) FILTER (physical_rows IS NOT NULL),
       arg_max(deleted_rows, (sequence, ordinal)),
       arg_max(bytes, (sequence, ordinal)) FILTER (bytes IS NOT NULL)
FROM fragment_changes WHERE list_contains(?, incarnation)
GROUP BY ALL HAVING NOT arg_max(removed, (sequence, ordinal))
"""

logger = logging.getLogger("commitlog.version_index")


@dataclass(frozen=True, slots=True)
class IndexPosition:
    """How far one partition is in the index: enough to continue from there."""

    partition: int
    sequence: int = 0
    outcomes_offset: int = 0
    transactions_offset: int = 0
    decided_beyond: tuple[int, ...] = ()
    last_outcome_offset: int = -1
    hash: bytes = b""
    epoch: int = 0
    end_offset: int = 0
    changed_at_ms: int = 0

    def row(self) -> Row:
        """Return the row of `positions`."""
        return (
            self.partition,
            self.sequence,
            self.outcomes_offset,
            self.transactions_offset,
            list(self.decided_beyond),
            self.last_outcome_offset,
            self.hash,
            self.epoch,
            self.end_offset,
            self.changed_at_ms * MICROSECONDS_PER_MS or None,
        )


@dataclass(frozen=True, slots=True)
class Term:
    """A valid LeaderStarted at its offset."""

    leader: LeaderStarted
    offset: int


class VersionIndex:
    """The one writer of an index; used by one thread at a time."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        hot_transactions_max: int = HOT_TRANSACTIONS_MAX,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        """Open the index under `root`, restored or made again if it is missing or damaged.

        Raises RootInUse if another process keeps it.
        """
        layout = self.layout = Layout(root)
        layout.prepare()
        with self._writable(), contextlib.ExitStack() as undo:
            self._lock = layout.take_lock()
            undo.callback(os.close, self._lock)
            self._live, self.note = open_live(layout)
            undo.callback(self._live.close)
            self._floor = published_positions(layout)
            self._heads = self._load_heads()
            self._counting = Counting(partial(self._load, FRAGMENTS_NOW))
            self._appends = Appends()
            self._positions = self._load_positions()
            self._log_id = self._live.meta().get("log_id", "")
            self._sealer = Sealer(
                self._live, hot_transactions_max=hot_transactions_max, grace_seconds=grace_seconds
            )
            undo.pop_all()
        self._dirty = True
        if self.note:
            logger.info("version index under %s: %s", layout.root, self.note)

    def bind(self, identity: Mapping[str, str]) -> None:
        """Note which log this index follows; raise WrongLog if it follows another."""
        known = self._live.meta()
        wrong = another_log(f"the version index under {self.layout.root}", known, identity)
        if wrong is not None:
            raise wrong
        if any(name not in known for name in identity):
            with self._guarded(), self._live.transaction():
                for name, value in identity.items():
                    self._live.set_meta(name, value)
        self._log_id = identity.get("log_id", "")

    def position(self, partition: int) -> IndexPosition:
        """Return how far a partition is; the beginning if nothing of it was seen."""
        return self._positions.get(partition, IndexPosition(partition))

    def last_term(self, partition: int) -> LeaderStarted | None:
        """Return the newest term of a partition in the index."""
        rows = self._live.query(
            "SELECT epoch, node, leader_id, sequence, previous_hash, state_digest, program_version,"
            " epoch_ms(started_at) FROM leaders WHERE partition = ? ORDER BY epoch DESC LIMIT 1",
            [partition],
        )
        return LeaderStarted(*rows[0]) if rows else None

    @property
    def hot_transactions(self) -> int:
        """How many transactions' rows are in the live file."""
        return self._sealer.hot_transactions

    def apply(
        self,
        batch: Sequence[Decided],
        position: IndexPosition,
        *,
        recordings: Recordings,
        terms: Sequence[Term] = (),
    ) -> None:
        """Take decided transactions of one partition and the position after them, or nothing.

        `recordings` reads what an outcome recorded outside itself. Raises CorruptLog if they don't
        follow what is in the index, and Unavailable if they can't be written; after that, close
        the index and open it again.
        """
        before = self.position(position.partition)
        wanted = list(range(before.sequence + 1, position.sequence + 1))
        if [decided.outcome.sequence for decided in batch] != wanted:
            raise CorruptLog(
                f"partition {position.partition}: {len(batch)} outcomes cannot lead from sequence "
                f"{before.sequence} to {position.sequence}; run `commitlog verify`"
            )
        with self._guarded():
            told, appended = self._appends.read(batch, self._counting)
            registers = returns.registers(told)
            if registers:
                told, appended = read(batch), {}  # all rows of what came back are wanted here
            rows = rows_of(told, recordings, self._counting)
            if registers:
                changes = rows["fragment_changes"]
                rows["fragment_changes"] = returns.changed_by_returns(
                    told, changes, partial(self._load, returns.IMAGES_BEFORE)
                )
        changed = fold(self._heads, told)
        live = self._live
        with self._guarded(), live.transaction():
            for relation in EVENTS:
                name = relation.name
                live.insert(relation, rows[name], appended.get(name), schema="hot")
            live.insert(
                LEADERS, [leader_row(position.partition, one.leader, one.offset) for one in terms]
            )
            if changed:
                marks = ", ".join("?" * len(changed))
                live.query(f"DELETE FROM tables WHERE incarnation IN ({marks})", sorted(changed))
                live.insert(TABLES, [self._heads[one].row() for one in sorted(changed)])
            live.query("DELETE FROM positions WHERE partition = ?", [position.partition])
            live.insert(POSITIONS, [position.row()])
        self._positions[position.partition] = position
        self._sealer.hot_transactions += len(batch)
        self._dirty = True
        with self._guarded():
            self._sealer.step(self._sequences(), wait=self._sealer.overdue)

    def publish(self) -> bool:
        """Show readers what is committed; return True if there was anything new to show.

        Raises Unavailable if it can't be written, or the live file was damaged from outside.
        """
        with self._guarded():
            if self._sealer.step(self._sequences()):
                self._dirty = True
            if not self._dirty or self._behind_published():
                return False
            try:
                publish(self._live, self._log_id, self._sequences())
            except Damaged as damage:
                raise Unavailable(
                    f"another program wrote to {self.layout.live}, which is damaged now: {damage}."
                    " Nothing is lost: start again, and it is set aside and built anew"
                ) from damage
            self._dirty = False
            self._sealer.published()
        return True

    def note_whole(self, at: float) -> None:
        """Note when the log was seen to have nothing else, unless that is yet to be published."""
        if noted_counts(self.layout.root, self._log_id) is None:
            # Somebody removed or changed it, and on a log at rest nothing else publishes.
            self._dirty = True
        if not self._dirty:
            note_whole(self.layout, at)

    def settle(self) -> None:
        """Wait until nothing is left to be sealed or merged."""
        with self._guarded():
            while self._sealer.step(self._sequences(), wait=True):
                self._dirty = True

    def close(self) -> None:
        """Close the file and let another process keep the index. Doesn't publish."""
        self._sealer.close()
        self._live.close()
        os.close(self._lock)

    def __enter__(self) -> VersionIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sequences(self) -> dict[int, int]:
        return {partition: one.sequence for partition, one in self._positions.items()}

    def _behind_published(self) -> bool:
        now = self._sequences()
        if any(now.get(partition, 0) < sequence for partition, sequence in self._floor.items()):
            return True
        self._floor = {}
        return False

    def _load_heads(self) -> dict[str, IndexedLife]:
        times = {"changed_at", "created_at", "ended_at"}
        columns = ", ".join(f"epoch_us({c})" if c in times else c for c in COLUMNS)
        rows = self._live.query(f"SELECT {columns} FROM tables ORDER BY partition, sequence")
        heads = (IndexedLife(*row) for row in rows)
        return {head.incarnation: head for head in heads}

    def _load(self, sql: str, incarnations: list[str]) -> list[Row]:
        known = [one for one in incarnations if one in self._heads]
        return self._live.query(sql, [known]) if known else []

    def _load_positions(self) -> dict[int, IndexPosition]:
        names = ", ".join(column.name for column in POSITIONS.columns[:-1])
        rows = self._live.query(f"SELECT {names}, epoch_ms(changed_at) FROM positions")
        positions = {}
        for row in rows:
            values = [*row[:4], tuple(row[4]), *row[5:-1], row[-1] or 0]
            positions[row[0]] = IndexPosition(*values)
        return positions

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            raise Unavailable(
                f"the version index under {self.layout.root} cannot be written: {error}. Nothing is"
                " lost: correct the cause (a full disk?) and start again"
            ) from error

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with self._writable():
                yield
        except OSError as error:
            raise Unavailable(
                f"the version index under {self.layout.root} cannot be published: {error}. Nothing"
                " is lost: correct the cause (a full disk?) and start again"
            ) from error
