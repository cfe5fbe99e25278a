"""What commands need that run on Spark: its packages, a master that can be, a session."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.adapters.storage_options import FILE_NAMED_BY
from commitlog.errors import CommitLogError, InvalidSettings
from consumers.commands.jobs import need_module
from consumers.runtime.config import Config, ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkEnded(CommitLogError):
    """Spark's Java process ended while the command ran."""

    def __init__(self, code: int) -> None:
        """Name its exit code."""
        super().__init__(
            f"Spark's Java process ended with exit code {code}, its messages say why: start this"
            " command again, and it continues where it was"
        )


HERE = "local[*]"
_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|spark://.+|k8s://.+|yarn")


def check_spark(command: str, *, spark: bool, master: str) -> None:
    """Refuse what can't run, before anything starts.

    Raises InvalidSettings for a wrong master, ConfigurationError if packages are missing.
    """
    if not spark:
        if master != HERE:
            raise InvalidSettings(f"--master is {master}, which needs --spark: add that")
        return
    if not _MASTER.fullmatch(master):
        raise InvalidSettings(
            f"--master is {master!r}; Spark knows local[*], spark://HOST:PORT, yarn and k8s://URL"
        )
    need_module("pyspark", extra="spark", command=command)
    try:
        import_module("commitlog.spark")
    except ModuleNotFoundError:
        raise
    except ImportError as error:  # another PySpark
        raise ConfigurationError(str(error)) from error


@contextmanager
def spark_session(
    command: str, master: str, config: Config, stop: threading.Event
) -> Iterator[SparkSession]:
    """Yield a session whose processes reach the tables' stores as this one does.

    If its Java process ends, `stop` is set, and SparkEnded raised once the work has stopped: a
    Python process starts one Java process only, so no job succeeds any more.
    """
    from commitlog.spark import local_session

    conf = {}
    if config.storage_file:
        path = str(Path(config.storage_file).absolute())
        # For the driver's own processes, and for executors, also on other machines.
        os.environ[FILE_NAMED_BY] = path
        conf[f"spark.executorEnv.{FILE_NAMED_BY}"] = path
    session = local_session(f"commitlog {command}", cores=master, conf=conf)
    java = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    has_ended = threading.Event()

    def watch() -> None:
        java.wait()
        if not stop.is_set():
            has_ended.set()
            stop.set()

    threading.Thread(target=watch, name="Spark's process", daemon=True).start()
    try:
        yield session
    except Exception as error:
        if java.poll() is not None:
            raise SparkEnded(java.returncode) from error
        raise
    else:
        if has_ended.is_set():
            raise SparkEnded(java.returncode)
    finally:
        if java.poll() is None:
            session.stop()
