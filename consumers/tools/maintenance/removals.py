"""The part of `commitlog maintain` that removes files, in a thread of its own.

It takes the whole log to know which files are unneeded: it is read once, then followed.
Tables are listed for it, and many small files take long to remove. So it isn't asked often, a table
has a turn of some minutes, and what is left then comes next time.
Here the history of tables is thinned out too, since what it takes is known from their files.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from commitlog import CommitLog
from commitlog.client.leader.tables import TableInfo
from commitlog.core.iceberg.errors import Invalid
from commitlog.errors import CommitLogError, InvalidSettings, OutcomeUnknown, Unavailable
from commitlog.model.limits import GRACE_DAYS
from commitlog.model.maintenance_policy import MaintenancePolicy
from commitlog.ports import Log
from consumers.partition.files.iceberg_files import IcebergFiles
from consumers.tools.clocks import clock_difference
from consumers.tools.iceberg.leftovers import IcebergLeftovers
from consumers.tools.iceberg.orphans import Orphan
from consumers.tools.maintenance.iceberg_expiry import IcebergExpiry
from consumers.tools.maintenance.iceberg_purges import IcebergPurges
from consumers.tools.maintenance.maintenance_policy import Policies
from consumers.tools.maintenance.table_acts import Act, OnAct, done, expire, tell_failed
from consumers.tools.orphans.file_ledger import Why
from consumers.tools.orphans.leftover import Leftover, said
from consumers.tools.orphans.orphans import Leftovers

FIRST_REMOVAL_SECONDS, REMOVAL_SECONDS = 600.0, 3600.0
"""Finding unneeded files lists all files, so it isn't done often."""
REST_FACTOR = 4
"""And it rests for so many times as long as it took to look for files, however many there are. What
it took to remove them doesn't count: who commits faster than a fifth of the time can remove would
have ever more files."""
TURN_SECONDS = 600.0
"""How long the files of one table are removed before the others have a turn."""
PROGRESS_SECONDS = 10.0
HISTORY_LEAST, HISTORY_BYTES_LEAST = 16, 1 << 20
"""So many of the newest versions stay, whatever they take; more, up to the policy's number of them,
as long as they take less than these bytes or the policy's share."""
NAMES_MAX = 5
"""So many tables are named where files of many are removed at once."""
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000

logger = logging.getLogger(__name__)


class Removals:
    """Removes unneeded files, and deletes old versions that take too much."""

    def __init__(
        self,
        log: CommitLog,
        open_log: Callable[[], Log],
        policies: Policies,
        on_act: OnAct,
        interval_seconds: float,
    ) -> None:
        """Act through a client of the log; `open_log` opens the whole log, archive included."""
        self._log = log
        self._open_log = open_log
        self._policies = policies
        self._on_act = on_act
        self._interval_seconds = interval_seconds
        self._at = 0.0
        self._removed_for = 0.0
        """Seconds that this look has spent removing files."""
        self._is_cut_short = False
        self._keeps_notes = True
        """Whether the times that a look notices are kept for later processes."""
        self._stop = threading.Event()
        self._whole: Log | None = None
        """The whole log, while it is open."""
        self._purges: IcebergPurges | None = None
        self._expiry: IcebergExpiry | None = None
        self._known: list[Leftovers] = []
        """What was read of the log, by its partitions."""

    def run(self, stop: threading.Event, interval_seconds: float) -> None:
        """Look again and again until `stop`: at Iceberg tables each time."""
        self._stop = stop
        self._at = time.monotonic() + min(FIRST_REMOVAL_SECONDS, self._interval_seconds)
        try:
            while not stop.is_set():
                try:
                    self.look()
                    self.rest()
                except CommitLogError as error:  # the leader is away: what was read stays right
                    logger.warning("unneeded files were left for later: %s", error)
                except Exception:
                    # Whatever it is, files are left, and tables are compacted beside.
                    logger.exception("unneeded files were left for later")
                    self.close()
                stop.wait(interval_seconds)
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading the log."""
        log, reading = self._whole, self._reading()
        self._whole, self._purges, self._known = None, None, []
        for one in reading:
            one.close()
        if log is not None:
            log.close()

    def rest(self) -> None:
        """Let go of all connections until the next look; what was read stays known."""
        for one in self._reading():
            one.rest()
        if self._whole is not None:
            self._whole.close()

    def _reading(self) -> list[IcebergPurges | Leftovers]:
        """Return what reads the log."""
        return [*([] if self._purges is None else [self._purges]), *self._known]

    def _opened(self) -> Log:
        self._whole = self._whole or self._open_log()
        return self._whole

    def look(self, *, dry_run: bool = False) -> list[Act]:
        """Purge Iceberg tables and, if it is time, remove unneeded files; return it."""
        self._keeps_notes = not dry_run
        acts = self._purge(dry_run=dry_run)
        began = time.monotonic()
        if began < self._at:
            return acts
        self._is_cut_short, self._removed_for = False, 0.0
        if self._policies.refresh() and self._expiry is not None:
            self._expiry.forget()
        tables = self._log.tables()
        if told := clock_difference(self._log):
            # Files of writers that are under way would seem old enough.
            logger.warning("unneeded files were left for later: %s", told)
            self._at = began + self._interval_seconds
            return acts
        try:
            acts += done(self._due(tables), self._on_act, dry_run=dry_run, apart=True)
        except (CommitLogError, OSError) as error:
            self._left("unneeded files", error)
        if not dry_run and not self._is_cut_short:
            now = time.monotonic()
            looked_for = now - began - self._removed_for
            self._at = max(began + self._interval_seconds, now + REST_FACTOR * looked_for)
        return acts

    def _purge(self, *, dry_run: bool) -> list[Act]:
        """Purge Iceberg tables."""
        try:
            if self._purges is None:
                log = self._opened()
                if not log.genesis().tables_root:
                    return []
                self._purges = IcebergPurges(log, self._log)
                files = IcebergFiles(log.genesis().tables_root)
                self._expiry = self._expiry or IcebergExpiry(self._log, files, self._policies)
            return done(self._purges.due(), self._on_act, dry_run=dry_run)
        except (CommitLogError, OSError, Invalid) as error:
            self._left("files of Iceberg tables", error)
            return []

    def _left(self, what: str, error: Exception) -> None:
        """Say that files stay; what was read of the log stays known if only somebody is away."""
        logger.warning("%s were left for later: %s", what, error)
        if not isinstance(error, OSError | Unavailable | OutcomeUnknown):
            self.close()

    def _thinning_out(
        self, info: TableInfo, policy: MaintenancePolicy, newest: int, older: int
    ) -> Iterator[Act]:
        """Yield what deletes old versions, if their files take too much."""
        standing = info.version - sum(last - first + 1 for first, last in info.deleted)
        allowed = max(policy.history_share * newest, HISTORY_BYTES_LEAST)
        within = int(standing * allowed / older)
        kept = min(policy.history_versions, max(within, HISTORY_LEAST))
        if policy.mode == "off" or standing <= kept:
            return
        reason = f"only older versions need {older:,} bytes, where the newest one needs {newest:,}"
        bounds: dict[str, Any] = {
            "older_than": timedelta(hours=policy.history_hours),
            "retain_versions": max(kept, 1),
            "keep_milestones": True,
        }
        if self._log.expirable(info.table_id, **bounds):
            do = partial(expire, self._log, info, reason, bounds)
            yield Act(info.name, "expire", reason, do)

    def _due_of_iceberg(self) -> Iterator[Act]:
        """Yield what removes unneeded files of Iceberg tables."""
        if self._purges is None:
            return
        orphans, now_ms = self._purges.orphans, time.time_ns() // 1_000_000
        orphans.keeps_notes = self._keeps_notes
        leftovers = IcebergLeftovers(self._opened(), orphans)
        wrong: dict[str, None] = {}

        def is_due(one: Leftover, orphan: Orphan) -> bool:
            try:
                policy = self._policies.of_properties(orphan.table, orphan.properties)
            except InvalidSettings as error:
                wrong[str(error)] = None
                return False
            # A reader may have begun while a snapshot still led to it.
            rests_ms = policy.remove_expired_after_hours * _HOUR_MS if orphan.noticed_ms else 0
            rested = not rests_ms or now_ms - orphan.noticed_ms >= rests_ms
            return rested and _is_ripe(one, policy, now_ms)

        found = [one for one, orphan in leftovers.find() if is_due(one, orphan)]
        for error in wrong:
            logger.warning("unneeded files were left for later: %s", error)
        if found:
            names = ", ".join(sorted({one.table for one in found} - {""})[:NAMES_MAX])
            remove = partial(leftovers.remove, found, self._log)
            what = names or "Iceberg tables"
            yield Act(what, "remove", said(found), self._removing(found, remove))

    def _due(self, tables: Sequence[TableInfo]) -> Iterator[Act]:
        """Yield what deletes versions that take too much, expired snapshots, and unneeded files."""
        policies: dict[str, MaintenancePolicy | None] = {}
        for info in tables:
            try:
                policies[info.incarnation] = self._policies.of(info)
            except InvalidSettings:
                policies[info.incarnation] = None
        now_ms = time.time_ns() // 1_000_000

        def is_due(one: Leftover) -> bool:
            if one.incarnation not in policies:
                return now_ms - one.since_ms >= GRACE_DAYS * _DAY_MS
            policy = policies[one.incarnation]
            return policy is not None and _is_ripe(one, policy, now_ms)

        for leftovers in self._read():
            found = leftovers.by_table(filter(is_due, leftovers.find()))
            for info in tables:
                policy, taken = policies[info.incarnation], leftovers.taken
                newest, older = (taken[info.incarnation, one] for one in (True, False))
                if policy is None or not older > policy.history_share * newest > 0:
                    continue
                try:
                    yield from self._thinning_out(info, policy, newest, older)
                except (CommitLogError, OSError, ValueError) as error:
                    # One table's trouble holds up no other.
                    tell_failed(self._log, info, error)
            # One with few files doesn't wait for one with many.
            for files in sorted(found, key=len):
                table, remove = files[0].table, partial(leftovers.remove, files, self._log)
                yield Act(table, "remove", said(files), self._removing(files, remove))
        if self._expiry is not None:
            yield from self._expiry.due(now_ms)
        yield from self._due_of_iceberg()

    def _read(self) -> Iterator[Leftovers]:
        """Yield what is known of each partition, read from the log's start at the first time."""
        log, known = self._opened(), self._known
        for partition in range(log.partitions()):
            if partition == len(known):
                known.append(Leftovers(log, partition))
            yield known[partition]

    def _removing(
        self, found: Sequence[Leftover], remove: Callable[..., bool]
    ) -> Callable[[], str]:
        def do() -> str:
            removed: list[Leftover] = []
            began = time.monotonic()
            told = began
            # A log that stood still doesn't know the brokers' time before the removal's own record.
            is_sure = False

            def on_removed(one: Leftover) -> None:
                nonlocal told
                removed.append(one)
                if (now := time.monotonic()) - told >= PROGRESS_SECONDS:
                    told = now
                    logger.info("%s: %d of %d files removed", one.table, len(removed), len(found))

            def has_time() -> bool:
                nonlocal is_sure
                if not is_sure and (wrong := clock_difference(self._log)):
                    raise Unavailable(wrong)
                is_sure = True
                return not self._stop.is_set() and time.monotonic() - began < TURN_SECONDS

            try:
                is_done = remove(on_removed=on_removed, go_on=has_time)
            finally:
                self._removed_for += time.monotonic() - began
            if not is_done:
                self._is_cut_short = True
                return f"{len(removed):,} of {len(found):,} files removed; the others come next"
            return f"{len(removed):,} files removed" if removed else ""

        return do


def _is_ripe(one: Leftover, policy: MaintenancePolicy, now_ms: int) -> bool:
    """Return True if a policy has a file removed that has been unneeded for so long."""
    if policy.mode != "on" or not policy.remove_after_days:
        return False
    grace = policy.remove_after_days * _DAY_MS
    if one.why is Why.EXPIRED:
        grace = policy.remove_expired_after_hours * _HOUR_MS
    return now_ms - one.since_ms >= grace
