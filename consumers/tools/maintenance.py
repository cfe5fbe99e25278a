"""`commitlog maintain`: keeps tables fast unattended, by a policy in each table's properties.

Small commits leave small fragments, deletions leave dead rows, and appends leave rows that no index
covers. Each act here is a transaction of the log with its reason among its properties, but one:
manifests of tables with the policy `latest` are thinned without a record, since the log makes any
of them again. A table is looked at only after commits, so a table at rest costs nothing.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import lance

from commitlog import CommitLog
from commitlog.adapters.lance_refs import referenced_versions, versions_with_files
from commitlog.adapters.storage import store_for
from commitlog.client.tables import TableInfo
from commitlog.client.upkeep import RewriteGroups, rewrite_here
from commitlog.codecs.manifest_file import decode_manifest, transaction_path
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.tables.lance_tables import VersionRanges
from commitlog.errors import CommitLogError, InvalidSettings
from commitlog.messages import NamespaceDescription
from commitlog.model.limits import GRACE_DAYS
from commitlog.model.table import Policy as Manifests
from commitlog.model.table import TableId
from commitlog.ports import Log
from consumers.tools.guard_tag import keep_guard
from consumers.tools.iceberg_upkeep import IcebergUpkeep
from consumers.tools.maintenance_policy import PREFIX, MaintenancePolicy
from consumers.tools.orphans import REASON, Leftover, Leftovers, said

TIER = 16
"""Fragments are merged with others of their size, into ones this many times larger: so each row is
rewritten a few times on its way to a full fragment, not once per small commit."""
SMALLEST_TIER_ROWS = 4_096
UNINDEXED_ROWS_LEAST = 1_000
ANCHOR_EVERY = 1_000
"""Thinning leaves each so many-th manifest: a version is made again of the one before it."""
NICENESS = 10
FIRST_REMOVAL_SECONDS, REMOVAL_SECONDS = 600.0, 6 * 3600.0
"""To know what nobody needs takes the whole log, so it isn't asked often."""

logger = logging.getLogger(__name__)


class Act(NamedTuple):
    """One thing to do to a table."""

    table: str
    kind: str
    """`compact`, `optimize`, `expire`, `thin`, `remove`, `purge` or `prune`."""
    reason: str
    do: Callable[[], str]
    """Does it, and returns what came of it; empty: nothing was left to do."""


class Maintenance:
    """Looks at tables that changed, one after the other."""

    def __init__(
        self,
        log: CommitLog,
        *,
        on_act: Callable[[Act, str], None] | None = None,
        open_log: Callable[[], Log] | None = None,
        defaults: Mapping[str, str] | None = None,
        rewrite: RewriteGroups = rewrite_here,
        removal_seconds: float = REMOVAL_SECONDS,
    ) -> None:
        """Act through a client of the log; `on_act(act, result)` is told of each act.

        Files are removed only with `open_log`, since that takes the whole log, archive included.
        The properties `defaults` hold where neither a table nor its namespaces say otherwise.
        `rewrite` rewrites the groups of fragments that a compaction planned. Files to remove are
        looked for every `removal_seconds`.
        """
        self._removal_seconds = removal_seconds
        self._rewrite = rewrite
        self._defaults = dict(defaults or {})
        self._namespaces: dict[TableId, dict[str, str]] = {}
        """Properties of namespaces, as of the last look."""
        self._log = log
        self._open_log = open_log
        self._remove_at = 0.0
        self._iceberg: tuple[Log, IcebergUpkeep] | None = None
        self._on_act = on_act or (lambda act, result: None)
        self._bytes: dict[str, int] = {}
        """By incarnation: the bytes of its data files when it was opened last."""
        self._seen: dict[str, tuple[int, VersionRanges]] = {}
        """By incarnation: the version, and those deleted, as of which nothing was left to do."""

    def run(self, stop: threading.Event, interval_seconds: float) -> None:
        """Look again and again until `stop`; for files to remove at first after a while."""
        self._remove_at = time.monotonic() + min(FIRST_REMOVAL_SECONDS, self._removal_seconds)
        try:
            while not stop.is_set():
                try:
                    self.look(stop)
                except CommitLogError as error:
                    logger.warning("the tables cannot be looked at: %s", error)
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

    def look(self, stop: threading.Event | None = None, *, dry_run: bool = False) -> list[Act]:
        """Look at each table that changed and do what is due; return the acts."""
        acts: list[Act] = []
        tables = self._log.tables()
        before, self._namespaces = self._namespaces, self._asked_namespaces()
        if before != self._namespaces:
            self._seen.clear()
        standing = {info.incarnation for info in tables}
        self._seen = {name: seen for name, seen in self._seen.items() if name in standing}
        looked: dict[str, tuple[int, int]] = {}
        for info in tables:
            if stop is not None and stop.is_set():
                break
            if info.version < 1:
                continue
            try:
                if self._seen.get(info.incarnation) != (info.version, info.deleted):
                    acts += self._look_at(info, dry_run=dry_run)
                looked[info.name] = info.version, self._bytes.get(info.incarnation, 0)
            except (CommitLogError, OSError, ValueError, RuntimeError) as error:
                # One table's trouble holds up no other.
                logger.warning("%s was left for later: %s", info.name, error)
        if not dry_run:
            self._tell(looked)
        if self._open_log is not None:
            acts += self._of_iceberg(self._open_log, dry_run=dry_run)
        if self._open_log is not None and time.monotonic() >= self._remove_at:
            self._remove_at = time.monotonic() + self._removal_seconds
            try:
                acts += self._done(self._removals(self._open_log, tables), dry_run=dry_run)
            except (CommitLogError, OSError) as error:
                logger.warning("files that nobody needs were left for later: %s", error)
        return acts

    def _asked_namespaces(self) -> dict[TableId, dict[str, str]]:
        """Ask for those properties of namespaces that are policies."""
        runtime = self._log.runtime()
        found: dict[TableId, dict[str, str]] = {}
        for partition in range(runtime.partitions):
            for one in map(
                NamespaceDescription.from_json, runtime.request(partition, "namespaces")
            ):
                given = {k: v for k, v in one.properties.items() if k.startswith(PREFIX)}
                if given:
                    found[one.namespace] = given
        return found

    def _policy(self, info: TableInfo) -> MaintenancePolicy:
        """Return a table's policy: its own, else its namespaces', the inner ones first."""
        inherited = dict(self._defaults)
        for depth in range(1, len(info.table_id)):
            inherited |= self._namespaces.get(info.table_id[:depth], {})
        return MaintenancePolicy.of(info, inherited)

    def _tell(self, looked: Mapping[str, tuple[int, int]]) -> None:
        """Tell the leaders which versions were looked at, for tables that they count."""
        runtime = self._log.runtime()
        for partition in range(runtime.partitions):
            with contextlib.suppress(CommitLogError):
                measures = runtime.request(partition, "status", measures=True)["measures"]
                tables = {name: looked[name] for name in measures["sizes"] if name in looked}
                runtime.request(partition, "maintained", tables=tables)

    def _of_iceberg(self, open_log: Callable[[], Log], *, dry_run: bool) -> list[Act]:
        """Do what is due to Iceberg tables."""
        try:
            if self._iceberg is None:
                log = open_log()
                if not log.genesis().tables_root:
                    log.close()
                    return []
                self._iceberg = (log, IcebergUpkeep(log, self._log))
            due = (Act(*one) for one in self._iceberg[1].due())
            return self._done(due, dry_run=dry_run)
        except (CommitLogError, OSError, Invalid) as error:
            logger.warning("files of Iceberg tables were left for later: %s", error)
            self.close()
            return []

    def _look_at(self, info: TableInfo, *, dry_run: bool) -> list[Act]:
        results: list[str] = []
        acts = self._done(self._due(info), dry_run=dry_run, results=results)
        policy = self._policy(info)
        if not dry_run and policy.mode == "on":
            keep_guard(info, self._log.opened.newest(info).tags, is_on=policy.guard == "on")
        if not dry_run and not any(results):
            self._seen[info.incarnation] = info.version, info.deleted
        return acts

    def _done(
        self, due: Iterable[Act], *, dry_run: bool, results: list[str] | None = None
    ) -> list[Act]:
        """Do each act before the next one is looked for; return them."""
        acts = []
        for act in due:
            acts.append(act)
            if dry_run:
                continue
            began = time.monotonic()
            result = act.do()
            if results is not None:
                results.append(result)
            told, took = result or "nothing was left to do", time.monotonic() - began
            logger.info("%s: %s (%s): %s, %.1f s", act.table, act.kind, act.reason, told, took)
            self._on_act(act, told)
        return acts

    def _removals(self, open_log: Callable[[], Log], tables: Sequence[TableInfo]) -> Iterator[Act]:
        """Yield what nobody has needed for as long as its table's policy says."""
        days = {}
        for info in tables:
            try:
                policy = self._policy(info)
            except InvalidSettings:
                days[info.incarnation] = 0.0
            else:
                days[info.incarnation] = policy.remove_after_days if policy.mode == "on" else 0.0
        now_ms = time.time_ns() // 1_000_000

        def is_due(one: Leftover) -> bool:
            grace = days.get(one.incarnation, GRACE_DAYS)
            return bool(grace) and now_ms - one.since_ms >= grace * 86_400_000

        log = open_log()
        try:
            for partition in range(log.partitions()):
                leftovers = Leftovers(log, partition)
                try:
                    for found in leftovers.by_table(filter(is_due, leftovers.find())):
                        do = self._removing(leftovers, found)
                        yield Act(found[0].table, "remove", said(found), do)
                finally:
                    leftovers.close()
        finally:
            log.close()

    def _removing(self, leftovers: Leftovers, found: Sequence[Leftover]) -> Callable[[], str]:
        def do() -> str:
            removed: list[Leftover] = []
            leftovers.remove(found, self._log, on_removed=removed.append)
            return f"{len(removed):,} files removed" if removed else ""

        return do

    def _due(self, info: TableInfo) -> Iterator[Act]:
        """Yield what is due; each act is done before the next one is looked for."""
        policy = self._policy(info)
        if policy.mode == "off":
            return
        dataset = self._log.opened.newest(info)
        self._bytes[info.incarnation] = sum(
            file.file_size_bytes or 0
            for fragment in dataset.get_fragments()
            for file in fragment.metadata.files
        )
        yield from self._compactions(info, policy, dataset)
        yield from self._indices(info, policy, dataset)
        if policy.expire_days or policy.retain_versions:
            yield from self._expiry(info, policy)
        if info.policy is Manifests.LATEST and policy.keep_manifests:
            yield from self._thinning(info, policy)

    def _compactions(
        self, info: TableInfo, policy: MaintenancePolicy, dataset: lance.LanceDataset
    ) -> Iterator[Act]:
        fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        rows = [(f.physical_rows or 0, f.num_deletions) for f in fragments]
        physical, deleted = sum(all_rows for all_rows, _ in rows), sum(dead for _, dead in rows)
        if physical and deleted > policy.deleted_share * physical:
            yield self._compaction(
                info,
                f"{deleted:,} of {physical:,} rows are deleted",
                target_rows_per_fragment=policy.target_rows,
                materialize_deletions_threshold=policy.deleted_share,
            )
            return
        limit = min(SMALLEST_TIER_ROWS, policy.target_rows)
        while True:
            small = sum(all_rows < limit for all_rows, _ in rows)
            if small >= max(policy.small_fragments, 2):
                yield self._compaction(
                    info,
                    f"{small:,} fragments have fewer than {limit:,} rows",
                    target_rows_per_fragment=limit,
                    materialize_deletions=False,
                )
                return
            if limit >= policy.target_rows:
                return
            limit = min(limit * TIER, policy.target_rows)

    def _compaction(self, info: TableInfo, reason: str, **options: Any) -> Act:
        def do() -> str:
            kept = self._log.compact(
                info.table_id, properties={REASON: reason}, rewrite=self._rewrite, **options
            )
            if kept.outcome is None or kept.metrics is None:
                return ""
            counts = "{fragments_removed} fragments became {fragments_added}"
            tries = f", after {len(kept.refusals)} refused tries" if kept.refusals else ""
            return f"version {kept.outcome.version}, {counts.format(**kept.metrics)}{tries}"

        return Act(info.name, "compact", reason, do)

    def _indices(
        self, info: TableInfo, policy: MaintenancePolicy, dataset: lance.LanceDataset
    ) -> Iterator[Act]:
        for name in dict.fromkeys(index.name for index in dataset.describe_indices()):
            if name.startswith("__lance_"):
                continue
            stats = dataset.stats.index_stats(name)
            missing, covered = stats["num_unindexed_rows"], stats["num_indexed_rows"]
            if missing > max(policy.unindexed_share * covered, UNINDEXED_ROWS_LEAST):
                reason = f"the index {name!r} misses {missing:,} of {missing + covered:,} rows"
                yield Act(info.name, "optimize", reason, self._optimizing(info, reason))
                return

    def _optimizing(self, info: TableInfo, reason: str) -> Callable[[], str]:
        def do() -> str:
            kept = self._log.optimize(info.table_id, properties={REASON: reason})
            return "" if kept.outcome is None else _version(kept.outcome)

        return do

    def _expiry(self, info: TableInfo, policy: MaintenancePolicy) -> Iterator[Act]:
        age = timedelta(days=policy.expire_days) if policy.expire_days else None
        reason = "; ".join(
            [f"older than {policy.expire_days:g} days"] * bool(age)
            + [f"behind {policy.retain_versions:,} newer ones"] * bool(policy.retain_versions)
        )
        if not self._log.expirable(
            info.table_id, older_than=age, retain_versions=policy.retain_versions or None
        ):
            return

        def do() -> str:
            outcome = self._log.expire_versions(
                info.table_id,
                older_than=age,
                retain_versions=policy.retain_versions or None,
                properties={REASON: reason},
            )
            return "" if outcome is None else f"record {outcome.sequence}"

        yield Act(info.name, "expire", reason, do)

    def _thinning(self, info: TableInfo, policy: MaintenancePolicy) -> Iterator[Act]:
        paths = versions_with_files(info.location)
        kept = referenced_versions(info.location)
        old = list(paths)[: -policy.keep_manifests]
        surplus = [v for v in old if v not in kept and v % ANCHOR_EVERY]
        # Not for each single one: a thinning looks through the folder.
        if len(surplus) < policy.keep_manifests:
            return

        def do() -> str:
            store = store_for(info.location)
            for version in surplus:
                with contextlib.suppress(FileNotFoundError):
                    state, _ = decode_manifest(store.read(paths[version]))
                    if beside := transaction_path(state):
                        store.delete(beside)
                store.delete(paths[version])
            return f"{len(surplus):,} manifests removed; the log makes any of them again"

        reason = f"{len(paths):,} manifests, of which the newest {policy.keep_manifests} stay"
        yield Act(info.name, "thin", reason, do)


def _version(outcome: Any) -> str:
    return f"version {outcome.version}"
