"""`commitlog maintain`: keeps tables fast unattended, by a policy in each table's properties.

Small commits leave small fragments, deletions leave dead rows, and appends leave rows that no index
covers. Each act here is a transaction of the log with its reason among its properties, but one:
manifests of tables with the policy `latest` are thinned without a record, since the log makes any
of them again. A table is looked at only after commits, so a table at rest costs nothing, and one
that takes many commits is looked at early: the more fragments it has, the more each commit costs.

What removes files has a thread of its own: that takes long, and no table waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from commitlog import CommitLog
from commitlog.client.leader.tables import TableInfo
from commitlog.client.upkeep import RewriteGroups
from commitlog.core.tables.lance_tables import VersionRanges
from commitlog.errors import CommitLogError, NoSuchTable, Unavailable
from commitlog.ports import Log
from consumers.tools.maintenance.maintenance_policy import Policies
from consumers.tools.maintenance.removals import REMOVAL_SECONDS, Removals
from consumers.tools.maintenance.table_acts import (
    Act,
    OnAct,
    TableActs,
    done,
    keep_guard,
    rewrite_for_a_turn,
    tell_failed,
)
from consumers.tools.turns import Turns

GLANCE_SECONDS = 5.0
"""So often the leaders are asked whether a table takes many commits."""
BUSY_VERSIONS = 500
"""A table that took so many since it was looked at isn't left for the next regular look."""
STOP_SECONDS = 60.0
REST_SECONDS = 3600.0
"""A table at rest whose versions expire is looked at so often: they get older without a commit, and
holds and tags end."""
LOOK_SECONDS = 300.0
"""A table that takes longer continues in a thread of its own, and the others have their turns."""

logger = logging.getLogger(__name__)

_State = tuple[int, VersionRanges, Mapping[str, str]]
"""What a table's need of maintenance follows from: its version, those deleted, its properties."""


class Maintenance:
    """Looks at tables that changed, one after the other."""

    def __init__(
        self,
        log: CommitLog,
        *,
        on_act: OnAct | None = None,
        open_log: Callable[[], Log] | None = None,
        defaults: Mapping[str, str] | None = None,
        rewrite: RewriteGroups = rewrite_for_a_turn,
        removal_seconds: float = REMOVAL_SECONDS,
        yields: Callable[[bool], object] = lambda to_others: None,
    ) -> None:
        """Act through a client of the log; `on_act(act, result)` is called after each act.

        Files are removed only with `open_log`, since that takes the whole log, archive included.
        The properties `defaults` hold where neither a table nor its namespaces say otherwise.
        `rewrite` rewrites the groups of fragments that a compaction planned. Files to remove are
        looked for every `removal_seconds`. `yields(True)` has the process leave the processor to
        others, `yields(False)` not, where it is far behind them.
        """
        self._log = log
        self._policies = Policies(log, defaults or {})
        self._acts = TableActs(log, rewrite, yields)
        self._on_act = on_act or (lambda act, result: None)
        self._removals: Removals | None = None
        if open_log is not None:
            self._removals = Removals(
                log, open_log, Policies(log, defaults or {}), self._on_act, removal_seconds
            )
        self._seen: dict[str, _State] = {}
        """By incarnation: the state as of which nothing was left to do."""
        self._due: dict[str, float] = {}
        """By incarnation: when it is looked at again, whether it has changed or not."""
        self._looked: dict[str, tuple[int, int]] = {}
        """By table: the version that was looked at last, and the bytes of its data files."""
        self._failing: set[str] = set()
        self._tried: dict[str, int] = {}
        """By table: its version as of the last look, even if that failed: that isn't busy."""
        self._rested_at: list[int] | None = None
        """By partition: what was decided as of the last look that left nothing to do."""
        self._turns: Turns | None = None
        """Where it runs on: a single look has nothing to do beside a table that takes long."""

    def run(self, stop: threading.Event, interval_seconds: float) -> None:
        """Look again and again until `stop`; for files to remove at first after a while."""
        removing = None
        self._acts.stop, self._turns = stop, Turns(LOOK_SECONDS, stop)
        if self._removals is not None:
            removing = threading.Thread(
                target=self._removals.run, args=(stop, interval_seconds), name="removals"
            )
            removing.start()
        while not stop.is_set():
            try:
                if self._is_at_rest():
                    self._tell()
                else:
                    self.look_at_tables(stop)
            except CommitLogError as error:
                logger.warning("the tables cannot be looked at: %s", error)
            deadline = time.monotonic() + interval_seconds
            while (left := deadline - time.monotonic()) > 0:
                if stop.wait(min(GLANCE_SECONDS, left)):
                    break
                with contextlib.suppress(CommitLogError):
                    if busy := self._busy():
                        self.look_at_tables(stop, busy)
        if removing is not None:
            removing.join(STOP_SECONDS)

    def close(self) -> None:
        """Stop reading the log."""
        if self._removals is not None:
            self._removals.close()

    def look(self, stop: threading.Event | None = None, *, dry_run: bool = False) -> list[Act]:
        """Look at each table that changed, and for files to remove; do what is due, return it."""
        acts = self.look_at_tables(stop, dry_run=dry_run)
        if self._removals is not None:
            acts += self._removals.look(dry_run=dry_run)
        return acts

    def look_at_tables(
        self,
        stop: threading.Event | None = None,
        only: Collection[str] | None = None,
        *,
        dry_run: bool = False,
    ) -> list[Act]:
        """Look at each table that changed, or at some, and do what is due; return the acts."""
        acts: list[Act] = []
        stop = stop or threading.Event()
        statuses = self._statuses()
        before = [one["sequence"] for one in statuses]
        self._failing = {name for one in statuses for name in one.get("failing_tables", ())}
        tables = self._log.tables() if only is None else self._named(only)
        if self._policies.refresh():
            self._seen.clear()
        looked = {} if only is None else dict(self._looked)
        if only is None:
            self._forget_others({info.incarnation for info in tables})
            self._tried.clear()
        for info in tables:
            if stop.is_set():
                break
            if info.version < 1:
                continue
            self._tried[info.name] = info.version
            try:
                is_due = self._due.get(info.incarnation, math.inf) <= time.monotonic()
                if is_due or not self._is_done(info):
                    look = partial(self._look_at, info, dry_run=dry_run)
                    turns = self._turns
                    acts += look() if turns is None else turns.take(info.incarnation, look)
            except (CommitLogError, OSError, ValueError, RuntimeError) as error:
                # One table's trouble holds up no other.
                if not stop.is_set():
                    tell_failed(self._log, info, error)
            except Exception:
                logger.exception("%s was left for later, for a reason not foreseen", info.name)
            else:
                looked[info.name] = info.version, self._acts.bytes.get(info.incarnation, 0)
        if not dry_run and not stop.is_set():
            self._looked = looked
            if only is None:
                is_done = all(map(self._is_done, tables))
                self._rested_at = before if is_done else None
            self._tell()
        return acts

    def _is_at_rest(self) -> bool:
        """Return True if nothing was decided since nothing was left to do, and no time is over."""
        if self._rested_at != [one["sequence"] for one in self._statuses()]:
            return False
        return min(self._due.values(), default=math.inf) > time.monotonic()

    def _is_done(self, info: TableInfo) -> bool:
        """Return True if nothing was left to do as of a table's present state."""
        return info.version < 1 or self._seen.get(info.incarnation) == _state_of(info)

    def _statuses(self) -> list[dict[str, Any]]:
        """Return what each leader says of its partition at present."""
        runtime = self._log.runtime()
        return [runtime.request(one, "status") for one in range(runtime.partitions)]

    def _named(self, names: Iterable[str]) -> list[TableInfo]:
        """Describe some tables: to describe thousands takes a busy leader a third of a second."""
        found = []
        for name in sorted(names):
            with contextlib.suppress(NoSuchTable):
                found.append(self._log.table(name))
        return found

    def _forget_others(self, standing: Collection[str]) -> None:
        """Forget what is known of tables that were dropped."""
        self._seen = {name: seen for name, seen in self._seen.items() if name in standing}
        self._due = {name: due for name, due in self._due.items() if name in standing}
        self._acts.bytes = {n: size for n, size in self._acts.bytes.items() if n in standing}
        self._acts.unripe.intersection_update(standing)
        covered = self._acts.optimized
        self._acts.optimized = {key: rows for key, rows in covered.items() if key[0] in standing}

    def _busy(self) -> set[str]:
        """Return the tables that took many commits since they were looked at."""
        return {
            name
            for _, sizes in self._sizes()
            for name, size in sizes.items()
            if size["version"] - self._tried.get(name, 0) >= BUSY_VERSIONS
        }

    def _tell(self) -> None:
        """Tell the leaders which versions were looked at, for tables that they count."""
        runtime = self._log.runtime()
        with contextlib.suppress(CommitLogError):
            for partition, sizes in self._sizes():
                tables = {name: self._looked[name] for name in sizes if name in self._looked}
                runtime.request(partition, "maintained", tables=tables)

    def _sizes(self) -> Iterable[tuple[int, dict[str, dict[str, int]]]]:
        """Yield each partition, and the sizes of those tables that its leader counts."""
        runtime = self._log.runtime()
        for partition in range(runtime.partitions):
            status: Any = runtime.request(partition, "status", measures=True)
            # Who is too busy to answer in time says what it said last, maybe without measures.
            yield partition, status.get("measures", {}).get("sizes", {})

    def _look_at(self, info: TableInfo, *, dry_run: bool) -> list[Act]:
        results: list[str] = []
        policy = self._policies.of(info)
        if policy.mode == "on" and info.name in self._failing:
            # To read it would mean to wait for them, in vain, while other tables wait.
            raise Unavailable("its files can't be written; the committer's log says why")
        due = self._acts.due(info, policy) if policy.mode == "on" else ()
        acts = done(due, self._on_act, dry_run=dry_run, results=results)
        if any(results):
            # Of a busy table, even what was its newest version may have expired by now.
            info = self._log.describe(info.table_id, fresh=True)
        if not dry_run and policy.mode == "on":
            opened = self._log.opened
            keep_guard(
                info,
                lambda: opened.alone(info, opened.newest(info).version).tags,
                is_on=policy.guard == "on",
            )
        if not dry_run and not any(results) and info.incarnation not in self._acts.unripe:
            self._seen[info.incarnation] = _state_of(info)
            if policy.mode == "on" and (policy.expire_days or policy.retain_versions):
                self._due[info.incarnation] = time.monotonic() + REST_SECONDS
            else:
                self._due.pop(info.incarnation, None)
        return acts


def _state_of(info: TableInfo) -> _State:
    return info.version, info.deleted, info.properties
