"""Expires snapshots of Iceberg tables by their policies, with the rules of `expire_snapshots`.

A metadata file names every snapshot, so a table whose snapshots never expire costs each commit and
each reader more as it gets older. An expiry is a record of its own, as a client would commit it.
Its files go as those of any expiry do: later, once no metadata file leads to them.

As with Iceberg's own, a new tag on a snapshot that expires in the same moment goes with it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from commitlog import CommitLog
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.reading import dump_json
from commitlog.errors import CommitLogError, InvalidSettings, RetryableConflict
from commitlog.messages import IcebergDescription
from commitlog.model.maintenance_policy import MaintenancePolicy
from commitlog.model.names import REASON
from commitlog.model.operations import IcebergChange
from commitlog.model.table import TableId, format_table_id
from consumers.partition.files.iceberg_files import IcebergFiles
from consumers.tools.iceberg.leftovers import standing_tables
from consumers.tools.maintenance.maintenance_policy import Policies
from consumers.tools.maintenance.table_acts import Act

SNAPSHOTS_AT_ONCE = 50_000
"""An expiry names its snapshots, and a record has 16 MiB at most."""
TRIES_MAX = 5
TIMEOUT_SECONDS = 60.0
WAIT_SHARE = 8
"""A table at rest is read again after an eighth of the time that its snapshots stay."""
_DAY_MS = 86_400_000
_AGE, _LEAST = "max-snapshot-age-ms", "min-snapshots-to-keep"
"""What a branch may say of itself, and a table by `history.expire.` before it."""

logger = logging.getLogger(__name__)


def expired(table: IcebergTable, policy: MaintenancePolicy, now_ms: float) -> list[int]:
    """Return the ids of the snapshots that a policy gives up, oldest first.

    Snapshots stay that a tag or the end of a branch names. A branch's own limits, or else the
    table's, replace the policy's (Iceberg's specification, "Snapshot Retention Policy").
    """
    times = {one["snapshot-id"]: one["timestamp-ms"] for one in table.snapshots}
    parents = {one["snapshot-id"]: one.get("parent-snapshot-id") for one in table.snapshots}
    # Without an age, the number of newer ones alone decides.
    age_ms = policy.expire_days * _DAY_MS or -math.inf
    least = max(policy.retain_versions, 1)
    kept, behind = {table.current_snapshot_id}, set[Any]()
    for ref in table.refs.values():
        kept.add(ref["snapshot-id"])
        if ref["type"] == "branch":
            end, own_least = ref["snapshot-id"], _limit(table, ref, _LEAST, least)
            own_oldest_ms = now_ms - _limit(table, ref, _AGE, age_ms)
            kept.update(_newest(end, parents, times, own_least, own_oldest_ms))
            behind.update(_newest(end, parents, times, math.inf, 0, besides=behind))
    oldest_ms = now_ms - _limit(table, {}, _AGE, age_ms)
    by_age = sorted(times, key=times.__getitem__)
    newest = set(by_age[-least:])
    return [
        one
        for one in by_age
        if one not in kept and (one in behind or (one not in newest and times[one] < oldest_ms))
    ]


def _newest(
    one: Any,
    parents: Mapping[Any, Any],
    times: Mapping[Any, int],
    least: float,
    oldest_ms: float,
    besides: Collection[Any] = (),
) -> list[Any]:
    """Return a snapshot and those before it: so many, and all that aren't older."""
    found: dict[Any, None] = {}
    while one in times and one not in found and one not in besides:
        if len(found) >= least and times[one] < oldest_ms:
            break
        found[one] = None
        one = parents[one]
    return list(found)


def _limit(table: IcebergTable, ref: Mapping[str, Any], name: str, otherwise: float) -> float:
    """Return a branch's own limit, else the table's, else the policy's."""
    said = ref.get(name, table.properties.get(f"history.expire.{name}"))
    try:
        return otherwise if said is None else float(said)
    except ValueError:
        return math.inf if name == _AGE else otherwise  # nobody knows what was meant: it stays


class IcebergExpiry:
    """Finds snapshots that expire by policy, and commits that they do."""

    def __init__(self, log: CommitLog, files: IcebergFiles, policies: Policies) -> None:
        """Act through a client of the log."""
        self._log = log
        self._files = files
        self._policies = policies
        self._rests: dict[tuple[TableId, str], float] = {}
        """By table and metadata file: until when nothing is due, in milliseconds."""

    def forget(self) -> None:
        """Look at each table again: policies have changed."""
        self._rests.clear()

    def due(self, now_ms: int) -> Iterator[Act]:
        """Yield what expires snapshots, table by table; each is done before the next is read."""
        heads = [head for head in standing_tables(self._log) if not head.is_view]
        known, self._rests = self._rests, {}
        for head in heads:
            key = head.table, head.metadata_location
            self._rests[key] = known.get(key, 0)
            if self._rests[key] > now_ms:
                continue
            name = format_table_id(head.table)
            try:
                table = self._files.table(head.metadata_location)
                policy = self._policies.of_properties(head.table, table.properties)
            except (CommitLogError, OSError, Invalid) as error:
                logger.warning("%s: no snapshot expires: %s", name, error)
                if isinstance(error, InvalidSettings):
                    self._rests[key] = math.inf
                continue
            self._rests[key] = math.inf
            if policy.mode != "on" or not (policy.expire_days or policy.retain_versions):
                continue
            if policy.expire_days:
                self._rests[key] = now_ms + policy.expire_days * _DAY_MS / WAIT_SHARE
            if found := expired(table, policy, now_ms):
                reason = _reason(policy, len(found), len(table.snapshots))
                yield Act(
                    name, "expire", reason, partial(self._expire, head, policy, now_ms, reason)
                )

    def _expire(
        self, head: IcebergDescription, policy: MaintenancePolicy, now_ms: int, reason: str
    ) -> str:
        runtime, tries = self._log.runtime(), 0
        while True:
            asked = {"table": list(head.table)}
            told = runtime.request(runtime.domains.partition(head.table), "iceberg_table", **asked)
            if told is None or told["uuid"] != head.uuid:
                return ""
            table = self._files.table(IcebergDescription.from_json(told).metadata_location)
            gone = expired(table, policy, now_ms)[:SNAPSHOTS_AT_ONCE]
            if not gone:
                return ""
            ticket = self._log.submit(
                None, _removal(head.table, table, gone), properties={REASON: reason}
            )
            try:
                outcome = ticket.result(TIMEOUT_SECONDS).raise_for_conflict()
            except RetryableConflict:
                tries += 1
                if tries == TRIES_MAX:
                    raise
            else:
                return f"{len(gone):,} snapshots, record {outcome.sequence}"


def _reason(policy: MaintenancePolicy, count: int, all_of_them: int) -> str:
    limits = [f"older than {policy.expire_days:g} days"] * bool(policy.expire_days)
    limits += [f"behind {policy.retain_versions:,} newer ones"] * bool(policy.retain_versions)
    return f"{count:,} of {all_of_them:,} snapshots are {' and '.join(limits)}"


def _removal(name: TableId, table: IcebergTable, gone: list[int]) -> IcebergChange:
    """Return what removes snapshots, if each branch and tag is still what it was."""
    requirements: list[dict[str, Any]] = [{"type": "assert-table-uuid", "uuid": table.uuid}]
    requirements += (
        {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": said["snapshot-id"]}
        for ref, said in table.refs.items()
    )
    updates = [{"action": "remove-snapshots", "snapshot-ids": gone}]
    return IcebergChange(name, dump_json(requirements), dump_json(updates))
