"""The part of `commitlog maintain` that removes files, in a thread of its own.

It takes the whole log to know which files nobody needs, and many small files take long to remove.
So it isn't asked often, a table has a turn of some minutes, and what is left then comes next time.
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
from commitlog.client.tables import TableInfo
from commitlog.core.iceberg.errors import Invalid
from commitlog.errors import CommitLogError, InvalidSettings
from commitlog.model.limits import GRACE_DAYS
from commitlog.ports import Log
from consumers.tools.file_ledger import Why
from consumers.tools.iceberg_upkeep import IcebergUpkeep
from consumers.tools.maintenance_policy import MaintenancePolicy, Policies
from consumers.tools.orphans import Leftover, Leftovers, said
from consumers.tools.table_acts import Act, OnAct, done, expire

FIRST_REMOVAL_SECONDS, REMOVAL_SECONDS = 600.0, 3600.0
"""To know what nobody needs takes the whole log, so it isn't asked often."""
REST_FACTOR = 4
"""And it rests for so many times as long as it took, however long the log is."""
TURN_SECONDS = 600.0
"""How long the files of one table are removed before the others have a turn."""
PROGRESS_SECONDS = 10.0
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000

logger = logging.getLogger(__name__)


class Removals:
    """Removes files that nobody needs, and deletes old versions that take too much."""

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
        self._is_cut_short = False
        self._stop = threading.Event()
        self._iceberg: tuple[Log, IcebergUpkeep] | None = None

    def run(self, stop: threading.Event, interval_seconds: float) -> None:
        """Look again and again until `stop`: at Iceberg tables each time."""
        self._stop = stop
        self._at = time.monotonic() + min(FIRST_REMOVAL_SECONDS, self._interval_seconds)
        try:
            while not stop.is_set():
                try:
                    self.look()
                except Exception:
                    # Whatever it is, files are left, and tables are compacted beside.
                    logger.exception("files that nobody needs were left for later")
                stop.wait(interval_seconds)
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading the log."""
        if self._iceberg is not None:
            log, upkeep = self._iceberg
            self._iceberg = None
            upkeep.close()
            log.close()

    def look(self, *, dry_run: bool = False) -> list[Act]:
        """Do what is due to Iceberg tables and, if it is time, to files of others; return it."""
        acts = self._of_iceberg(dry_run=dry_run)
        began = time.monotonic()
        if began < self._at:
            return acts
        self._is_cut_short = False
        self._policies.refresh()
        tables = self._log.tables()
        try:
            acts += done(self._due(tables), self._on_act, dry_run=dry_run)
        except (CommitLogError, OSError) as error:
            logger.warning("files that nobody needs were left for later: %s", error)
        if not dry_run and not self._is_cut_short:
            now = time.monotonic()
            self._at = max(began + self._interval_seconds, now + REST_FACTOR * (now - began))
        return acts

    def _of_iceberg(self, *, dry_run: bool) -> list[Act]:
        """Do what is due to Iceberg tables."""
        try:
            if self._iceberg is None:
                log = self._open_log()
                if not log.genesis().tables_root:
                    log.close()
                    return []
                self._iceberg = (log, IcebergUpkeep(log, self._log))
            due = (Act(*one) for one in self._iceberg[1].due())
            return done(due, self._on_act, dry_run=dry_run)
        except (CommitLogError, OSError, Invalid) as error:
            logger.warning("files of Iceberg tables were left for later: %s", error)
            self.close()
            return []

    def _thinning_out(
        self, info: TableInfo, policy: MaintenancePolicy, newest: int, older: int
    ) -> Iterator[Act]:
        """Yield what deletes old versions, if their files take too much."""
        deleted = sum(last - first + 1 for first, last in info.deleted)
        if policy.mode == "off" or info.version - deleted <= policy.history_versions:
            return
        reason = f"only older versions need {older:,} bytes, where the newest one needs {newest:,}"
        bounds: dict[str, Any] = {
            "older_than": timedelta(hours=policy.history_hours),
            "retain_versions": max(policy.history_versions, 1),
            "keep_milestones": True,
        }
        if self._log.expirable(info.table_id, **bounds):
            yield Act(info.name, "expire", reason, partial(expire, self._log, info, reason, bounds))

    def _due(self, tables: Sequence[TableInfo]) -> Iterator[Act]:
        """Yield what deletes versions that take too much, and files that nobody needs."""
        policies: dict[str, MaintenancePolicy | None] = {}
        for info in tables:
            try:
                policies[info.incarnation] = self._policies.of(info)
            except InvalidSettings:
                policies[info.incarnation] = None
        now_ms = time.time_ns() // 1_000_000

        def is_due(one: Leftover) -> bool:
            grace = GRACE_DAYS * _DAY_MS
            if one.incarnation in policies:
                policy = policies[one.incarnation]
                if policy is None or policy.mode == "off" or not policy.remove_after_days:
                    return False
                grace = policy.remove_after_days * _DAY_MS
                if one.why is Why.EXPIRED:
                    grace = policy.remove_expired_after_hours * _HOUR_MS
            return now_ms - one.since_ms >= grace

        log = self._open_log()
        try:
            for partition in range(log.partitions()):
                leftovers = Leftovers(log, partition)
                try:
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
                            logger.warning("%s was left for later: %s", info.name, error)
                    # One with few files doesn't wait for one with many.
                    for files in sorted(found, key=len):
                        do = self._removing(leftovers, files)
                        yield Act(files[0].table, "remove", said(files), do)
                finally:
                    leftovers.close()
        finally:
            log.close()

    def _removing(self, leftovers: Leftovers, found: Sequence[Leftover]) -> Callable[[], str]:
        def do() -> str:
            removed: list[Leftover] = []
            began = time.monotonic()
            told = began

            def on_removed(one: Leftover) -> None:
                nonlocal told
                removed.append(one)
                if (now := time.monotonic()) - told >= PROGRESS_SECONDS:
                    told = now
                    logger.info("%s: %d of %d files removed", one.table, len(removed), len(found))

            def has_time() -> bool:
                return not self._stop.is_set() and time.monotonic() - began < TURN_SECONDS

            if not leftovers.remove(found, self._log, on_removed=on_removed, go_on=has_time):
                self._is_cut_short = True
                return f"{len(removed):,} of {len(found):,} files removed; the others come next"
            return f"{len(removed):,} files removed" if removed else ""

        return do
