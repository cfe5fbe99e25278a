"""`commitlog rows`: applies accepted writes of rows, in groups, in the order of the log.

A row writer owns nothing. It asks a leader what waits, reads those rows from the log, and submits
one transaction per table and group: what came of each write, and the commit that does it. The log
takes that only if the range follows the one before, so any number of row writers may run, be killed
and start again at any moment: a range is applied once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from math import inf

from commitlog import CommitLog
from commitlog.client.accepted.row_tail import AcceptedWrite, Tail, Waiting, accepted
from commitlog.client.rows.row_groups import ReadBase
from commitlog.client.rows.row_keys import KnownKeys
from commitlog.errors import (
    CommitLogError,
    InvalidTransaction,
    MissingDataFile,
    NoSuchTable,
)
from commitlog.model.records import Code, Outcome, Status, Transaction
from commitlog.model.table import format_table_id
from consumers.tools.rows.attempt import Attempt
from consumers.tools.rows.conditions import Conditions

ASK_SECONDS = 5.0
"""How long a leader is asked at once whether something waits."""
END_SECONDS = 0.5
"""For what is quick: who waits for a leader that ended before, would wait for the next one."""
STEP_SECONDS = 0.2
PAUSE_SECONDS = 1.0
SAID_SECONDS = 60.0
"""Writes that wait are tried again each second, and said to wait so often."""
TABLES_AT_ONCE = 8
REST, REST_SECONDS = 3, 0.15
"""How many times as long as a group took the next one waits, up to so long; or else as long as it
took. If somebody waits for what comes of it, it doesn't."""
TRIES_MAX = 20
"""How often a group is made again because others committed; then others have their turn."""
FAILURES_MAX = 5
"""After so many failures that aren't the store's, the group is made smaller to find the culprit."""
REFUSED_AT = 12
"""After so many the first transaction, alone by then, is refused, so that others are applied."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowWriterOptions:
    """How writes are gathered."""

    age_seconds: float = 0.05
    """How long a table's writes are gathered at most, if the group before was done in that time."""
    writes_max: int = 5_000
    rows_max: int = 100_000
    bytes_max: int = 64 * 1024 * 1024


class RowWriter:
    """Applies what waits in all partitions of a log."""

    def __init__(
        self,
        log: CommitLog,
        options: RowWriterOptions | None = None,
        *,
        read: ReadBase | None = None,
    ) -> None:
        """Act through a client of the log; `read` finds the rows that have a group's keys.

        By default this process remembers where they are.
        """
        self._log = log
        self._options = options or RowWriterOptions()
        self._read, self._known = read, KnownKeys()
        self._conditions = Conditions()
        self._failures: dict[str, int] = {}
        """By incarnation: how often in a row its group could not be made."""
        self._said: dict[str, float] = {}
        """By incarnation: when it was said last that its writes wait."""
        self._due: dict[str, float] = {}
        """By incarnation: when its next group may begin, by the monotonic clock."""
        self._through: dict[str, int] = {}
        """By incarnation: the last position of the newest group."""
        self._coming: dict[str, tuple[int, float]] = {}
        """By incarnation: how many clients were told of their writes, and may write again; and how
        long that group took."""
        self._ended = threading.Event()
        """Set when work on a group has ended."""
        self.applied = 0
        """Writes that were applied."""

    def run(self, stop: threading.Event) -> None:
        """Apply until `stop`."""
        partitions = range(self._log.runtime().partitions)
        threads = [
            threading.Thread(target=self._follow, args=(number, stop), daemon=True)
            for number in partitions
        ]
        for thread in threads:
            thread.start()
        stop.wait()
        # Whatever is at work may be cut off anywhere: the log knows what was applied.
        deadline = time.monotonic() + END_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.close()

    def drain(self, stop: threading.Event) -> None:
        """Apply what waits now in all partitions, and what comes meanwhile."""
        for partition in range(self._log.runtime().partitions):
            self._follow(partition, stop, drains=True)

    def close(self) -> None:
        """End what `drain` started beside this process."""
        self._conditions.close()

    def _follow(self, partition: int, stop: threading.Event, *, drains: bool = False) -> None:
        """Apply what is accepted until `stop`, or (`drains`) until nothing waits."""
        busy: dict[str, Future[None]] = {}
        warned = ""
        with closing(Tail(self._log.runtime().log, partition)) as tail:
            while not stop.is_set():
                try:
                    waits = self._cycle(partition, tail, busy, 0.0 if drains else ASK_SECONDS)
                    if drains and not waits:
                        break
                except CommitLogError as error:
                    # A client that is closed at the end is no trouble; another may last for hours.
                    if str(error) != warned and not stop.is_set():
                        logger.warning("partition %d: %s", partition, error)
                    warned = str(error)
                    stop.wait(PAUSE_SECONDS)
                self._gather(busy, stop)

    def _gather(self, busy: Mapping[str, Future[None]], stop: threading.Event) -> None:
        """Wait until a table may have its next group, or it is time to look for others' writes."""
        age = self._options.age_seconds
        if any(not work.done() for work in busy.values()):
            self._ended.wait(min(age, STEP_SECONDS))
            self._ended.clear()
        now = time.monotonic()
        for name, at in list(self._due.items()):
            if at <= now:
                self._due.pop(name, None)  # or dropped tables would stay
        left = [at - now for at in list(self._due.values())]
        if left:
            stop.wait(min(age, *left))

    def _cycle(
        self, partition: int, tail: Tail, busy: dict[str, Future[None]], seconds: float
    ) -> bool:
        """Start work on what waits; return True if anything does, or is at work."""
        more, took = 0, 0.0
        for name in [name for name, work in busy.items() if work.done()]:
            del busy[name]
            told, seconds_taken = self._coming.pop(name, (0, 0.0))
            more, took = more + told, max(took, seconds_taken)
        patience = 0.0 if busy else seconds
        # What takes this process long takes others long, too.
        gather = {"more": more, "age": max(self._options.age_seconds, took), "quiet": took / 4}
        asked = {"seconds": patience, "from_offset": tail.next_offset, **gather}
        body = self._log.runtime().request(partition, "rows_pending", busy=[*busy], **asked)
        waiting = [Waiting.of(one) for one in body]
        known = tail.known(waiting, busy)
        now, waits = time.monotonic(), False
        for one in waiting:
            waits = waits or bool(one.pending)
            is_due = one.incarnation not in busy and self._due.get(one.incarnation, 0.0) <= now
            if one.pending and is_due and len(busy) < TABLES_AT_ONCE:
                self._due.pop(one.incarnation, None)
                busy[one.incarnation] = self._start(one, known)
        return waits or bool(busy)

    def _start(self, waiting: Waiting, known: dict[int, Transaction]) -> Future[None]:
        """Begin work on a group."""
        work = Future[None]()
        work.add_done_callback(lambda _: self._ended.set())

        def run() -> None:
            try:
                self._apply(waiting, known)
            finally:
                work.set_result(None)

        threading.Thread(target=run, daemon=True).start()
        return work

    def _apply(self, waiting: Waiting, known: dict[int, Transaction]) -> None:
        """Apply one group to a table, and say when its next one may begin."""
        began = time.monotonic()
        try:
            self._try(waiting, known)
        finally:
            name, ended = waiting.incarnation, time.monotonic()
            through = self._through.pop(name, None)
            took = ended - began
            # The CPU is the writers' for longer than it was this one's, unless a group was too few.
            is_all = through == waiting.pending[-1][0]
            rest = max(took, min(REST * took, REST_SECONDS)) if is_all else 0.0
            rest = max(self._options.age_seconds - took, rest)
            # Who waited can't do anything with it, but write again.
            waited = min(1.0, waiting.awaited / len(waiting.pending)) if through else 0.0
            self._due[name] = ended + rest * (1.0 - waited)
            if through:
                self._coming[name] = waiting.awaited, took

    def _try(self, waiting: Waiting, known: dict[int, Transaction]) -> None:
        """Apply one group to a table; whatever goes wrong, it waits for its next turn."""
        name = format_table_id(waiting.table)
        failed = self._failures.pop(waiting.incarnation, 0)
        try:
            shrink = max(0, failed - FAILURES_MAX + 1)
            self.apply(waiting, known, shrink=shrink, refuses=failed >= REFUSED_AT)
            self._said.pop(waiting.incarnation, None)
        except NoSuchTable:
            return
        except BaseException as error:  # a panic of Lance's is no Exception
            if _may_pass(error):
                now = time.monotonic()
                if now >= self._said.get(waiting.incarnation, -inf) + SAID_SECONDS:
                    self._said[waiting.incarnation] = now
                    logger.warning("writes to %s wait: %s", name, error)
                time.sleep(PAUSE_SECONDS)
                return
            logger.exception("writes to %s could not be applied", name)
            self._failures[waiting.incarnation] = failed + 1
            time.sleep(PAUSE_SECONDS / 10)
            if not isinstance(error, Exception) and not type(error).__name__.startswith("Panic"):
                raise

    def apply(
        self,
        waiting: Waiting,
        known: dict[int, Transaction],
        *,
        shrink: int = 0,
        refuses: bool = False,
    ) -> Outcome | None:
        """Apply the first group of what waits; return the outcome, None if another was first.

        With `refuses` the group is refused as it is, since nothing else came of it so often.
        """
        info = self._log.describe(waiting.table, fresh=True, readable=True)
        if info.incarnation != waiting.incarnation:
            return None
        group = self._group(accepted(waiting, known, info.location), shrink)
        refused: dict[tuple[int, int], str] = {}
        if refuses:
            refused = {(write.sequence, write.position): _UNUSABLE for write in group}
        said = ""
        for _ in range(TRIES_MAX):
            if not group:
                return None
            found = self._read, self._known, self._conditions.fulfilling
            attempt = Attempt(self._log, info, waiting.applied, group, refused, *found)
            try:
                outcome = attempt.run()
            except MissingDataFile as error:
                # The file is this row writer's own, so the rows that were accepted aren't wrong.
                said = str(error)
                logger.warning("writes to %s are applied again: %s", info.name, error)
                continue
            except InvalidTransaction as error:
                said = str(error)
                group = _smaller(group, refused, said)
                continue
            if outcome.status is Status.COMMITTED:
                self.applied += len(group)
                self._through[waiting.incarnation] = group[-1].sequence
                return outcome
            if outcome.code in (Code.ROWS_RANGE, Code.NO_SUCH_TABLE, Code.TABLE_REPLACED):
                return None
            said = outcome.message
            if outcome.code is Code.TOO_OLD:
                time.sleep(PAUSE_SECONDS)  # for as long as this machine's clock is wrong
            elif outcome.status is Status.REJECTED and outcome.code not in _READ_AGAIN:
                group = _smaller(group, refused, outcome.message)
            info = self._log.describe(waiting.table, fresh=True, readable=True)
        text = "writes to %s were not applied in %d attempts, and are tried again: %s"
        logger.warning(text, info.name, TRIES_MAX, said)
        return None

    def _group(self, writes: Sequence[AcceptedWrite], shrink: int) -> list[AcceptedWrite]:
        """Return as many of the first writes as go into one commit, whole transactions each."""
        options = self._options
        writes_max = max(1, options.writes_max >> (2 * shrink)) if shrink else options.writes_max
        found: list[AcceptedWrite] = []
        rows = size = 0
        on: tuple[str, ...] = ()
        for write in writes:
            is_next = not found or write.sequence != found[-1].sequence
            own = write.operation.on
            is_full = len(found) >= writes_max or rows >= options.rows_max
            if found and is_next and (is_full or size >= options.bytes_max):
                break
            if on and own and own != on:
                break
            on = on or own
            found.append(write)
            rows, size = rows + write.operation.rows, size + write.operation.size
        return found


def _may_pass(error: BaseException) -> bool:
    """Return True if a failure says nothing of the rows: the log or the store is away."""
    if isinstance(error, OSError) and any(words in str(error) for words in _OF_LANCE):
        return "LanceError(IO)" in str(error)
    return isinstance(error, CommitLogError | OSError)


_OF_LANCE = ("LanceError(", "/rust/lance")
"""What errors of Lance's hold: its kinds, or the place in its code."""
_UNUSABLE = "its rows could not be applied; the row writer's log says why"
_READ_AGAIN = (Code.WRONG_SCHEMA, Code.MISSING_FILE, Code.UNKNOWN_FRAGMENT)


def _smaller(
    group: Sequence[AcceptedWrite], refused: dict[tuple[int, int], str], problem: str
) -> list[AcceptedWrite]:
    """Return the first half of a group that can't be applied; a write alone is refused."""
    sequences = list(dict.fromkeys(write.sequence for write in group))
    if len(sequences) == 1:
        for write in group:
            refused[write.sequence, write.position] = problem
        return list(group)
    kept = set(sequences[: len(sequences) // 2])
    return [write for write in group if write.sequence in kept]
