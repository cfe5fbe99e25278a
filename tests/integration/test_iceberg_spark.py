"""Does Spark with Iceberg's own runtime work over `commitlog up`?

`python -m infra.oldest_spark` fetches both, 500 MB; here they are used if they are there.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from consumers.broker import find_java
from infra import oldest_spark
from tests.child import lines_of
from tests.iceberg_server import IcebergServer
from tests.integration.test_up import service

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
]

_CHILD = Path(__file__).with_name("iceberg_spark_child.py")
_SECONDS = 900


def test_spark_creates_writes_alters_and_reads(tmp_path: Path) -> None:
    oldest_spark.fetch()
    with service(tmp_path / "root", "--kafka-port", "0") as running:
        server = IcebergServer(running.port)
        java = find_java().path
        arguments = [server.uri, oldest_spark.jars(oldest_spark.ICEBERG), str(tmp_path)]
        lines = lines_of(
            [str(oldest_spark.python()), str(_CHILD), *arguments],
            cwd=tmp_path,
            env={"JAVA_HOME": str(java.resolve().parents[1])},
            seconds=_SECONDS,
        )
        found = json.loads(lines[-1])
        assert found["t"] == [[1, "z", None], [3, "c", None], [4, "d", 40]]
        assert found["copy"] == [[3, "c"], [4, "d"]]
        assert found["tables"] == ["moved", "t"]
        assert found["snapshots"] == 4
        assert found["first"] == [[3]]
        assert found["left"] == ["t"]
        loaded = server.ask("GET", "/v1/namespaces/spark/tables/t").json["metadata"]
        assert loaded["properties"]["said"] == "so"
