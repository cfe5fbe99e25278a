"""The listener that shows repeats in the progress of queries, told of runs as Spark tells it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from commitlog.client.leader.repeats import Repeat, digest_name
from commitlog.model.records import Application
from commitlog.ports import Reader
from commitlog.spark.options import parse_write
from commitlog.spark.progress import METRIC, RepeatsListener, show_repeats
from commitlog.spark.sink import StreamSink
from tests.service import SCHEMA, Service, rows

TABLE = "shop$orders"
OPTIONS = {"kafka.bootstrap.servers": "h:1"}


@pytest.fixture
def world(running: Service) -> Service:
    running.client.create_table(TABLE, SCHEMA)
    return running


@pytest.fixture
def spark() -> MagicMock:
    """A session whose rows are lists."""
    session = MagicMock()
    gateway = session.sparkContext._gateway
    gateway.new_array = lambda kind, size: [None] * size
    catalyst = gateway.jvm.org.apache.spark.sql.catalyst
    catalyst.expressions.GenericRowWithSchema = lambda values, columns: values
    return session


@pytest.fixture
def listener(world: Service, spark: MagicMock) -> Iterator[RepeatsListener]:
    made = show_repeats(spark, OPTIONS, connect=lambda _: world.client)
    spark.streams.addListener.assert_called_once_with(made)
    yield made
    made.close()


def commit(world: Service, query: str, batch: int, *ids: int) -> None:
    checkpoint = world.root / query
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": query}))
    options = parse_write({"table": TABLE, **OPTIONS}, streaming=True)
    schema = from_arrow_schema(SCHEMA)
    sink = StreamSink(options, schema, False, lambda _: world.client, str(checkpoint))
    sink.commit([sink.write(iter(rows(*ids).to_batches()))], batch)


def starts(listener: RepeatsListener, query: str, run: str) -> None:
    listener.onQueryStarted(SimpleNamespace(id=query, runId=run))


def ends(listener: RepeatsListener, query: str, run: str) -> None:
    listener.onQueryTerminated(SimpleNamespace(id=query, runId=run))


def shown(listener: RepeatsListener, query: str, run: str, batch: int) -> Any:
    metrics: dict[str, Any] = {}
    java = SimpleNamespace(observedMetrics=lambda: SimpleNamespace(put=metrics.__setitem__))
    progress: Any = SimpleNamespace(id=query, runId=run, batchId=batch, _jprogress=java)
    listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]
    return metrics.get(METRIC)


def test_a_repeat_is_shown_in_the_run_that_made_it(
    world: Service, listener: RepeatsListener
) -> None:
    starts(listener, "q", "first")
    commit(world, "q", 0, 1, 2)
    starts(listener, "q", "again")
    commit(world, "q", 0, 1, 2, 3)
    # Spark tells of progress a while later, and of the end of a run when the next one runs.
    assert shown(listener, "q", "first", 0) is None
    ends(listener, "q", "first")
    assert shown(listener, "q", "again", 0)[:3] == [2, 3, True]
    assert shown(listener, "q", "again", 0) is None


def test_a_repeat_of_a_run_before_is_not_of_the_next_one(
    world: Service, listener: RepeatsListener
) -> None:
    commit(world, "q", 0, 1)
    starts(listener, "q", "failed")
    commit(world, "q", 0, 2)
    starts(listener, "q", "again")
    assert shown(listener, "q", "again", 0) is None


def test_a_query_that_ran_before_the_listener_is_shown_too(
    world: Service, listener: RepeatsListener
) -> None:
    commit(world, "q", 0, 1)
    commit(world, "q", 0, 1)
    assert shown(listener, "q", "run", 0)[:3] == [1, 1, False]


def test_a_closed_listener_keeps_no_reader(
    world: Service, spark: MagicMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.client.runtime().log
    read, readers = log.read_outcomes, []

    def counted(*args: Any, **options: Any) -> Reader[Any]:
        reader = MagicMock(wraps=read(*args, **options))
        readers.append(reader)
        return reader

    monkeypatch.setattr(log, "read_outcomes", counted)
    listener = show_repeats(spark, OPTIONS, connect=lambda _: world.client)
    listener.close()
    listener.close()
    spark.streams.removeListener.assert_called_with(listener)
    assert readers
    assert [reader.close.call_count for reader in readers] == [1] * len(readers)
    assert shown(listener, "q", "run", 0) is None


def test_a_digest_of_an_earlier_release_is_compared_with_none() -> None:
    then = {"for shop$orders": 1, "digest of shop$orders": 5}
    now = {"for shop$orders": 1, digest_name("shop$orders"): 6}
    assert not Repeat(Application("a", 1), {}, then, now).is_other
    assert Repeat(Application("a", 1), {}, now | {digest_name("shop$orders"): 7}, now).is_other
    assert Repeat(Application("a", 1), {}, then | {"for shop$orders": 2}, now).is_other
