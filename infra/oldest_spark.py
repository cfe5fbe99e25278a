"""Fetch the oldest Spark that is supported: `python -m infra.oldest_spark`.

It is also the one that Iceberg's and Delta's jars are made for. It gets a virtual environment of
its own in the cache, by the hashes in `oldest-spark.txt`, beside Kafka's jars.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from consumers.broker import JarMismatch, JarsUnavailable
from consumers.broker.jars import cache_root
from infra import maven_jars

PINS = Path(__file__).with_name("oldest-spark-jars.txt")
PACKAGES = Path(__file__).with_name("oldest-spark.txt")
LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"
PYSPARK = "pyspark==4.1.4"
INSTALL_SECONDS = 900
ICEBERG = "iceberg-spark-runtime-4.1_2.13"


def python() -> Path:
    """Return the Python that has this Spark, whether it is there or not."""
    return cache_root() / PYSPARK.replace("==", "-") / "bin" / "python"


def packages() -> Path:
    """Return the folder that this Spark is imported from."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python().parents[1] / "lib" / version / "site-packages"


def jars(*artifacts: str) -> str:
    """Return the jars, or those of some artifacts, as `spark.jars` takes them."""
    found = maven_jars.jar_set(PINS)
    chosen = [pin for pin in found.pins if not artifacts or pin.artifact in artifacts]
    return ",".join(str(found.folder / pin.file_name) for pin in chosen)


def fetch() -> None:
    """Fetch all of it into the cache, if it isn't there; one process at a time.

    Raises:
        JarsUnavailable: no registry answers.
    """
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / "oldest-spark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _fetch()


def _fetch() -> None:
    maven_jars.fetch(PINS)
    if (packages() / "pyspark").is_dir() and python().exists():
        return
    home = python().parents[1]
    subprocess.run(
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)], check=True
    )
    given = ["--require-hashes", "--no-deps", "-r", str(PACKAGES)]
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--python", str(python())]
    pip = [sys.executable, "-m", "pip", "--python", str(python()), "install"]
    # A mirror may be known to pip alone.
    said = ""
    for command in ([*uv, "--build-constraints", str(LOCK), *given], [*pip, *given]):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
        if done.returncode == 0:
            return
        said = done.stderr[-2_000:]
        if "hash" in said.lower():
            raise JarMismatch(f"{PYSPARK} differs from its pin:\n{said}", (PYSPARK,))
    raise JarsUnavailable(f"{PYSPARK} could not be installed:\n{said}")


if __name__ == "__main__":
    fetch()
    print(python(), jars())
