"""Finds the rows that a group of row writes is about, on the executors.

A row writer needs the rows that have a group's keys, which in a large table means to look through
all fragments. Each task looks through some of them. What they find is as small as the group, so the
rest of the work stays in the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import lance
import pyarrow as pa
from pyspark.sql import SparkSession

from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.data import arrow_stream
from commitlog.client.rows.excerpts import Excerpt
from commitlog.client.rows.row_groups import BaseScan, ReadBase, scan_base
from commitlog.client.rows.rows import ROW_ADDRESS
from commitlog.spark.mapping import of_each_number

FRAGMENTS_PER_TASK = 16
"""Tables of fewer are read in the driver."""

logger = logging.getLogger(__name__)


def base_on_executors(
    spark: SparkSession, *, fragments_per_task: int = FRAGMENTS_PER_TASK
) -> ReadBase:
    """Return what reads the rows with a group's keys as a Spark job."""

    def read(info: TableInfo, dataset: lance.LanceDataset, scan: BaseScan) -> pa.Table:
        numbers = [fragment.fragment_id for fragment in dataset.get_fragments()]
        if len(numbers) < fragments_per_task:
            return scan_base(dataset, scan)
        try:
            return spread(info, dataset, scan, numbers)
        except Exception as error:  # an executor was lost, say: the rows aren't to blame for it
            said = str(error).partition("\n")[0]
            logger.warning("executors failed, so the driver looks through %s: %s", info.name, said)
            return scan_base(dataset, scan)

    def spread(
        info: TableInfo, dataset: lance.LanceDataset, scan: BaseScan, numbers: list[int]
    ) -> pa.Table:
        tasks = -(-len(numbers) // fragments_per_task)
        shares = [numbers[task::tasks] for task in range(tasks)]
        whole = Excerpt.whole(dataset)
        work = partial(_scan, shares=shares, location=info.location, whole=whole, scan=scan)
        found = of_each_number(spark, tasks, work)
        parts = [pa.ipc.open_stream(rows).read_all() for rows in found]
        # Addresses sort as the driver's own scan would give them.
        return pa.concat_tables(parts).sort_by(ROW_ADDRESS)

    return read


def _scan(
    number: int, *, shares: Sequence[Sequence[int]], location: str, whole: Excerpt, scan: BaseScan
) -> bytes:
    """Read the share of fragments of this number; runs on an executor."""
    dataset = whole.open(location)
    fragments = [f for f in map(dataset.get_fragment, shares[number]) if f is not None]
    return arrow_stream(scan_base(dataset, scan, fragments))
