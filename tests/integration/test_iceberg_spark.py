"""Does Spark with Iceberg's own runtime work over `commitlog up`?

`python -m infra.oldest_spark` fetches both, 500 MB; here they are used if they are there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consumers.broker.java import find_java
from infra import oldest_spark
from tests.child import lines_of
from tests.iceberg_server import IcebergServer
from tests.integration.test_up import NO_ROW_PROCESSES, run, service
from tests.older_java import skip_on_new_java
from tests.spark_start import AS_USERS_DO
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
]

_CHILD = Path(__file__).with_name("iceberg_spark_child.py")
_SECONDS = 600


def test_spark_creates_writes_alters_and_reads(tmp_path: Path) -> None:
    skip_on_new_java("PySpark 4.1")
    oldest_spark.fetch()
    with service(tmp_path / "root", "--kafka-port", "0", *NO_ROW_PROCESSES) as running:
        server = IcebergServer(running.port)
        java = find_java().path
        arguments = [server.uri, oldest_spark.jars(oldest_spark.ICEBERG), str(tmp_path)]
        lines = lines_of(
            [str(oldest_spark.python()), str(_CHILD), *arguments],
            cwd=tmp_path,
            env={
                **AS_USERS_DO,
                "JAVA_HOME": str(java.resolve().parents[1]),
                "SPARK_HOME": str(oldest_spark.packages() / "pyspark"),
            },
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
        assert found["first-view"] == [[3], [4]]
        assert found["second-view"] == [[2], [4], [5]]
        assert found["views"] == ["gone", "v"]
        assert found["views-left"] == ["v"]
        _undo_and_prove(running.root, server, loaded)


def _undo_and_prove(root: Path, server: IcebergServer, table: dict[str, Any]) -> None:
    """Bring back a view that was dropped and rows that were deleted; prove the log, and copy it."""

    def command(*arguments: str) -> str:
        done = run(*arguments, "--root", str(root))
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    before = json.loads(Path(table["metadata-log"][-1]["metadata-file"]).read_text())
    position = before["properties"]["commitlog.position"]
    command("undrop", "spark$gone")
    rolled = json.loads(command("rollback", "spark$t", "--to", position, "--json"))
    now = server.ask("GET", "/v1/namespaces/spark/tables/t").json["metadata"]
    assert now["current-snapshot-id"] == before["current-snapshot-id"]
    assert now["properties"]["commitlog.position"] == str(rolled[0]["position"])
    views = server.ask("GET", "/v1/namespaces/spark/views").json["identifiers"]
    assert [one["name"] for one in views] == ["gone", "v"]
    for name in ("gone", "v"):
        loaded = server.ask("GET", f"/v1/namespaces/spark/views/{name}").json["metadata"]
        explain = ("explain", loaded["properties"]["commitlog.position"], "--root", str(root))
        wait_until(lambda: run(*explain).returncode == 0, "an index that knows of it")  # noqa: B023
        assert f"spark${name}" in run(*explain).stdout
    command("verify")
    command("backup", str(root.parent / "backup"))
