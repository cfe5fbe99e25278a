"""Checks that a leader makes beside its work.

Every second, on the loop: how long has the oldest undecided transaction waited, and must some
writer pause? On separate threads, so that no commit waits, every second: was the log moved? Every
minute: did a program write versions around the log? Every hour: are the topics' settings still
safe? If they are not, the term ends, and no other begins here before they are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from commitlog.adapters.storage import local_path, store_for
from commitlog.core.tables.lance_tables import is_in
from commitlog.errors import CommitLogError, LogMoved, TopicSettings, Unavailable
from commitlog.model.table import Policy, format_table_id
from commitlog.ports import Log
from consumers.partition.files.bypass import Bypass, BypassScan, quarantine_foreign
from consumers.partition.files.catalogue import Head
from consumers.partition.files.events import Ended
from consumers.partition.files.old_versions import OldVersions
from consumers.partition.files.repair import (
    LOOKED_AT,
    missing_versions,
    repair,
    restore_transactions,
)
from consumers.partition.quotas import Pause, Quotas
from consumers.partition.session import Session

PULSE_SECONDS = 1.0
SCAN_SECONDS = 60.0
TABLES_PER_SCAN = 1_000
"""With more tables, each scan covers a part of them: on an object store each look is a request."""
MOVED_SECONDS = 1.0
"""How often a leader checks whether its log was moved to another cluster. A move takes longer from
closing the old cluster to opening the new one, so no reader here sees outdated state."""
SETTINGS_SECONDS = 3600.0
SETTINGS_RETRY_SECONDS = 10.0
"""How often settings are checked again while they are wrong."""
WAITING_PER_WRITER_MAX = 10_000
"""How many transactions of one writer may wait for their answers."""
WAITING_PER_WRITER_MIN = 100
UNDECIDED_HIGH = 20_000
"""With more undecided in total, each writer may have fewer: some seconds of work is enough."""
PAUSE_SECONDS = 1.5
"""A little longer than a pulse, so that a writer that is still over its quota stays paused."""
NEWEST_RECORDS = 100
INCIDENTS_MAX = 20
END_SECONDS = 2.0
LOOK_SECONDS = 30.0
HANGS_SECONDS = 5.0
"""A store that takes longer for one table's newest files delays no leader any more."""
NAMED_MAX = 20

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that an operator must know."""

    time_ms: int
    kind: str
    """`topic-settings`, `bypass` or `repair`."""
    message: str


@dataclass(slots=True)
class Pulse:
    """The loop's undecided transactions, as of the last second."""

    oldest_offset: int = -1
    oldest_since: float = 0.0
    """Since when that offset has been the oldest undecided one."""

    def lag_seconds(self, now: float) -> float:
        """How long the oldest undecided transaction has been the oldest one here."""
        return max(0.0, now - self.oldest_since) if self.oldest_offset >= 0 else 0.0


def waiting_max(undecided: int) -> int:
    """Return how many transactions of one writer may wait, given the total undecided number."""
    if undecided <= UNDECIDED_HIGH:
        return WAITING_PER_WRITER_MAX
    share = WAITING_PER_WRITER_MAX * UNDECIDED_HIGH // undecided // 2
    return max(WAITING_PER_WRITER_MIN, share)


class Pace(Protocol):
    """Asks writers to send nothing for a while."""

    def pace(
        self, waiting: Mapping[str, int], waiting_max: int, retry_after_seconds: float
    ) -> None:
        """Tell each session that has too many waiting transactions."""

    def pace_principals(self, pauses: Mapping[str, Pause]) -> None:
        """Tell all writers which principals are over their quotas."""


class LeaderChecks:
    """One committer's checks of its partition."""

    def __init__(
        self,
        log: Log,
        partition: int,
        old_versions: OldVersions,
        *,
        pace: Pace | None = None,
        quotas: Quotas | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check nothing yet; `pace` tells writers to wait, by session and by principal."""
        self._pace, self._quotas = pace, quotas
        self._pauses: Mapping[str, Pause] = {}
        self._log, self._partition = log, partition
        self._old_versions = old_versions
        self._clock = clock
        self._pulse = Pulse()
        self.due_at = 0.0
        """When the loop takes its pulse next."""
        self._settings_due = clock() + SETTINGS_SECONDS
        self.incidents: deque[Incident] = deque(maxlen=INCIDENTS_MAX)
        self.settings_problem = ""
        """What is wrong with the topics' settings; empty: nothing."""
        self.bypasses_found = 0
        self._scan_from = 0
        self._deep_at = 0.0
        self._begins: dict[str, int] = {}
        """By incarnation: the first version that the log made, if older ones are missing."""
        self._whole: dict[str, int] = {}
        """By location: names of manifests and transactions that lack nothing."""
        self._is_repaired, self._looked_at = False, 0.0
        """Whether all newest files were looked at, and when the look at the last table's began."""

    def await_settings(self, stop: threading.Event) -> None:
        """Return once the topics' settings are safe."""
        while self.settings_problem and not stop.is_set():
            if not self.check_settings():
                stop.wait(SETTINGS_RETRY_SECONDS)

    def check_settings(self) -> bool:
        """Check the topics' settings; return False if they are known to be wrong."""
        self._settings_due = self._clock() + SETTINGS_SECONDS
        try:
            self._log.check_settings()
        except TopicSettings as error:
            if str(error) != self.settings_problem:
                self._note("topic-settings", str(error))
            self.settings_problem = str(error)
            return False
        except CommitLogError as error:
            logger.warning("the topics' settings could not be read: %s", error)
            self._settings_due = self._clock() + SETTINGS_RETRY_SECONDS
            return not self.settings_problem
        if self.settings_problem:
            logger.warning("the topics' settings are correct again")
        self.settings_problem = ""
        return True

    @contextmanager
    def during(self, session: Session) -> Iterator[None]:
        """Run the checks while the body leads."""
        stop = threading.Event()
        self._pulse = Pulse()
        self._is_repaired, self._looked_at = False, self._clock()
        if self._quotas is not None:
            session.on_committed = self._quotas.begin(session.on_committed)
        session.on_stranger = self._met_stranger
        works = (self._watch_place, self._look_around)
        threads = [
            threading.Thread(
                target=_ending, args=(work, session, stop), name="leader-checks", daemon=True
            )
            for work in works
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            self._pulse = Pulse()
            for thread in threads:
                thread.join(END_SECONDS)

    @property
    def has_repaired(self) -> bool:
        """Whether each head has its file, as far as it can be made, or a store hung this term."""
        self._is_repaired |= self._clock() >= self._looked_at + HANGS_SECONDS
        return self._is_repaired

    def status(self) -> dict[str, Any]:
        """Return the numbers, for metrics and readiness; on the loop."""
        now, pulse = self._clock(), self._pulse
        return {
            "decision_lag_seconds": round(pulse.lag_seconds(now), 3),
            "deciding_silence_seconds": 0.0,
            "settings_problem": self.settings_problem,
            "bypasses_found": self.bypasses_found,
            "paused_principals": {name: round(p.seconds, 3) for name, p in self._pauses.items()},
            "incidents": [asdict(one) for one in self.incidents.copy()],
        }

    def quarantine(self, session: Session, table: tuple[str, ...]) -> list[str]:
        """Move foreign versions of one table away, because a client found one."""
        head = _look(session, lambda: session.catalogue.head(table))
        return quarantine_foreign(
            head,
            lambda: self._head_while_leading(session, head),
            self._old_versions.materialize,
        )

    def repair(self, session: Session, *, versions: int = 1) -> None:
        """Rebuild the tables' newest files that this machine lost."""
        heads = _look(session, lambda: session.readable.beside(session.catalogue.heads()))
        for head, readable in heads:
            self._looked_at = self._clock()
            found = repair(head, readable, self._old_versions.materialize, versions=versions)
            if found:
                text = f"versions {found} of {format_table_id(head.table)} were lost or damaged"
                self._note("repair", f"{text}, and were written again")

    def put_back(self, session: Session, heads: Sequence[Head], *, is_deep: bool) -> None:
        """Write files again that were deleted around the log: manifests under the policy `every`.

        Each look at a table in an object store is a request, so only a deep check does that. Only a
        deep check restores transaction files, too, since finding them takes reading manifests.
        """
        for head in heads:
            if not head.version or not (is_deep or local_path(head.location)):
                continue
            try:
                self._put_back(session, head, is_deep=is_deep)
            except (OSError, CommitLogError) as error:
                logger.warning("%s was not checked: %s", format_table_id(head.table), error)

    def _put_back(self, session: Session, head: Head, *, is_deep: bool) -> None:
        name, first = format_table_id(head.table), self._begins.get(head.incarnation, 1)
        missing: list[int] = []
        if head.policy is Policy.EVERY:
            readable = _look(session, lambda: session.readable.newest(head.incarnation))
            missing = missing_versions(head.location, first, readable, head.deleted)
        if missing:
            # What was deleted by a record is deleted before its files go.
            now = self._head_while_leading(session, head)
            lost = [v for v in missing if not is_in(v, now.deleted)]
            made = self._old_versions.make_again(now, lost) if lost else {}
            if len(made) < len(lost):
                # Older than what the log made.
                self._begins[head.incarnation] = max(v for v in lost if v not in made) + 1
            now = self._head_while_leading(session, head) if made else now
            for version, path in made.items():
                if is_in(version, now.deleted):
                    store_for(head.location).delete(path)
            if made:
                text = f"versions {sorted(made)[:NAMED_MAX]} of {name} were deleted around the log"
                self._note("repair", f"{text} ({len(made):,} in all), and were written again")
        whole = self._whole
        if is_deep and (restored := restore_transactions(head.location, LOOKED_AT, whole)):
            text = f"transaction files of versions {restored} of {name} were deleted around the log"
            self._note("repair", f"{text}, and were written again")

    def come_by(self, session: Session) -> None:
        """Take the pulse on the loop, if a second is over."""
        now = self._clock()
        if now >= self.due_at:
            self.due_at = now + PULSE_SECONDS
            self.pulse(session)

    def pulse(self, session: Session) -> None:
        """Note what the loop hasn't decided, and pace its writers."""
        pulse, leader = self._pulse, session.leader
        if leader is None:
            return
        now = self._clock()
        if self._quotas is not None:
            self._pauses = self._quotas.pauses()
        if self._pace is not None:
            most = waiting_max(leader.undecided_count)
            self._pace.pace(leader.waiting(), most, PAUSE_SECONDS)
            self._pace.pace_principals(self._pauses)
        offset = leader.oldest_undecided
        if offset != pulse.oldest_offset:
            pulse.oldest_offset, pulse.oldest_since = offset, now

    def scan(self, session: Session, stop: threading.Event) -> list[Bypass]:
        """Look for versions that were written around the log."""

        def status_of(transaction_id: str) -> str | None:
            found = _look(session, lambda: session.follower.machine.outcome_of(transaction_id))
            return None if found is None else str(found.status)

        heads = _look(session, session.catalogue.heads)
        start = self._scan_from % max(len(heads), 1)
        self._scan_from = start + TABLES_PER_SCAN
        part = (heads[start:] + heads[:start])[:TABLES_PER_SCAN]
        scan = BypassScan(
            self._log,
            self._partition,
            heads=part,
            ask_head=lambda head: self._head_while_leading(session, head),
            write_again=self._old_versions.materialize,
            status_of=status_of,
        )
        found = scan.run(stop)
        for one in found:
            self._met_stranger(one.table, one.version, one.became)
        is_deep = self._clock() >= self._deep_at
        if is_deep:
            self._deep_at = self._clock() + SETTINGS_SECONDS
            standing = {head.location for head in heads}
            self._whole = {at: names for at, names in self._whole.items() if at in standing}
        self.put_back(session, heads if is_deep else part, is_deep=is_deep)
        return found

    def _met_stranger(self, table: str, version: int, became: str) -> None:
        self.bypasses_found += 1
        text = f"version {version} of {table} was written around the log: {became}"
        self._note("bypass", text)

    def _watch_place(self, session: Session, stop: threading.Event) -> None:
        while not stop.wait(MOVED_SECONDS):
            self.check_here()

    def _look_around(self, session: Session, stop: threading.Event) -> None:
        self._tried("repairing tables", partial(self.repair, session))
        self._is_repaired = True
        session.mailbox.call(lambda: None)
        self._tried("repairing tables", partial(self.repair, session, versions=LOOKED_AT))
        scan_at = self._clock() + SCAN_SECONDS
        while not stop.wait(PULSE_SECONDS):
            now = self._clock()
            if now >= self._settings_due and not self.check_settings():
                session.mailbox.post(Ended(TopicSettings(self.settings_problem)))
                return
            if now >= scan_at:
                self._tried("looking for foreign versions", partial(self.scan, session, stop))
                self._tried("repairing tables", partial(self.repair, session))
                scan_at = self._clock() + SCAN_SECONDS

    def check_here(self) -> None:
        """Raise LogMoved if the log continues elsewhere, which ends the term."""
        try:
            self._log.check_here()
        except LogMoved:
            raise
        except CommitLogError as error:
            logger.warning("could not check whether the log was moved: %s", error)

    def _tried(self, what: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            bug = None if isinstance(error, CommitLogError | OSError) else error
            logger.error("%s failed and will be tried again: %s", what, error, exc_info=bug)

    def _head_while_leading(self, session: Session, head: Head) -> Head:
        """Return a table's head now; raise Unavailable if another process leads by now."""
        epoch = _look(session, lambda: session.follower.replica.chain.epoch)
        # Not only the last one, which a deposed leader may have sent late.
        for answered in self._log.last_outcome_records(self._partition, NEWEST_RECORDS):
            if getattr(answered.record, "epoch", 0) > epoch:
                raise Unavailable("another committer leads; ask it")
        now = _look(session, lambda: session.catalogue.head(head.table))
        if now.incarnation != head.incarnation:
            raise Unavailable(f"{format_table_id(head.table)} was created again meanwhile")
        return now

    def _note(self, kind: str, message: str) -> None:
        logger.error("%s: %s", kind, message)
        self.incidents.append(Incident(time.time_ns() // 1_000_000, kind, message))


def _look(session: Session, work: Callable[[], T]) -> T:
    """Have the loop look something up."""
    return session.mailbox.call(work).result(LOOK_SECONDS)


def _ending(
    work: Callable[[Session, threading.Event], None], session: Session, stop: threading.Event
) -> None:
    """Run a thread's work; the term doesn't continue without it."""
    try:
        work(session, stop)
    except BaseException as error:
        session.mailbox.post(Ended(error))
