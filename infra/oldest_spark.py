"""Fetch the oldest Spark that is supported: `python -m infra.oldest_spark`.

It is also the one that Iceberg's and Delta's jars are made for. It gets a virtual environment of
its own in the cache, by the hashes in `oldest-spark.txt`, beside Kafka's jars.
"""

from __future__ import annotations

from pathlib import Path

from infra import environments, maven_jars

PINS = Path(__file__).with_name("oldest-spark-jars.txt")
PACKAGES = Path(__file__).with_name("oldest-spark.txt")
PYSPARK = "pyspark==4.1.4"
ICEBERG = "iceberg-spark-runtime-4.1_2.13"


def python() -> Path:
    """Return the Python that has this Spark, whether it is there or not."""
    return environments.python(PACKAGES)


def packages() -> Path:
    """Return the folder that this Spark is imported from."""
    return environments.packages(PACKAGES)


def jars(*artifacts: str) -> str:
    """Return the jars, or those of some artifacts, as `spark.jars` takes them."""
    found = maven_jars.jar_set(PINS)
    chosen = [pin for pin in found.pins if not artifacts or pin.artifact in artifacts]
    return ",".join(str(found.folder / pin.file_name) for pin in chosen)


def fetch() -> None:
    """Fetch all of it into the cache, if it isn't there.

    Raises:
        JarsUnavailable: no registry answers.
    """
    maven_jars.fetch(PINS)
    environments.fetch(PACKAGES)


if __name__ == "__main__":
    fetch()
    print(python(), jars())
