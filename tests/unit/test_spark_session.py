"""What a session is told of the network, without starting one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyspark
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from commitlog.adapters import temporary_folders
from commitlog.errors import Unavailable
from commitlog.java import Java
from commitlog.spark import local_session, session

DRIVER = ("spark.driver.host", "spark.driver.bindAddress")


class Builder:
    """Takes settings, and notes what is in force once the session starts."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.local_ip: str | None = None

    def appName(self, name: str) -> Builder:  # noqa: N802
        """Take the name."""
        return self

    def master(self, master: str) -> Builder:
        """Take the master."""
        self.settings["spark.master"] = master
        return self

    def config(self, name: str, value: str) -> Builder:
        """Take a setting."""
        self.settings[name] = value
        return self

    def getOrCreate(self) -> Any:  # noqa: N802
        """Note what Spark would find."""
        self.local_ip = os.environ.get("SPARK_LOCAL_IP")
        return MagicMock()


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()
    monkeypatch.setattr(SparkSession, "builder", made)
    monkeypatch.setenv("PYSPARK_PYTHON", "as it was")
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    return made


@pytest.mark.parametrize("master", ["local[2]", "local", "local-cluster[2,1,1024]"])
def test_on_one_machine_only_that_machine_reaches_the_driver(builder: Builder, master: str) -> None:
    local_session("test", cores=master)
    assert [builder.settings.get(name) for name in DRIVER] == ["127.0.0.1"] * 2
    assert builder.local_ip == "127.0.0.1"


@pytest.mark.parametrize("master", ["spark://cluster:7077", "yarn", "k8s://https://cluster"])
def test_executors_elsewhere_reach_the_driver(builder: Builder, master: str) -> None:
    """Told that the driver is at 127.0.0.1, they would look for it on their own machine."""
    local_session("test", cores=master, conf={"spark.executor.cores": "1"})
    assert builder.settings["spark.master"] == master
    assert [name for name in DRIVER if name in builder.settings] == []
    assert builder.local_ip is None
    assert builder.settings["spark.executor.cores"] == "1"
    assert "spark.local.dir" not in builder.settings  # a folder of this machine


def test_a_session_removes_what_a_killed_driver_left(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Shuffle files and a warehouse stayed there for good."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = """if True:
        import os, signal
        from unittest.mock import MagicMock
        from pyspark.sql import SparkSession
        from commitlog.spark import local_session
        SparkSession.builder = MagicMock()
        local_session("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = [sys.executable, "-c", program]
    subprocess.run(killed, env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    [left] = tmp_path.iterdir()
    temporary_folders._remove_leftovers.cache_clear()  # as a new driver does
    local_session("test")
    [mine] = tmp_path.iterdir()
    assert mine != left
    assert Path(builder.settings["spark.local.dir"]).parent == mine
    local_session("another of this process")
    assert mine.exists()


def test_workers_on_this_machine_end_before_their_folder_goes(tmp_path: Path) -> None:
    """Those of a session that wasn't stopped made it again, to write what they had to say."""
    program = """if True:
        import subprocess, sys
        from pathlib import Path
        from unittest.mock import MagicMock
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
        from commitlog.spark import local_session
        SparkSession.builder = MagicMock()
        local_session("not stopped", cores="local-cluster[1,1,1024]")
        [folder] = Path(sys.argv[1]).iterdir()
        late = 'cat; sleep 0.5; mkdir -p "$0/spark/work/app/1"'
        workers = subprocess.Popen(["sh", "-c", late, folder], stdin=subprocess.PIPE)
        SparkContext._active_spark_context = MagicMock(stop=workers.communicate)
    """
    child = [sys.executable, "-c", program, str(tmp_path)]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run(child, env=env, check=True, capture_output=True)
    assert list(tmp_path.iterdir()) == []


def test_a_spark_that_does_not_start_is_unavailable(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = MagicMock(side_effect=PySparkRuntimeError("the gateway exited\nbefore\nit spoke"))
    monkeypatch.setattr(builder, "getOrCreate", failing)
    told = r"with master yarn and Java \d+: the gateway exited before"
    with pytest.raises(Unavailable, match=told):
        local_session("test", cores="yarn")
    assert os.environ.get("SPARK_LOCAL_IP") is None


def test_an_old_spark_on_a_new_java_is_told_which_it_needs(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = MagicMock(side_effect=PySparkRuntimeError("the gateway exited"))
    monkeypatch.setattr(builder, "getOrCreate", failing)
    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    monkeypatch.setattr(session, "find_java", lambda: Java(Path("/opt/java"), 25, "PATH"))
    with pytest.raises(Unavailable, match="Java 25: .* needs Java 17 to 23: .*COMMITLOG_JAVA"):
        local_session("test")
