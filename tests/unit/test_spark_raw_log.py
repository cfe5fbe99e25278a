"""What the example of the raw topics makes of records, without Spark."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from commitlog.protocol import outcomes_topic, transactions_topic
from tests.service import SCHEMA, rows, service

EXAMPLE = Path(__file__).resolve().parents[2] / "infra" / "examples" / "spark_raw_log.py"
RECORDS = pa.schema(
    [("topic", pa.string()), ("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary())]
)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_raw_log", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_record_of_both_topics_says_what_it_is(example: ModuleType, tmp_path: Path) -> None:
    with service(tmp_path) as world:
        world.client.create_table("shop$orders", SCHEMA)
        outcome = world.client.append("shop$orders", rows(1))
        name = world.log.name
        found = []
        for topic, is_transactions in (
            (transactions_topic(name), True),
            (outcomes_topic(name), False),
        ):
            records = world.log.read_raw(0, is_transactions=is_transactions).poll()
            raw = [
                {"topic": topic, "offset": r.offset, "key": r.key, "value": r.value}
                for r in records
            ]
            [batch] = example.decode([pa.RecordBatch.from_pylist(raw, RECORDS)])
            assert batch.schema == example.COLUMNS
            found += batch.to_pylist()
    kinds = [row["kind"] for row in found]
    assert kinds == [
        *("ProtocolVersion", "Transaction", "Transaction"),
        *("Genesis", "LeaderStarted", "Outcome", "Outcome", "Outcome"),
    ]
    assert found[-1]["id"] == found[2]["id"] == outcome.transaction_id
    assert (found[-1]["status"], found[2]["status"]) == ("committed", None)
    tombstone = {"topic": transactions_topic(name), "offset": 7, "key": b"k", "value": None}
    [gone] = example.decode([pa.RecordBatch.from_pylist([tombstone], RECORDS)])
    assert gone.to_pylist()[0]["kind"] == "tombstone"
