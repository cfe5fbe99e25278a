"""Acts that a Lance table's policy requires: compactions, indices, expiry, thinning."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import accumulate, takewhile
from typing import Any, NamedTuple

import lance
from lance.optimize import CompactionTask, RewriteResult

from commitlog import CommitLog
from commitlog.adapters.lance_private import fragments_of
from commitlog.adapters.lance_refs import (
    GUARD_TAG,
    Published,
    guarded_version,
    line_of,
    referenced_versions,
    versions_with_files,
)
from commitlog.adapters.storage import store_for
from commitlog.client.leader.arguments import lances_words
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.opening import is_there
from commitlog.client.upkeep import RewriteGroups, rewrite_here
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, transaction_path_in
from commitlog.core.tables.lance_tables import is_in
from commitlog.errors import CommitLogError, NoSuchTable, OutcomeUnknown, Unavailable
from commitlog.model.maintenance_policy import MaintenancePolicy
from commitlog.model.names import REASON
from commitlog.model.table import Policy as Manifests
from consumers.tools.clocks import clock_difference
from consumers.tools.maintenance.tiers import tier_due

UNINDEXED_ROWS_LEAST = 1_000
ANCHOR_EVERY = 1_000
"""Thinning keeps every manifest of this number: a version is rebuilt from an earlier one."""
MANIFEST_SHARE, MANIFEST_BYTES_LEAST = 16, 256 * 1024
"""The newest manifests stay while they take less than this multiple of the newest one's bytes, or
less than these bytes: before a burst of small commits is compacted, each manifest names all of its
fragments."""
YOUNG_MS = 10_000
"""A reader may have listed a manifest this young, and be about to read it."""
TURN_SECONDS = 60.0
"""A compaction that takes longer commits what it has rewritten, and other tables get a turn."""
BEHIND_FRAGMENTS = 4_000
"""With this many to merge, maintenance runs at normal priority: each commit costs more by then."""
FRAGMENTS_AT_ONCE = 500
"""How many fragments a commit of a compaction replaces, besides the rest of the last group:
deciding it takes 25 microseconds for each, while all writers wait."""

LEFT_FOR_LATER = "left for later"
"""How the result of an act begins that failed."""

logger = logging.getLogger(__name__)


class Act(NamedTuple):
    """One thing to do to a table."""

    table: str
    kind: str
    """`compact`, `optimize`, `expire`, `thin`, `remove` or `purge`."""
    reason: str
    do: Callable[[], str]
    """Carries it out and returns a summary; empty: there was nothing left to do."""


OnAct = Callable[[Act, str], None]


def done(
    due: Iterable[Act],
    on_act: OnAct,
    *,
    dry_run: bool,
    results: list[str] | None = None,
    apart: bool = False,
) -> list[Act]:
    """Carry out each act before looking for the next one; return them.

    One that fails is told as left for later. With `apart`, each act concerns another table, and the
    others are done all the same. If Kafka or a leader doesn't answer, none is: they would wait for
    it too.
    """
    acts = []
    for act in due:
        acts.append(act)
        if dry_run:
            continue
        began = time.monotonic()
        try:
            result = act.do()
        except (CommitLogError, OSError, ValueError, RuntimeError) as error:
            result = f"{LEFT_FOR_LATER}: {error}"
            is_lost = isinstance(error, RuntimeError | Unavailable | OutcomeUnknown)
            if is_lost or not apart:
                on_act(act, result)
                raise
            logger.warning("%s was %s", act.table, result)
        if results is not None:
            results.append(result)
        told, took = result or "nothing was left to do", time.monotonic() - began
        logger.info("%s: %s (%s): %s, %.1f s", act.table, act.kind, act.reason, told, took)
        on_act(act, told)
    return acts


def expire(log: CommitLog, info: TableInfo, reason: str, bounds: Mapping[str, Any]) -> str:
    """Delete old versions of a table within the bounds of `expire_versions`; return a summary."""
    outcome = log.expire_versions(info.table_id, **bounds, properties={REASON: reason})
    return "" if outcome is None else f"record {outcome.sequence}"


def rewrite_for_a_turn(
    info: TableInfo, dataset: lance.LanceDataset, tasks: Sequence[CompactionTask], deadline: float
) -> list[RewriteResult]:
    """Rewrite groups of fragments in this process: one, and more if they are small."""
    counts = accumulate(len(fragments_of(task)) for task in tasks)
    small = takewhile(lambda count: count <= FRAGMENTS_AT_ONCE, counts)
    taken = 1 + sum(1 for _ in small)
    deadline = min(deadline, time.monotonic() + TURN_SECONDS)
    return rewrite_here(info, dataset, tasks[:taken], deadline)


class TableActs:
    """Finds the acts that are due for a table, and carries them out."""

    def __init__(
        self, log: CommitLog, rewrite: RewriteGroups, yields: Callable[[bool], object]
    ) -> None:
        """Act through a client of the log; `rewrite` rewrites what a compaction planned.

        `yields` is told whether what comes next leaves the processor to others.
        """
        self._log = log
        self._rewrite, self._yields = rewrite, yields
        self.stop = threading.Event()
        """Set: nothing more is begun."""
        self.bytes: dict[str, int] = {}
        """By incarnation: the bytes of its data files when it was last opened."""
        self.unripe: set[str] = set()
        """Incarnations of tables for which something will be due soon, without another commit."""
        self.optimized: dict[tuple[str, str], tuple[int, int]] = {}
        """By incarnation and index: the rows it covered and missed before it was optimized last."""

    def due(self, info: TableInfo, policy: MaintenancePolicy) -> Iterator[Act]:
        """Yield what is due; each act is done before the next one is looked for."""
        dataset = self._log.opened.newest(info)
        fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        self.bytes[info.incarnation] = sum(
            file.file_size_bytes or 0 for fragment in fragments for file in fragment.files
        )
        rows = [(one.physical_rows or 0, one.num_deletions) for one in fragments]
        del fragments
        self.unripe.discard(info.incarnation)
        yield from self._compactions(info, policy, rows)
        if self.stop.is_set():
            return
        yield from self._indices(info, policy, dataset)
        if policy.expire_days or policy.retain_versions:
            yield from self._expiry(info, policy)
        if info.policy is Manifests.LATEST and policy.keep_manifests:
            yield from self._thinning(info, policy)

    def _compactions(
        self, info: TableInfo, policy: MaintenancePolicy, rows: Sequence[tuple[int, int]]
    ) -> Iterator[Act]:
        self._yields(True)
        physical, deleted = sum(all_rows for all_rows, _ in rows), sum(dead for _, dead in rows)
        if physical and deleted > policy.deleted_share * physical:
            yield self._compaction(
                info,
                f"{deleted:,} of {physical:,} rows are deleted",
                target_rows_per_fragment=policy.target_rows,
                materialize_deletions_threshold=policy.deleted_share,
            )
            return
        enough = max(policy.small_fragments, 2)
        due = tier_due([all_rows for all_rows, _ in rows], policy.target_rows, enough)
        if due is not None:
            self._yields(due.fragments < BEHIND_FRAGMENTS)
            small = sum(all_rows for all_rows, _ in rows if all_rows < due.limit)
            mean = max(small // due.fragments, 1)
            yield self._compaction(
                info,
                f"{due.fragments:,} fragments have fewer than {due.limit:,} rows",
                target_rows_per_fragment=min(due.limit, mean * FRAGMENTS_AT_ONCE),
                materialize_deletions=False,
            )

    def _compaction(self, info: TableInfo, reason: str, **options: Any) -> Act:
        def do() -> str:
            counts, refused, version = Counter[str](), 0, 0
            end = time.monotonic() + TURN_SECONDS
            while time.monotonic() < end and not self.stop.is_set():
                kept = self._log.compact(
                    info.table_id, properties={REASON: reason}, rewrite=self._rewrite, **options
                )
                if kept.outcome is None or kept.metrics is None:
                    break
                counts.update(kept.metrics)
                refused, version = refused + len(kept.refusals), kept.outcome.version
                if kept.metrics["fragments_removed"] < FRAGMENTS_AT_ONCE:
                    break
            if not version:
                return ""
            told = "{fragments_removed} fragments became {fragments_added}".format(**counts)
            tries = f", after {refused} refused tries" if refused else ""
            return f"version {version}, {told}{tries}"

        return Act(info.name, "compact", reason, do)

    def _indices(
        self, info: TableInfo, policy: MaintenancePolicy, dataset: lance.LanceDataset
    ) -> Iterator[Act]:
        for name in dict.fromkeys(index.name for index in dataset.describe_indices()):
            if name.startswith("__lance_"):
                continue
            stats = dataset.stats.index_stats(name)
            missing, covered = stats["num_unindexed_rows"], stats["num_indexed_rows"]
            before = self.optimized.get((info.incarnation, name), (0, 0))
            if covered == before[0] and missing < 2 * before[1]:
                continue  # Lance can't learn an index from these rows: too few have vectors, say
            if missing > max(policy.unindexed_share * covered, UNINDEXED_ROWS_LEAST):
                reason = f"the index {name!r} misses {missing:,} of {missing + covered:,} rows"
                do = self._optimizing(info, reason, name, (covered, missing))
                yield Act(info.name, "optimize", reason, do)
                return

    def _optimizing(
        self, info: TableInfo, reason: str, name: str, before: tuple[int, int]
    ) -> Callable[[], str]:
        def do() -> str:
            self.optimized[info.incarnation, name] = before
            kept = self._log.optimize(info.table_id, properties={REASON: reason})
            return "" if kept.outcome is None else f"version {kept.outcome.version}"

        return do

    def _expiry(self, info: TableInfo, policy: MaintenancePolicy) -> Iterator[Act]:
        age = timedelta(days=policy.expire_days) if policy.expire_days else None
        reason = "; ".join(
            [f"older than {policy.expire_days:g} days"] * bool(age)
            + [f"behind {policy.retain_versions:,} newer ones"] * bool(policy.retain_versions)
        )
        bounds: dict[str, Any] = {
            "older_than": age,
            "retain_versions": policy.retain_versions or None,
        }
        if age is not None and (told := clock_difference(self._log)):
            logger.warning("%s: no version expires: %s", info.name, told)
            self.unripe.add(info.incarnation)
            return
        if not self._log.expirable(info.table_id, **bounds):
            return

        def do() -> str:
            return expire(self._log, info, reason, bounds)

        yield Act(info.name, "expire", reason, do)

    def _thinning(self, info: TableInfo, policy: MaintenancePolicy) -> Iterator[Act]:
        store, published = store_for(info.location), Published(info.location)
        found = {one.path: one for one in store.files(VERSIONS_DIRECTORY)}
        paths = {version: path for version, path in published.paths.items() if path in found}
        if not paths:
            return
        limit = max(MANIFEST_SHARE * found[paths[max(paths)]].size, MANIFEST_BYTES_LEAST)
        newest, taken = set[int](), 0
        for version in reversed(paths):
            taken += found[paths[version]].size
            if newest and (taken > limit or len(newest) >= policy.keep_manifests):
                break
            newest.add(version)
        # What is left of an expiry stays, for readers that open it by path.
        surplus = [
            version
            for version in sorted(paths.keys() - newest - referenced_versions(info.location))
            if version % ANCHOR_EVERY and not is_in(version - 1, info.deleted)
        ]
        # Not for each single one: a thinning looks through the folder.
        size = sum(found[paths[version]].size for version in surplus)
        if len(surplus) < policy.keep_manifests and size <= limit:
            return
        youngest_ms = time.time_ns() // 1_000_000 - YOUNG_MS
        ripe = [one for one in surplus if found[paths[one]].modified_ms < youngest_ms]
        if len(ripe) < len(surplus):
            self.unripe.add(info.incarnation)
        milestones = published.milestones(time.time())
        ripe = [version for version in ripe if version not in milestones]
        if not ripe:
            return

        def do() -> str:
            for version in ripe:
                with contextlib.suppress(FileNotFoundError):
                    beside = transaction_path_in(store.read(paths[version]))
                    # In this order: a leader puts back what a manifest names and isn't there.
                    store.delete(paths[version])
                    if beside:
                        store.delete(beside)
            return f"{len(ripe):,} manifests removed; the log makes any of them again"

        reason = f"{len(paths):,} manifests; the newest {len(newest)} stay"
        yield Act(info.name, "thin", reason, do)


def tell_failed(log: CommitLog, info: TableInfo, error: Exception) -> None:
    """Log that an act for a table failed and comes later, unless the table is gone."""
    stands = True
    try:
        stands = log.describe(info.table_id, fresh=True).incarnation == info.incarnation
    except NoSuchTable:
        stands = False
    except CommitLogError:
        pass  # who doesn't answer says nothing about the table
    if stands:
        logger.warning("%s was left for later: %s", info.name, lances_words(error))
    else:
        logger.info("%s was dropped meanwhile; nothing of it is left for later", info.name)


def keep_guard(info: TableInfo, tags: Callable[[], Any], *, is_on: bool) -> None:
    """Have a tag name the oldest version that has a file, or take it away.

    It keeps Lance's own cleanup off.

    `tags` returns those of a dataset at the table's location that no other code uses. A branch gets
    none: its tags are its table's, and a name can be only one version's.
    """
    if line_of(info.location)[1]:
        return
    guarded = guarded_version(info.location)
    if not is_on:
        if guarded:
            tags().delete(GUARD_TAG)
        return
    if guarded and not is_in(guarded, info.deleted) and is_there(info.location, guarded):
        return
    found = versions_with_files(info.location)
    oldest = next((v for v in found if not is_in(v, info.deleted)), 0)
    if guarded and oldest:
        tags().update(GUARD_TAG, oldest)
    elif oldest:
        tags().create(GUARD_TAG, oldest)
