"""Fetch Spark's own Kafka connector: `python -m infra.spark_kafka`.

Nothing of this project needs it. It prints the jars, as `spark.jars` takes them.
"""

from __future__ import annotations

from pathlib import Path

from infra import maven_jars

PINS = Path(__file__).with_name("spark-kafka-jars.txt")


def jars() -> str:
    """Return the connector's jars, whether they are there or not, separated by commas."""
    folder = maven_jars.folder_of(PINS)
    return ",".join(str(folder / jar.file_name) for jar in maven_jars.pinned(PINS))


def is_there() -> bool:
    """Tell whether the cache has them."""
    return maven_jars.is_there(PINS)


if __name__ == "__main__":
    maven_jars.fetch(PINS)
    print(jars())
