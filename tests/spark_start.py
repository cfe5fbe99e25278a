"""Lets Spark sessions of tests start with half of the CPU: their JVM maps classes that were parsed.

An archive of classes fits one Java, its flags, and one class path. So sessions share a SPARK_HOME,
where each has one in a folder of its own otherwise. Both are kept in this Python's environment, and
go with it; the archive is written by a session that does a little of everything, `python -m
tests.spark_start FOLDER`. Where there is none, and with a Java that it isn't of, sessions start as
they always do.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
MAKE_SECONDS = 300.0
AS_USERS_DO = {"SPARK_HOME": "", "SPARK_SUBMIT_OPTS": ""}
"""The environment of a process whose sessions start without any of this."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Prepare for the first test that needs Spark."""
    if item.get_closest_marker("spark"):
        _prepare()


@cache
def _prepare() -> None:
    """Let sessions that start from now on be quick, those of child processes too."""
    import pyspark

    from commitlog.java import find_java
    from commitlog.spark.session import spark_home
    from consumers.broker.jars import locked

    java = find_java().path.resolve()
    flags = os.environ.get("JDK_JAVA_OPTIONS", "")
    identity = f"{pyspark.__file__} {pyspark.__version__} {java} {java.stat().st_mtime_ns} {flags}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / f"tests-spark-{key}"
    home, classes = folder / "spark", folder / "classes.jsa"
    with locked(folder / "lock", time.monotonic() + MAKE_SECONDS, None):
        if not home.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                spark_home(Path(scratch)).rename(home)
        os.environ["SPARK_HOME"] = str(home)
        if not classes.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _archive(Path(scratch), classes)
    if classes.exists():
        os.environ["SPARK_SUBMIT_OPTS"] = f"-Xlog:disable -XX:SharedArchiveFile={classes}"


def _archive(scratch: Path, classes: Path) -> None:
    made = scratch / classes.name
    options = f"-Xlog:disable -XX:ArchiveClassesAtExit={made}"
    try:
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.spark_start", scratch],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options},
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=MAKE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return  # A machine that is too busy for it does without.
    if made.exists():
        made.rename(classes)


def main(folder: Path) -> None:
    """Use what sessions of tests use, and wait for the JVM, which writes the archive as it ends."""
    import pyarrow as pa

    from commitlog.spark import local_session
    from tests.fakes.spark_log import FakeDataSource, FakeLog

    FakeLog(folder).create_table("t", pa.schema([("id", pa.int64()), ("name", pa.string())]))
    options = {"table": "t", "kafka.bootstrap.servers": str(folder)}
    spark = local_session("classes")
    spark.dataSource.register(FakeDataSource)
    rows = spark.range(9).repartition(3).selectExpr("id", "cast(id AS string) AS name")
    rows.write.format("commitlog").options(**options).mode("append").save()
    read = spark.read.format("commitlog").options(**options).load()
    read.groupBy("name").count().join(rows, "name", "left").orderBy("id").collect()
    read.createOrReplaceTempView("seen")
    spark.sql("SELECT max(id) FROM seen WHERE name LIKE '%1'").toArrow()
    (folder / "in").mkdir()
    (folder / "in" / "0.json").write_text(json.dumps({"id": 10}))
    stream = spark.readStream.schema("id long, name string").json(str(folder / "in"))
    sink = stream.writeStream.format("commitlog").options(**options)
    sink = sink.option("checkpointLocation", str(folder / "checkpoint"))
    sink.trigger(availableNow=True).start().awaitTermination()
    each = stream.writeStream.foreachBatch(lambda frame, _: frame.foreach(print))
    each.trigger(availableNow=True).start().awaitTermination()
    gateway: Any = spark.sparkContext._gateway
    jvm = gateway.proc
    spark.stop()
    jvm.stdin.close()
    jvm.wait(MAKE_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
