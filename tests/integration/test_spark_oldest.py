"""The oldest PySpark that is supported, alone and beside Delta's and Iceberg's own jars.

`python -m infra.oldest_spark` fetches it and the jars, 500 MB; here they are fetched if need be.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumers.broker.errors import JarsUnavailable
from infra import oldest_spark
from tests import spark_start
from tests.child import lines_of
from tests.older_java import skip_on_new_java
from tests.spark_world import log_world

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
]

REPOSITORY = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("oldest_spark_child.py")
WIDE = pa.schema(
    [("id", pa.int32()), ("name", pa.string()), ("at", pa.timestamp("ns", "UTC")),
     ("day", pa.timestamp("us")), ("v", pa.list_(pa.float32(), 2))]
)  # fmt: skip
COPY = pa.schema([("id", pa.int32()), ("kind", pa.string())])
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SECONDS = 600


def test_the_oldest_pyspark_has_it_all_beside_delta_and_iceberg(
    broker: Any, tmp_path: Path
) -> None:
    skip_on_new_java("PySpark 4.1")
    try:
        oldest_spark.fetch()
    except JarsUnavailable as error:
        pytest.skip(f"no registry has PySpark 4.1, or Delta's and Iceberg's jars: {error}")
    with log_world(tmp_path, broker.bootstrap_servers) as world:
        world.create("s$old", WIDE, stable_row_ids=True)
        world.create("s$copy", COPY)
        world.create("s$t", SCHEMA)
        given = [broker.bootstrap_servers, world.log, oldest_spark.jars(), str(tmp_path)]
        path = os.pathsep.join([str(oldest_spark.packages()), str(REPOSITORY)])
        command = [sys.executable, str(CHILD), *given]
        environment = {"PYTHONPATH": path, **spark_start.AS_USERS_DO}
        lines = lines_of(command, cwd=tmp_path, env=environment, seconds=SECONDS)
    found = json.loads(lines[-1])
    assert found["version"] == oldest_spark.PYSPARK.partition("==")[2]
    alone = found["alone"]
    assert alone["rows"] == [
        [1, "a", [1.0, 0.5]], [2, "m", [1.0, 0.5]], [3, "sql", None], [4, "x", [1.0, 0.5]],
        [5, "x", None], [6, "a", [1.0, 0.5]],
    ]  # fmt: skip
    assert alone["times"] == ["timestamp", "timestamp_ntz"]
    assert alone["kinds"] == {"insert": 7, "update_preimage": 2, "update_postimage": 2}
    assert alone["seen"] == alone["outcomes"] > 7
    said = alone["refused"]
    assert said.pop("insert") == ""
    assert "'maxRowsPerTrigger' needs PySpark 4.2" in said.pop("limit")
    assert all(text.startswith("NotInSql: ") for text in said.values()), said
    formats = found["formats"]
    assert formats["lance"] == [[2, "lance"], [3, "iceberg"]]
    assert formats["delta"] == [[1, "changed"], [2, "lance"], [3, "iceberg"]]
    assert formats["iceberg"] == [[1, "delta"], [3, "iceberg"]]
    assert formats["first"] == 2
    # Delta's session catalog would make the name, and knows no Python data source when it is used.
    assert "TEMPORARY VIEW" in formats["refused"]["create"]
    assert all(formats["refused"].values()), formats["refused"]
