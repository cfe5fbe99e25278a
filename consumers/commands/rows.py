"""`commitlog rows`: applies small writes of rows."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.errors import InvalidSettings
from consumers.commands.on_spark import HERE as SPARK_HERE
from consumers.commands.on_spark import check_spark, spark_session
from consumers.commands.options import HERE, Where, connect_client
from consumers.runtime.config import Config
from consumers.runtime.process import OnReady, run_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from commitlog import CommitLog
    from consumers.tools.rows.writer import RowWriterOptions


def rows(
    *,
    where: Where = HERE,
    age_ms: int = 50,
    writes_max: int = 5_000,
    spark: bool = False,
    master: str = SPARK_HERE,
) -> None:
    """Apply accepted writes of rows to their tables, in groups.

    Any number may run for one log; `commitlog up` runs one.

    Parameters
    ----------
    age_ms
        Milliseconds for which writes to a table are gathered into one group.
    writes_max
        Writes of one group at most.
    spark
        Run as a Spark Structured Streaming job: executors find the rows that groups change.
    master
        Spark's master URL; for --spark.
    """
    from consumers.tools.rows.writer import RowWriter, RowWriterOptions

    for name, value in (("age_ms", age_ms), ("writes_max", writes_max)):
        if value < 1:
            raise InvalidSettings(f"--{name.replace('_', '-')} is {value}; it must be 1 or more")
    check_spark("rows", spark=spark, master=master)
    config = where.load()
    root = config.root or Path.cwd()

    def work(stop: threading.Event, on_ready: OnReady) -> None:
        options = RowWriterOptions(age_ms / 1000, writes_max)
        with connect_client(config, "rows") as log, ExitStack() as stack:
            if spark:
                session = stack.enter_context(spark_session("rows", master, config, stop))
                on_ready("")
                _run_on_spark(session, log, config, options, stop)
                return
            on_ready("")
            RowWriter(log, options).run(stop)

    run_part("rows", root, work)


def _run_on_spark(
    session: SparkSession,
    log: CommitLog,
    config: Config,
    options: RowWriterOptions,
    stop: threading.Event,
) -> None:
    from commitlog.adapters.kafka_file import read_kafka_file
    from consumers.tools.rows.stream import apply_on_spark

    reach = {"kafka.bootstrap.servers": config.need_bootstrap_servers(), "log": config.log}
    in_file: dict[str, str] = {}
    if config.kafka_file:
        # Spark's processes read it themselves, so that no plan has what is in it.
        reach["kafkaFile"] = str(Path(config.kafka_file).expanduser().absolute())
        in_file = read_kafka_file(config.kafka_file)
    reach |= {f"kafka.{k}": v for k, v in config.kafka.items() if in_file.get(k) != v}
    apply_on_spark(session, log, reach, stop, options)
