"""Fetch Spark's own Kafka connector: `python -m infra.spark_kafka`.

Nothing of this project needs it. It prints the jars, as `spark.jars` takes them.
"""

from __future__ import annotations

from pathlib import Path

from infra import maven_jars

PINS = Path(__file__).with_name("spark-kafka-jars.txt")


def fetch() -> str:
    """Return the connector's jars, separated by commas; fetch them if the cache has none."""
    folder = maven_jars.fetch(PINS)
    return ",".join(str(folder / jar.file_name) for jar in maven_jars.pinned(PINS))


if __name__ == "__main__":
    print(fetch())
