"""`commitlog rows --spark`: what it is told, and how it ends, without Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from commitlog.errors import CorruptLog, Unavailable
from consumers.commands import rows
from consumers.runtime.config import Config
from consumers.tools.rows import stream as row_stream
from consumers.tools.rows.stream import apply_on_spark

TRACEBACK = """\
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform
latestOffset: Traceback (most recent call last):
  File "commitlog/adapters/kafka.py", line 86, in metadata
commitlog.errors.Unavailable: an earlier one. Retry

The above exception was the direct cause of the following exception:

commitlog.errors.{}: asking the cluster who it is: no answer. Check that it runs, then retry
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: [id = 3f1b4da2]
"""


class StreamFailed(Exception):
    """Stands for PySpark's StreamingQueryException."""


def ended_by(error: Exception) -> None:
    """Apply by a stream that an error has ended."""
    spark, log = MagicMock(), MagicMock()
    log.runtime.return_value.partitions = 0
    query = spark.readStream.format().options().options().load().writeStream
    query = query.foreachBatch().queryName().option().trigger().start()
    query.isActive = False
    query.exception.return_value = error
    try:
        apply_on_spark(spark, log, {}, threading.Event())
    finally:
        query.stop.assert_called_once_with()


@pytest.mark.parametrize(
    ("name", "kind"), [("Unavailable", Unavailable), ("CorruptLog", CorruptLog)]
)
def test_an_error_of_the_log_ends_the_stream_under_its_own_name(
    name: str, kind: type[Exception]
) -> None:
    """The command begins again once Kafka is back, and says which errors are for good."""
    with pytest.raises(kind, match="^asking the cluster who it is: no answer. Check .* retry$"):
        ended_by(StreamFailed(TRACEBACK.format(name)))


def test_another_error_stays_what_it_is() -> None:
    for text in ("the JVM is gone", TRACEBACK.format("Unheard")):
        with pytest.raises(StreamFailed):
            ended_by(StreamFailed(text))


def test_settings_in_a_file_stay_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark shows options in plans: it redacts passwords, but not every secret."""
    told: list[dict[str, str]] = []

    def apply(session: Any, log: Any, reach: dict[str, str], *_: Any) -> None:
        told.append(reach)

    monkeypatch.setattr(row_stream, "apply_on_spark", apply)
    monkeypatch.chdir(tmp_path)
    Path("kafka.properties").write_text("ssl.key.pem=secret\nsasl.mechanism=PLAIN\n")
    kafka = {"ssl.key.pem": "secret", "sasl.mechanism": "SCRAM-SHA-256", "client.id": "me"}
    config = Config(bootstrap_servers="h:1", kafka_file="kafka.properties", kafka=kafka)
    rows._run_on_spark(MagicMock(), MagicMock(), config, MagicMock(), threading.Event())
    assert told == [
        {
            "kafka.bootstrap.servers": "h:1",
            "log": "commitlog",
            "kafkaFile": str(tmp_path / "kafka.properties"),
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.client.id": "me",
        }
    ]
