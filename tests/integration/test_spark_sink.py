"""The Spark sink and source on a real Spark, over a stand-in for the log.

Each test starts the Spark program in a process of its own: a session is one per process, and the
crash tests kill its JVM with -9 in the middle of a commit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

from tests import spark_start
from tests.fakes.spark_log import FakeLog

pytestmark = [pytest.mark.spark, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = "nyc$events"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("vector", pa.list_(pa.float32(), 2)),
        pa.field("note", pa.string()),
    ]
)
START = """
import json, os, sys
from pathlib import Path
from commitlog.spark import local_session
root = Path(sys.argv[1])
spark = local_session("test", conf={"spark.sql.session.timeZone": "America/New_York"})
(root / "jvm.pid").write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
from tests.fakes.spark_log import FakeDataSource
spark.dataSource.register(FakeDataSource)
OPTIONS = {"table": "nyc$events", "kafka.bootstrap.servers": str(root)}
COLUMNS = ["id", "timestamp_seconds(id) AS at",
           "array(cast(id AS double), cast(1 AS double)) AS vector"]
def stream(root=root):
    source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    frame = source.json(str(root / "input")).selectExpr(*COLUMNS)
    options = {**OPTIONS, "kafka.bootstrap.servers": str(root)}
    return (frame.writeStream.format("commitlog").options(**options)
            .option("checkpointLocation", str(root / "checkpoint"))
            .trigger(availableNow=True).start())
def failure(action):
    try:
        action()
    except Exception as error:
        return str(error)
    return "no error"
def tell(**facts):
    (root / "told.json").write_text(json.dumps(facts))
"""


@pytest.fixture
def log(tmp_path: Path) -> FakeLog:
    made = FakeLog(tmp_path)
    made.create_table(TABLE, SCHEMA)
    return made


def run(log: FakeLog, program: str, *, killed: bool = False, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", START + program, str(log.root)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode != 0) == killed, done.stderr[-3000:]
    told = log.root / "told.json"
    return dict(json.loads(told.read_text())) if told.exists() else {}


def put_files(log: FakeLog, *contents: range) -> None:
    folder = log.root / "input"
    folder.mkdir(exist_ok=True)
    for position, ids in enumerate(contents):
        path = folder / f"{position}.json"
        path.write_text("".join(json.dumps({"id": i}) + "\n" for i in ids))
        os.utime(path, (1_600_000_000 + position,) * 2)


def ids(log: FakeLog) -> list[int]:
    return sorted(log.open(TABLE).to_table(columns=["id"])["id"].to_pylist())


def keys(log: FakeLog) -> list[Any]:
    return [entry["key"] for entry in log.journal()]


@pytest.mark.parametrize("java", ["system", "packaged"])
def test_batches_append_overwrite_and_read_on_either_java(
    log: FakeLog, java: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
frame = spark.range(100).repartition(3).selectExpr(*COLUMNS)
write = lambda **more: frame.write.format("commitlog").options(**OPTIONS).options(**more)
write().mode("append").save()
write(txnAppId="job", txnVersion="7").mode("append").save()
write(txnAppId="job", txnVersion="7").mode("append").save()
read = lambda **more: spark.read.format("commitlog").options(**OPTIONS).options(**more).load()
after = read().count()
write(rowsPerFile="10").mode("overwrite").save()
rows = [[r.id, r.at.timestamp(), r.vector, r.note] for r in read().orderBy("id").limit(2).collect()]
tell(after=after, rows=rows, now=read().count(), old=read(versionAsOf="2").count(),
     narrow=read(columns="id,note").columns,
     java=spark._jvm.java.lang.System.getProperty("java.version"),
     workers=spark.range(1).rdd.map(lambda _: __import__("pyspark").__file__).first())
"""
    if java == "packaged":  # the archive of classes is the other one's
        for name, value in spark_start.AS_USERS_DO.items():
            monkeypatch.setenv(name, value)
    told = run(log, program, COMMITLOG_JAVA=java)
    assert (told["after"], told["now"], told["old"]) == (200, 100, 100)
    assert told["rows"] == [[0, 0.0, [0.0, 1.0], None], [1, 1.0, [1.0, 1.0], None]]
    assert told["narrow"] == ["id", "note"]
    assert told["workers"] == pyspark.__file__, "an archive without bytecode is slower to import"
    assert keys(log) == [None, [TABLE, "job", 7], None]
    assert len(log.open(TABLE).get_fragments()) >= 10
    assert ids(log) == list(range(100))


def test_what_cannot_work_fails_before_an_executor_starts(log: FakeLog) -> None:
    program = """
frame = spark.range(3).selectExpr(*COLUMNS)
def save(frame, **more):
    return lambda: (frame.write.format("commitlog").options(**OPTIONS).options(**more)
                    .mode("append").save())
source = spark.readStream.schema("id long").json(str(root / "input"))
def update():
    (source.writeStream.format("commitlog").options(**OPTIONS).outputMode("update")
     .option("checkpointLocation", str(root / "c")).start().awaitTermination(30))
tell(
    drift=failure(save(frame.selectExpr("id", "at AS att"))),
    types=failure(save(frame.selectExpr("cast(id AS string) AS id"))),
    option=failure(save(frame, txnAppIdd="x")),
    half=failure(save(frame, txnAppId="x")),
    table=failure(save(frame, table="nyc$")),
    nulls=failure(save(frame.selectExpr("nullif(id, 1) AS id", "at"))),
    update=failure(update),
)
"""
    put_files(log, range(3))
    told = run(log, program)
    for name, says in {
        "drift": "Rename it to 'at'",
        "types": "'id' of nyc$events is int64 and cannot hold string",
        "option": "Did you mean 'txnAppId'",
        "half": "txnAppId and txnVersion belong together",
        "table": "cannot name a table",
        "nulls": "it may not be null",
        "update": "pdate",
    }.items():
        assert says in told[name], (name, told[name][-500:])
    assert log.journal() == []
    assert ids(log) == []


def test_a_batch_lands_once_whenever_the_driver_is_killed(tmp_path: Path) -> None:
    logs = {when: FakeLog(tmp_path / when) for when in ("before", "after", "answered")}
    for when, log in logs.items():
        log.create_table(TABLE, SCHEMA)
        put_files(log, *(range(start, start + 10) for start in range(0, 50, 10)))
        log.crash_at(when, 3)
        run(log, "stream().awaitTermination()", killed=True)
        assert len(log.journal()) == (3 if when == "before" else 4)
        checkpoint = log.root / "checkpoint"
        assert (checkpoint / "offsets" / "3").exists()
        assert not (checkpoint / "commits" / "3").exists()
    # One driver goes on with all three: it has forgotten as much as three would.
    run(logs["before"], f"for when in {list(logs)}: stream(root.parent / when).awaitTermination()")
    for log in logs.values():
        assert ids(log) == list(range(50))
        numbers = [key[2] for key in keys(log)]
        assert numbers == [0, 1, 2, 3, 4]
        assert len({key[1] for key in keys(log)}) == 1
