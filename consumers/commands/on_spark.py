"""What commands need that run on Spark: its packages, a master that can be, a session."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.adapters.storage_options import FILE_NAMED_BY
from commitlog.errors import InvalidSettings
from consumers.commands.jobs import need_module
from consumers.runtime.config import Config, ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
def spark_session(command: str, master: str, config: Config) -> Iterator[SparkSession]:
    """Yield a session whose processes reach the tables' stores as this one does."""
    from commitlog.spark import local_session

    conf = {}
    if config.storage_file:
        path = str(Path(config.storage_file).absolute())
        # For the driver's own processes, and for executors, also on other machines.
        os.environ[FILE_NAMED_BY] = path
        conf[f"spark.executorEnv.{FILE_NAMED_BY}"] = path
    session = local_session(f"commitlog {command}", cores=master, conf=conf)
    try:
        yield session
    finally:
        session.stop()
