"""The Spark sink and source in drivers of their own, over a stand-in for the log.

A session is one per process: one of another Java's needs a process, and the crash tests kill its
JVM with -9 in the middle of a commit.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import spark_start
from tests.child import ended
from tests.fakes.spark_log import FakeLog
from tests.integration.test_spark_sink import SCHEMA, TABLE, check_batches, ids, keys, put_files

pytestmark = [pytest.mark.spark, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]
START = """
import json, sys
from pathlib import Path
from commitlog.spark import local_session
root = Path(sys.argv[1])
spark = local_session("test", conf={"spark.sql.session.timeZone": "America/New_York"})
(root / "jvm.pid").write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
from tests.fakes.spark_log import FakeDataSource
from tests.integration.test_spark_sink import COLUMNS, batches, reach
spark.dataSource.register(FakeDataSource)
def stream(root=root):
    source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    frame = source.json(str(root / "input")).selectExpr(*COLUMNS)
    return (frame.writeStream.format("commitlog").options(**reach(root))
            .option("checkpointLocation", str(root / "checkpoint"))
            .trigger(availableNow=True).start())
"""


def run(log: FakeLog, program: str, *, killed: bool = False, **environment: str) -> dict[str, Any]:
    done = ended(
        [sys.executable, "-c", START + program, str(log.root)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        cwd=REPOSITORY,
    )
    assert (done.returncode != 0) == killed, done.stderr[-3000:]
    return dict(json.loads(done.stdout)) if done.stdout else {}


def test_batches_append_overwrite_and_read_on_the_packaged_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FakeLog(tmp_path)
    log.create_table(TABLE, SCHEMA)
    for name, value in spark_start.AS_USERS_DO.items():  # the archive of classes is the other one's
        monkeypatch.setenv(name, value)
    told = run(log, "print(json.dumps(batches(spark, root)))", COMMITLOG_JAVA="packaged")
    check_batches(told, log)


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
