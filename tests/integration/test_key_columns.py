"""Can a table be written to after columns of its key, or their types, were changed?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from commitlog import CommitLog, InvalidTransaction
from consumers.tools.verify import VerifyOptions, verify
from tests.service import Service

T = "home$keyed"
SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.float64())])


@pytest.fixture
def running(running: Service) -> Service:
    """A service with a table of three rows that has a key."""
    running.client.create_table(T, SCHEMA, primary_key="id")
    running.client.append(T, {"id": [1, 2, 3], "amount": [1.0, 2.0, 3.0]})
    return running


def rename(log: CommitLog) -> None:
    log.alter_columns(T, {"path": "id", "name": "number"})


def drop_and_add(log: CommitLog) -> None:
    log.add_columns(T, {"number": "id"})
    log.drop_columns(T, ["id"])


@pytest.mark.parametrize("change", [rename, drop_and_add])
def test_a_table_without_its_keys_column_can_be_written(
    running: Service, change: Callable[[CommitLog], None]
) -> None:
    log = running.client
    change(log)
    log.append(T, {"number": [4], "amount": [4.0]})
    log.update(T, {"amount": "10"}, "number = 1")
    log.delete(T, "number = 2")
    log.merge_insert(T, {"number": [3, 5], "amount": [30.0, 5.0]}, "number")
    log.append(T, {"number": [6], "amount": [6.0]})
    log.update(T, {"amount": "60"}, "number = 6")
    upsert: Any = {"number": [1], "amount": [1.0]}
    for refused in (
        lambda: log.write_rows(T, upsert, mode="upsert"),
        lambda: log.merge_insert(T, upsert),
        lambda: log.transact().merge_insert(T, upsert),
    ):
        with pytest.raises(
            InvalidTransaction, match="no key now: its column .* renamed or dropped"
        ):
            refused()
    rows = {row["number"]: row["amount"] for row in log.open(T).to_table().to_pylist()}
    assert rows == {1: 10.0, 3: 30.0, 4: 4.0, 5: 5.0, 6: 60.0}
    assert log.table(T).primary_key == ()
    rename_back: Any = {"path": "number", "name": "id"}
    log.alter_columns(T, rename_back)
    assert log.table(T).primary_key == ("id",)
    log.merge_insert(T, {"id": [6], "amount": [61.0]})
    with log.transact() as both:
        both.merge_insert(T, {"id": [7], "amount": [7.0]})
    assert log.scan(T, "id > 5").to_pylist() == [
        {"id": 6, "amount": 61.0},
        {"id": 7, "amount": 7.0},
    ]
    assert verify(running.log, 0, VerifyOptions(running.root)).problems == []


def test_a_table_without_its_keys_column_comes_back_when_its_drop_is_undone(
    running: Service,
) -> None:
    log = running.client
    rename(log)
    log.drop_table(T)
    log.undrop(T)
    log.append(T, {"number": [4], "amount": [4.0]})
    assert sorted(log.open(T).to_table().column("number").to_pylist()) == [1, 2, 3, 4]


@pytest.mark.parametrize("as_stream", [False, True])
def test_an_append_to_a_column_that_got_another_type_is_cast_anew(
    running: Service, as_stream: bool
) -> None:
    data = pa.table({"id": [4], "amount": [0.5]}, schema=SCHEMA)
    with CommitLog(lambda: running.log) as other:
        other.append(T, {"id": [9], "amount": [9.0]})
        running.client.alter_columns(T, {"path": "amount", "data_type": pa.float32()})
        other.append(T, data.to_reader() if as_stream else data)
    opened = running.client.open(T)
    assert opened.schema.field("amount").type == pa.float32()
    assert opened.to_table(filter="id = 4").column("amount").to_pylist() == [0.5]


class ReadOnce:
    """Rows of another library, which hands out its stream once."""

    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hand the stream out."""
        return self._rows.__arrow_c_stream__(requested_schema)


STREAMED: dict[str, Callable[[CommitLog, Any], Any]] = {
    "append": lambda log, rows: log.append(T, rows),
    "merge_insert": lambda log, rows: log.merge_insert(T, rows, "id"),
    "write_rows": lambda log, rows: log.write_rows(T, rows, mode="upsert").result(60, "accepted"),
}


@pytest.mark.parametrize("wrapped", [False, True], ids=["reader", "wrapped"])
@pytest.mark.parametrize("write", STREAMED)
def test_a_stream_for_a_column_that_got_another_type_lands_whole(
    running: Service, write: str, wrapped: bool
) -> None:
    """Its first batches fit the old type, and one of the later ones fits only the new one."""
    running.client.add_columns(T, pa.field("n", pa.int8()))
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    batches = [pa.record_batch([[5 + at], [n]], schema=schema) for at, n in enumerate((1, 999, 2))]
    stream: Any = pa.RecordBatchReader.from_batches(schema, iter(batches))
    with CommitLog(lambda: running.log) as other:
        other.append(T, {"id": [4], "n": [4]})
        running.client.alter_columns(T, {"path": "n", "data_type": pa.int64()})
        outcome = STREAMED[write](other, ReadOnce(stream) if wrapped else stream)
    outcome.raise_for_conflict()
    found = running.client.scan(T, "id > 4", ["id", "n"], fresh=True).to_pylist()
    assert sorted((row["id"], row["n"]) for row in found) == [(5, 1), (6, 999), (7, 2)]
