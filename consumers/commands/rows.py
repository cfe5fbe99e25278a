"""`commitlog rows`: applies small writes of rows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.errors import InvalidSettings
from consumers.commands.options import HERE, Where, connect_client
from consumers.runtime.config import Config
from consumers.runtime.process import OnReady, run_part

if TYPE_CHECKING:
    from commitlog import CommitLog
    from consumers.tools.row_writer import RowWriterOptions


def rows(
    *,
    where: Where = HERE,
    age_ms: int = 50,
    writes_max: int = 5_000,
    spark: bool = False,
    master: str = "local[*]",
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
    from consumers.tools.row_writer import RowWriter, RowWriterOptions

    for name, value in (("age_ms", age_ms), ("writes_max", writes_max)):
        if value < 1:
            raise InvalidSettings(f"--{name.replace('_', '-')} is {value}; it must be 1 or more")
    config = where.load()
    root = config.root or Path.cwd()

    def work(stop: threading.Event, on_ready: OnReady) -> None:
        with connect_client(config, "rows") as log:
            on_ready("")
            options = RowWriterOptions(age_ms / 1000, writes_max)
            if spark:
                _run_on_spark(log, config, options, master, stop)
            else:
                RowWriter(log, options).run(stop)

    run_part("rows", root, work)


def _run_on_spark(
    log: CommitLog, config: Config, options: RowWriterOptions, master: str, stop: threading.Event
) -> None:
    from commitlog.spark import local_session
    from consumers.tools.row_stream import apply_on_spark

    reach = {"kafka.bootstrap.servers": config.need_bootstrap_servers(), "log": config.log}
    reach |= {f"kafka.{name}": value for name, value in config.kafka.items()}
    session = local_session("commitlog rows", cores=master)
    try:
        apply_on_spark(session, log, reach, stop, options)
    finally:
        session.stop()
