"""A Spark session, and a service on the broker that tests share: what real Spark runs need.

Spark's own processes reach the log as a user's would: by a Kafka address.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from commitlog import CommitLog
from commitlog.adapters.kafka import KafkaLog
from commitlog.spark import CommitLogDataSource, local_session
from commitlog.spark.log_source import LogReader
from commitlog.spark.options import parse_log
from tests.service import leading

QUERY_SECONDS = 180.0
ON_SPARK = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.slow,
    # Starting the JVM forks; nothing of Lance runs between that and its start.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]
"""The marks of a module that uses `SparkWorld`."""


@dataclass
class LogWorld:
    """A log of its own, and a client."""

    root: Path
    bootstrap_servers: str
    log: str
    client: CommitLog

    @property
    def options(self) -> dict[str, str]:
        """Return the options that reach the log."""
        return {"kafka.bootstrap.servers": self.bootstrap_servers, "log": self.log}

    def checkpoint(self, name: str) -> Path:
        """Return a checkpoint's folder."""
        return self.root / f"{name}-checkpoint"

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return a table's rows by id."""
        dataset = lance.dataset(self.client.table(table).location)
        found: list[dict[str, Any]] = dataset.to_table().to_pylist()
        return sorted(found, key=lambda row: (row["id"] is None, row["id"]))

    def log_rows(self, table: str) -> list[dict[str, Any]]:
        """Return the log's rows about a table."""
        options = parse_log({**self.options, "read": "log"})
        reader = LogReader(options, lambda _: self.client)
        found = [b for part in reader.partitions() for b in reader.read(part)]
        rows: list[dict[str, Any]] = [row for batch in found for row in batch.to_pylist()]
        return [row for row in rows if any(op["table"] == table for op in row["operations"])]

    def batches(self, table: str) -> list[int | None]:
        """Return the sequences of an application's commits to a table; None for other commits."""
        _, *made = (row for row in self.log_rows(table) if row["answers"] is None)
        return [row["application_sequence"] for row in made]

    def create(self, table: str, schema: pa.Schema, **options: Any) -> None:
        """Make a table."""
        self.client.create_table(table, schema, **options)


@dataclass
class SparkWorld(LogWorld):
    """A session over it."""

    spark: SparkSession

    def read(self, table: str, **options: Any) -> DataFrame:
        """Read a table."""
        reader = self.spark.read.format("commitlog").options(**self.options, table=table)
        return reader.options(**options).load()

    def files(self, name: str, *contents: list[dict[str, Any]]) -> DataFrame:
        """Return a stream of files, one per micro-batch, each with these rows."""
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        for position, rows in enumerate(contents):
            path = folder / f"{position}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (1_600_000_000 + position,) * 2)
        source = self.spark.readStream.schema("id long, name string, op string")
        return source.option("maxFilesPerTrigger", 1).json(str(folder))


def finish(query: Any) -> None:
    """Wait for a query that ends by itself; raise what it failed on."""
    assert query.awaitTermination(QUERY_SECONDS), "the query did not end"


@contextmanager
def log_world(root: Path, bootstrap_servers: str) -> Iterator[LogWorld]:
    """Make a log with a leader in this process."""
    name = f"spark-{uuid.uuid4().hex[:8]}"
    with closing(KafkaLog.connect(bootstrap_servers, log=name)) as log:
        log.create(tables_root=str(root / "tables"), replication_factor=1)
        with leading(log, root), CommitLog.connect(bootstrap_servers, log=name) as client:
            yield LogWorld(root, bootstrap_servers, name, client)


@contextmanager
def spark_world(root: Path, bootstrap_servers: str) -> Iterator[SparkWorld]:
    """Run a service and a session for as long as a module's tests need them."""
    with log_world(root, bootstrap_servers) as made:
        conf = {"spark.sql.session.timeZone": "America/New_York"}
        spark = local_session("tests", conf={**conf, "spark.sql.timeType.enabled": "true"})
        try:
            spark.dataSource.register(CommitLogDataSource)
            yield SparkWorld(**vars(made), spark=spark)
        finally:
            spark.stop()
