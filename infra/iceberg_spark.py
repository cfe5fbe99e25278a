"""Fetch what Spark needs to speak Iceberg: `python -m infra.iceberg_spark`.

Iceberg's runtime is made for one version of Spark, which isn't the one that this project builds on:
that Spark gets a virtual environment of its own in the cache, beside Kafka's jars.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from consumers.broker.jars import cache_root
from infra import maven_jars

PINS = Path(__file__).with_name("iceberg-spark-jars.txt")
PYSPARK = "pyspark==4.1.4"
INSTALL_SECONDS = 900


def python() -> Path:
    """Return the Python that has this Spark, whether it is there or not."""
    return cache_root() / PYSPARK.replace("==", "-") / "bin" / "python"


def jar() -> Path:
    """Return Iceberg's runtime, whether it is there or not."""
    return maven_jars.folder_of(PINS) / maven_jars.pinned(PINS)[0].file_name


def fetch() -> None:
    """Fetch both into the cache, if they aren't there."""
    maven_jars.fetch(PINS)
    if not python().exists():
        home = python().parent.parent
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
        uv = Path(sys.executable).with_name("uv")
        command = [str(uv), "pip", "install", "--python", str(python()), PYSPARK]
        subprocess.run(command, check=True, timeout=INSTALL_SECONDS)


if __name__ == "__main__":
    fetch()
    print(python(), jar())
