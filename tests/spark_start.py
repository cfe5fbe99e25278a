"""Lets Spark sessions of tests start with half of the CPU: their JVM maps classes that were parsed.

An archive of classes fits one Java, its flags, and one class path. So sessions share a SPARK_HOME,
where each has one in a folder of its own otherwise. Both are kept in this Python's environment, and
go with it; the archive is written by a session of `tests/spark_classes.py`. Where there is none,
and with a Java that it isn't of, sessions start as they always do.

Their Python workers are forked from one process (`tests/spark_workers.py`).
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import pytest

from tests.spark_python import sitecustomize

REPOSITORY = Path(__file__).resolve().parents[1]
MAKE_SECONDS = 300.0
AGAIN_SECONDS = 3600.0
"""How long nobody tries again where an archive could not be written: a machine that is too busy for
one stays so, and each process that waited for the last try would spend as much in vain."""
AS_USERS_DO = {"SPARK_HOME": "", "SPARK_SUBMIT_OPTS": "", sitecustomize.SERVER: ""}
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
        failed = folder / "failed"
        if not classes.exists() and not _is_recent(failed):
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _archive(Path(scratch), classes)
            if not classes.exists():
                failed.touch()
    if classes.exists():
        os.environ["SPARK_SUBMIT_OPTS"] = f"-Xlog:disable -XX:SharedArchiveFile={classes}"
    _serve_workers()


def python_path(*places: str | Path) -> str:
    """Return the PYTHONPATH of a program with a session whose Python also finds what is here."""
    return os.pathsep.join(map(str, [Path(sitecustomize.__file__).parent, *places]))


def _serve_workers() -> None:
    """Run the server of workers until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="commitlog-workers-"))
    path = str(folder / "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.spark_workers", path],
        # Spark's own daemons hash strings as it tells them to, which is so.
        env={**os.environ, "PYTHONHASHSEED": "0"},
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,  # ends with this process, however that ends
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.environ[sitecustomize.SERVER] = path
    os.environ["PYTHONPATH"] = python_path(*filter(None, [os.environ.get("PYTHONPATH")]))

    @atexit.register
    def end() -> None:
        server.terminate()
        server.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def _is_recent(path: Path) -> bool:
    return path.exists() and time.time() - path.stat().st_mtime < AGAIN_SECONDS


def _archive(scratch: Path, classes: Path) -> None:
    made = scratch / classes.name
    options = f"-Xlog:disable -XX:ArchiveClassesAtExit={made}"
    try:
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.spark_classes", scratch],
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
