"""The sinks, driven as Spark drives them, over a whole service: what tasks tell is pickled."""

from __future__ import annotations

import json
import pickle
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from commitlog.adapters import tracing
from commitlog.client.leader import runtime, tickets
from commitlog.errors import InvalidTransaction, RetryableConflict, TransactionRejected
from commitlog.model.records import Application
from commitlog.spark import file_commits, files, writers
from commitlog.spark.options import parse_write
from commitlog.spark.sink import BatchSink, StreamSink, _checkpoint_query_id
from commitlog.spark.statements import NotInSql
from tests.service import SCHEMA, Service, ids_of, rows

TABLE = "shop$orders"


@pytest.fixture
def world(running: Service) -> Service:
    running.client.create_table(TABLE, SCHEMA, primary_key="id")
    return running


def told(sink: Any, *tasks: list[int]) -> list[Any]:
    """Have tasks write these ids; return their messages as they reach the driver."""
    written = [sink.write(iter(rows(*ids).to_batches())) for ids in tasks]
    return [pickle.loads(pickle.dumps(message)) for message in written]


def batch_sink(world: Service, *, overwrite: bool = False, **given: str) -> BatchSink:
    options = parse_write(
        {"table": TABLE, "kafka.bootstrap.servers": "h:1", **given}, streaming=False
    )
    return BatchSink(options, from_arrow_schema(SCHEMA), overwrite, lambda _: world.client)


def sink_of(world: Service, table: str, schema: pa.Schema, *, overwrite: bool) -> BatchSink:
    options = parse_write({"table": table, "kafka.bootstrap.servers": "h:1"}, streaming=False)
    return BatchSink(options, from_arrow_schema(schema), overwrite, lambda _: world.client)


def stream_sink(world: Service, query: str, **given: str) -> StreamSink:
    checkpoint = world.root / query
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": query}))
    options = parse_write(
        {"table": TABLE, "kafka.bootstrap.servers": "h:1", **given}, streaming=True
    )
    schema = from_arrow_schema(SCHEMA)
    return StreamSink(options, schema, False, lambda _: world.client, str(checkpoint))


def ids(world: Service) -> list[int]:
    return ids_of(world.client.open(TABLE))


def test_a_batch_job_appends_once_and_overwrites(world: Service) -> None:
    for _ in range(2):
        sink = batch_sink(world, txnAppId="job", txnVersion="7")
        sink.commit(told(sink, [1, 2], [], [3]))
    assert ids(world) == [1, 2, 3]
    sink = batch_sink(world, overwrite=True)
    sink.commit(told(sink, [9]))
    assert ids(world) == [9]


WIDE = pa.schema([("gone", pa.int64()), ("id", pa.int64()), ("sum", pa.int64())])


def test_what_replaces_a_table_has_the_tables_columns(world: Service) -> None:
    """Lance numbers the columns of a plain schema from 0 on, and files name columns by number."""
    name = "shop$sums"
    world.client.create_table(name, WIDE)
    world.client.drop_columns(name, ["gone"])
    world.client.add_columns(name, {"twice": "sum * 2"})
    given = pa.table({"sum": [5], "twice": [7], "id": [1]})
    sink = sink_of(world, name, given.schema, overwrite=True)
    sink.commit([sink.write(iter(given.to_batches()))])
    assert world.client.open(name).to_table().to_pylist() == [{"id": 1, "sum": 5, "twice": 7}]


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("change", ["cast", "drop", "rename", "add"])
def test_columns_that_change_while_rows_are_written_lose_no_values(
    world: Service, change: str, overwrite: bool
) -> None:
    name = "shop$sums"
    world.client.create_table(name, WIDE)
    given = pa.table({"gone": [1], "id": [2], "sum": [3]})
    sink = sink_of(world, name, given.schema, overwrite=overwrite)
    written: list[Any] = [sink.write(iter(given.to_batches()))]
    if change in ("cast", "drop"):
        if change == "cast":
            world.client.alter_columns(name, {"path": "gone", "data_type": pa.int32()})
        else:
            world.client.drop_columns(name, ["gone"])
        refused = (InvalidTransaction, TransactionRejected)
        with pytest.raises(refused, match=r"columns .*field.*rite the rows again"):
            sink.commit(written)
        assert world.client.open(name).count_rows() == 0
        return
    if change == "rename":
        world.client.alter_columns(name, {"path": "gone", "name": "first"})
        expected: dict[str, Any] = {"first": 1, "id": 2, "sum": 3}
    else:
        world.client.add_columns(name, {"twice": "sum * 2"})
        expected = {"gone": 1, "id": 2, "sum": 3, "twice": None}
    sink.commit(written)
    assert world.client.open(name).to_table().to_pylist() == [expected]


@pytest.mark.parametrize("streaming", [False, True])
def test_rows_of_a_dropped_column_are_not_those_of_a_new_one(
    world: Service, streaming: bool
) -> None:
    """Its field id comes back once no file has the column any more."""
    log = world.client
    sink: Any = stream_sink(world, "q") if streaming else batch_sink(world)
    written = told(sink, [1])
    log.drop_columns(TABLE, ["name"])
    log.add_columns(TABLE, pa.schema([("tag", pa.string())]))
    log.add_columns(TABLE, pa.schema([("name", pa.string())]))
    # Of a stream, Spark makes another writer for the commit.
    late = stream_sink(world, "q") if streaming else sink
    with pytest.raises(RetryableConflict, match="append_project_field_dropped"):
        late.commit(written, *([0] if streaming else []))
    assert log.open(TABLE).count_rows() == 0
    if streaming:
        sink = stream_sink(world, "q")
        sink.commit(told(sink, [1]), 0)
        assert log.open(TABLE).to_table()["tag"].to_pylist() == [None]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_table_that_is_made_again_while_rows_are_written_takes_none(
    world: Service, overwrite: bool
) -> None:
    sink = batch_sink(world, overwrite=overwrite)
    written = told(sink, [1])
    world.client.drop_table(TABLE)
    world.client.create_table(TABLE, SCHEMA)
    with pytest.raises(InvalidTransaction, match="created again.*: write the rows again"):
        sink.commit(written)
    assert ids(world) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["query#2", "query?", "query%20", "a:b"])
@pytest.mark.parametrize("scheme", ["", "file:", "file://", "file://localhost"])
def test_a_checkpoint_has_the_name_that_spark_gives_it(
    world: Service, name: str, scheme: str
) -> None:
    stream_sink(world, "query")
    stream_sink(world, "query ")
    sink = stream_sink(world, name)
    sink.checkpoint = scheme + sink.checkpoint
    sink.commit(told(sink, [1]), 0)
    assert world.client.table(TABLE).version == 2
    assert _checkpoint_query_id(sink.checkpoint) == name


@pytest.mark.parametrize("checkpoint", ["", "hdfs://h/query", "s3a://b/query", "dbfs:/query"])
def test_a_checkpoint_elsewhere_tells_nothing(checkpoint: str) -> None:
    assert _checkpoint_query_id(checkpoint) == ""


def test_tasks_are_parts_of_the_trace_of_their_batch(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    spans = tracing.Tracing(exporter)
    for module in (file_commits, runtime, tickets):
        monkeypatch.setattr(module, "tracing", lambda: spans)
    sink = stream_sink(world, "traced")
    sink.commit(told(sink, [1, 2], [], [3]), 0)
    found = exporter.get_finished_spans()
    [commit] = [one for one in found if one.name == "commit"]
    written = [one for one in found if one.name == "write"]
    assert [dict(one.attributes or {})["commitlog.rows"] for one in written] == [2, 1]
    for one in written:
        assert one.context.trace_id == commit.context.trace_id
        assert one.parent is not None
        assert one.parent.span_id == commit.context.span_id


def test_a_replayed_micro_batch_lands_once(world: Service) -> None:
    for batch, numbers in ((0, [1]), (1, [2, 3]), (1, [2, 3]), (2, [])):
        sink = stream_sink(world, "query")
        sink.commit(told(sink, numbers), batch)
    assert ids(world) == [1, 2, 3]


def test_a_batch_whose_tasks_say_nothing_is_not_done(world: Service) -> None:
    """With trigger(continuous=…), Spark gives a sink in Python no rows, and commits."""
    with pytest.raises(InvalidTransaction, match="no rows.*processingTime"):
        stream_sink(world, "query").commit([None, None], 0)


def test_rows_that_no_repeat_is_compared_with_have_no_digest(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A digest takes as long as writing the rows."""
    digested: list[pa.RecordBatch] = []

    def digest(rows: pa.RecordBatch) -> int:
        digested.append(rows)
        return 1

    monkeypatch.setattr(files, "rows_digest", digest)
    told(batch_sink(world), [1])
    assert digested == []
    told(batch_sink(world, txnAppId="job", txnVersion="1"), [1])
    told(stream_sink(world, "query"), [1])
    assert len(digested) == 2


def test_a_real_time_stream_is_refused_before_spark_advises_what_is_refused_then() -> None:
    """Spark says to bypass a check, then to use output mode update, which no sink here has."""
    writer = DataStreamWriter.__new__(DataStreamWriter)
    writers._noted(writer).update(format="commitlog", outputMode="update")
    with pytest.raises(NotInSql, match=r"no real-time stream.*processingTime"):
        writers._trigger(lambda this, **given: this, writer, realTime="5 seconds")


def test_a_sequence_with_other_rows_warns_and_fails_if_that_is_wanted(
    world: Service, caplog: pytest.LogCaptureFixture
) -> None:
    for numbers in ([1, 2], [2, 1], [3, 4, 5], [1, 3]):
        caplog.clear()
        with caplog.at_level("INFO", "commitlog.repeats"):
            sink = batch_sink(world, txnAppId="job", txnVersion="7")
            sink.commit(told(sink, numbers[:1], numbers[1:]))
        said = [(record.levelname, record.getMessage()) for record in caplog.records]
        if numbers == [1, 2]:
            assert said == []
            continue
        [(level, message)] = said
        assert level == ("INFO" if numbers == [2, 1] else "WARNING")
        assert (
            "sequence 7 of application 'job' was committed before as version 2 of shop$orders"
            f" (2 rows for shop$orders); this batch ({len(numbers)} rows for shop$orders) was"
            " not written" in message
        )
        assert message.endswith("and its values differ") == (numbers == [1, 3])
    assert ids(world) == [1, 2]
    sink = batch_sink(world, txnAppId="job", txnVersion="7", strictRepeats="true")
    sink.commit(told(sink, [2, 1]))
    with pytest.raises(InvalidTransaction, match="leave strictRepeats out"):
        sink.commit(told(sink, [4]))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_batch_that_has_no_rows_any_more_is_compared_with_its_first_attempt(
    world: Service, caplog: pytest.LogCaptureFixture, streaming: bool
) -> None:
    """It was taken for done in silence, though the table has rows that its source lacks."""

    def run(batch: int, *rows_of_tasks: list[int], **given: str) -> None:
        if streaming:
            stream = stream_sink(world, "q", **given)
            stream.commit(told(stream, *rows_of_tasks), batch)
            return
        job = batch_sink(world, overwrite=False, txnAppId="q", txnVersion=str(batch), **given)
        job.commit(told(job, *rows_of_tasks))

    run(0, [1, 2], [])
    head = world.client.table(TABLE).version
    run(0, [], [])
    [warning] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert f"(2 rows for {TABLE})" in warning
    assert f"(0 rows for {TABLE}) was not written" in warning
    with pytest.raises(InvalidTransaction, match="committed before"):
        run(0, [], strictRepeats="true")
    run(1, [], strictRepeats="true")
    assert world.client.table(TABLE).version == head, "no rows make no version"
    run(1, [3], strictRepeats="true")
    assert ids(world) == [1, 2, 3]


def test_rows_without_columns_are_refused(world: Service) -> None:
    options = parse_write({"table": TABLE, "kafka.bootstrap.servers": "h:1"}, streaming=False)
    for overwrite in (False, True):
        with pytest.raises(InvalidTransaction, match="have no columns"):
            BatchSink(options, StructType(), overwrite, lambda _: world.client)


def test_rows_that_lance_refuses_are_an_error_of_the_rows(world: Service) -> None:
    world.client.create_table("shop$notes", pa.schema([("note", pa.json_())]))
    options = parse_write(
        {"table": "shop$notes", "kafka.bootstrap.servers": "h:1"}, streaming=False
    )
    given = pa.schema([("note", pa.string())])
    sink = BatchSink(options, from_arrow_schema(given), False, lambda _: world.client)
    with pytest.raises(InvalidTransaction, match=r"Lance refuses rows for shop\$notes: .*JSON"):
        sink.write(iter(pa.table({"note": ["{bad"]}, schema=given).to_batches()))


def test_any_application_that_repeats_a_sequence_is_told(
    world: Service, caplog: pytest.LogCaptureFixture
) -> None:
    application = Application("loader", 1)
    caplog.set_level("WARNING", "commitlog.repeats")
    world.client.append(TABLE, rows(1), application=application)
    world.client.append(TABLE, rows(1), application=application)
    assert caplog.records == []
    world.client.append(TABLE, rows(1, 2), application=application)
    [record] = caplog.records
    assert "(1 row inserted); this batch (2 rows inserted) was not" in record.getMessage()
    assert ids(world) == [1]


def test_another_query_under_the_same_id_is_refused(world: Service) -> None:
    first = stream_sink(world, "one", txnAppId="mine")
    first.commit(told(first, [1]), 0)
    second = stream_sink(world, "two", txnAppId="mine")
    with pytest.raises(TransactionRejected, match="a checkpoint was lost"):
        second.commit(told(second, [2]), 0)
    assert ids(world) == [1]


def test_an_upsert_of_other_keys_does_not_conflict_with_appended_rows(world: Service) -> None:
    info = world.client.table(TABLE)
    sink = stream_sink(world, "query")
    sink.commit(told(sink, [1, 2]), 0)
    for number, status in ((5, "committed"), (2, "retryable")):
        keys = sink.target
        written = told(batch_sink(world), [number])[0].files
        ticket = world.client.submit(
            TABLE,
            _insert(written),
            read_version=info.version,
            inserted_keys=written.key_hashes(keys),
        )
        assert ticket.result().status == status


def test_many_tasks_together_name_no_more_keys_than_a_driver_holds(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand tasks with as many keys as one may name would exceed Spark's maxResultSize."""
    monkeypatch.setattr(files, "KEYS_MAX", 20)
    monkeypatch.setattr(files, "KEYS_TOLD_MAX", 40)
    named = []
    for number in range(30):
        context = SimpleNamespace(
            partitionId=lambda number=number: number, getLocalProperty=lambda name: None
        )
        monkeypatch.setattr(TaskContext, "get", lambda context=context: context)
        [message] = told(batch_sink(world), list(range(8)))
        named.append(message.files.keys is not None)
    assert named == [True] * 5 + [False] * 25


def test_many_tasks_together_keep_no_more_rows_than_a_driver_holds(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand tasks with as many rows as one may keep would exceed Spark's maxResultSize."""
    size = sum(batch.nbytes for batch in rows(*range(8)).to_batches())
    monkeypatch.setattr(files, "INLINE_TOLD_MAX", 5 * size)
    kept = []
    for number in range(30):
        context = SimpleNamespace(
            partitionId=lambda number=number: number, getLocalProperty=lambda name: None
        )
        monkeypatch.setattr(TaskContext, "get", lambda context=context: context)
        [message] = told(batch_sink(world, rows="log"), list(range(8)))
        kept.append(bool(message.files.inline))
    assert kept == [True] * 5 + [False] * 25


def _insert(files: Any) -> Any:
    return lance.LanceOperation.Update(new_fragments=files.metadata(), update_mode="rewrite_rows")
