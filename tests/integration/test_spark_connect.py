"""A client of Spark Connect, which has no JVM of its own and runs functions on batches elsewhere.

What its client needs beside PySpark is pinned in `infra/spark-connect.txt`, and fetched here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog.java import find_java
from commitlog.spark.session import java_home
from consumers.broker.errors import JarsUnavailable
from infra import environments
from tests.child import lines_of
from tests.spark_start import python_path
from tests.spark_world import log_world

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
]

REPOSITORY = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("connect_child.py")
PINS = REPOSITORY / "infra" / "spark-connect.txt"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SECONDS = 600


def test_a_client_of_spark_connect_writes_reads_and_audits(broker: Any, tmp_path: Path) -> None:
    try:
        environments.fetch(PINS)
    except JarsUnavailable as error:
        pytest.skip(f"no registry has what Spark Connect's client needs: {error}")
    with log_world(tmp_path, broker.bootstrap_servers) as world:
        world.create("s$log", SCHEMA)
        world.create("s$t", SCHEMA, primary_key="id")
        path = python_path(environments.packages(PINS), REPOSITORY)
        command = [sys.executable, str(CHILD), broker.bootstrap_servers, world.log, str(tmp_path)]
        # The machine's Java, or where it has none, the packaged one.
        java = str(java_home(find_java(), tmp_path))
        environment = {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": java}
        lines = lines_of(command, cwd=tmp_path, env=environment, seconds=SECONDS)
    found = json.loads(lines[-1])
    assert found["session"] == "pyspark.sql.connect.session"
    assert "txnAppId" in found["unnamed"]
    assert (found["streamed"], found["again"]) == ("", "")
    assert found["merged"] == [1, 1, 1]
    assert found["rows"] == [[1, "a"], [2, "m"], [3, "s"], [5, "m"]]
    assert found["compacted"][0] > found["compacted"][1] > 1, "several groups, each a task"
    assert found["log"] == sorted([[1, "a"], [2, "a"]] * 4 + [[3, "s"], [4, "s"]])
    assert "read='log'" in found["repeats"]
    assert found["outcomes"] > 8
    assert found["differences"] == []
