"""Compactions by executors that are processes of their own, and that die on the way."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from commitlog import CommitLog
from commitlog.adapters.kafka import KafkaLog
from commitlog.spark import compact, compaction
from consumers.tools.maintenance.cleaning import clean
from consumers.tools.maintenance.maintenance import Maintenance
from tests.spark_world import log_world

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
FRAGMENTS, ROWS = 24, 500
TARGET = 4_096
DIES, FAILS = 0, 1
"""The tasks whose first attempts end badly, once their files are written."""

rewritten = compaction._rewrite


def fails_at_first(number: int, **about: Any) -> str:
    """Rewrite a group as an executor that is killed, or as a task that fails."""
    made = rewritten(number, **about)
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0 and context.partitionId() == DIES:
        status = Path(f"/proc/{os.getppid()}/status").read_text()
        [parent] = [line.split()[1] for line in status.splitlines() if line.startswith("PPid")]
        os.kill(int(parent), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    if context.attemptNumber() == 0 and context.partitionId() == FAILS:
        raise OSError("the first attempt fails")
    return made


def fill(log: CommitLog, table: str, *, stable_row_ids: bool) -> Path:
    """Make a table of small fragments, some rows of them deleted, with an index."""
    log.create_table(table, SCHEMA, stable_row_ids=stable_row_ids)
    for number in range(FRAGMENTS):
        ids = range(number * ROWS, (number + 1) * ROWS)
        log.append(table, pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=SCHEMA))
    log.delete(table, "id % 7 = 3")
    log.create_index(table, "id", "BTREE")
    return Path(log.table(table).location)


def content(dataset: lance.LanceDataset, *, with_row_ids: bool) -> list[Any]:
    """Return all that must not depend on who compacts, fragments' sizes included."""
    found = dataset.to_table(with_row_id=with_row_ids).to_pylist()
    sizes = [fragment.count_rows() for fragment in dataset.get_fragments()]
    by_index = [dataset.to_table(filter=f"id = {i}").to_pylist() for i in (0, 3, 700, 11_999)]
    covered = dataset.stats.index_stats("id_idx")
    counts = [covered["num_indexed_rows"], covered["num_unindexed_rows"]]
    return [found, sizes, by_index, counts]


def run(spark: SparkSession, bootstrap_servers: str) -> None:
    """Compact tables in all these ways, and print what came of it."""
    with (
        tempfile.TemporaryDirectory(prefix="commitlog-compaction-") as folder,
        log_world(Path(folder), bootstrap_servers) as world,
    ):
        log, options = world.client, world.options
        _as_pylance_alone(spark, log, options, stable_row_ids=False)
        compaction._rewrite = fails_at_first
        try:
            _as_pylance_alone(spark, log, options, stable_row_ids=True)
        finally:
            compaction._rewrite = rewritten
        raw = KafkaLog.connect(bootstrap_servers, log=world.log)
        try:
            _leftovers(raw, log)
        finally:
            raw.close()
        _by_policy_beside_writers(spark, log)


def _as_pylance_alone(
    spark: SparkSession, log: CommitLog, options: dict[str, str], *, stable_row_ids: bool
) -> None:
    table = f"c$alone{int(stable_row_ids)}"
    place = fill(log, table, stable_row_ids=stable_row_ids)
    twin = place.with_name(f"{place.name}-twin")
    shutil.copytree(place, twin)
    kept = compact(spark, table, options=options, target_rows_per_fragment=TARGET)
    assert kept.outcome is not None
    assert kept.metrics is not None
    plain = lance.dataset(str(twin))
    plain.optimize.compact_files(target_rows_per_fragment=TARGET)
    ours = content(log.open(table), with_row_ids=stable_row_ids)
    assert ours == content(lance.dataset(str(twin)), with_row_ids=stable_row_ids)
    shutil.rmtree(twin)
    added, removed = kept.metrics["fragments_added"], kept.metrics["fragments_removed"]
    print(f"compacted: {removed} fragments became {added}", flush=True)


def _leftovers(raw: KafkaLog, log: CommitLog) -> None:
    listed = clean(raw, "c$alone1", 0)
    data = [one for one in listed if "/data/" in one["location"]]
    assert len(data) >= 2
    assert {one["why"] for one in data} == {"abandoned"}
    before = log.open("c$alone1").to_table()
    assert clean(raw, "c$alone1", 0, log) == listed
    assert not any(Path(one["location"]).exists() for one in listed)
    assert lance.dataset(log.table("c$alone1").location).to_table() == before
    print(f"removed: {len(listed)} files of lost attempts", flush=True)


def _by_policy_beside_writers(spark: SparkSession, log: CommitLog) -> None:
    fill(log, "c$kept", stable_row_ids=True)
    before = log.open("c$kept").to_table(with_row_id=True)
    ids = dict(zip(before["id"].to_pylist(), before["_rowid"].to_pylist(), strict=True))
    groups: list[int] = []

    def beside(info: Any, dataset: Any, tasks: Any, deadline: float) -> list[Any]:
        groups.append(len(tasks))
        results = compaction.on_executors(spark)(info, dataset, tasks, deadline)
        log.delete("c$kept", "id % 5 = 1")
        log.append("c$kept", pa.table({"id": [-1], "name": ["new"]}, schema=SCHEMA))
        return results

    version = log.table("c$kept").version
    Maintenance(log, rewrite=beside).look()
    assert len(groups) == 1, "it landed at once"
    assert groups[0] > 1
    after = log.open("c$kept").to_table(with_row_id=True)
    found = dict(zip(after["id"].to_pylist(), after["_rowid"].to_pylist(), strict=True))
    assert found.pop(-1) is not None
    assert found == {i: row_id for i, row_id in ids.items() if i % 5 != 1}
    assert len(log.open("c$kept").get_fragments()) == groups[0] + 1
    assert log.table("c$kept").version >= version + 3
    print(f"compacted by policy, {groups[0]} groups at once", flush=True)
