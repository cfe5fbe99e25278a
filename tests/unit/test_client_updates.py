"""Updates: what SQL makes of a row enters a column by the row contract too."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog import InvalidRequest, InvalidTransaction
from tests.service import Service, service

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("small", pa.int8()),
        pa.field("x", pa.float32()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("v", pa.list_(pa.float32(), 2)),
        pa.field("name", pa.string(), nullable=False),
        pa.field("j", pa.json_()),
        pa.field("clock", pa.time64("us")),
    ]
)
AT = datetime(2024, 1, 1, 12, tzinfo=UTC)
ROW: dict[str, Any] = {
    "id": 1,
    "small": 100,
    "x": 0.5,
    "price": None,
    "day": None,
    "at": None,
    "v": [1.0, 2.0],
    "name": "a",
    "j": None,
    "clock": None,
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("updates")) as made:
        made.client.create_table("u$t", SCHEMA)
        made.client.append("u$t", [ROW])
        yield made


def row(shared: Service) -> dict[str, Any]:
    found: dict[str, Any] = shared.client.open("u$t").to_table().to_pylist()[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "value", "becomes"),
    [
        ("small", "small + 1", 101),
        ("small", 7, 7),
        ("x", "x * 1.1", pa.scalar(0.55, pa.float32()).as_py()),
        ("x", 0.1, pa.scalar(0.1, pa.float32()).as_py()),
        ("price", "cast(1.5 as decimal(10, 2))", "1.50"),
        ("price", "7", "7.00"),
        ("day", "'2024-01-02'", date(2024, 1, 2)),
        ("day", "date '2024-01-02'", date(2024, 1, 2)),
        ("day", date(2024, 1, 3), date(2024, 1, 3)),
        ("at", "'2024-01-01T12:00:00Z'", AT),
        ("at", AT, AT),
        # What `now()` gives: nanoseconds, without a zone.
        ("at", "to_timestamp_nanos(1704110400000000999)", AT),
        (
            "at",
            "arrow_cast(1704110400999, 'Timestamp(Millisecond, None)')",
            AT.replace(microsecond=999_000),
        ),
        ("clock", "'12:30:00.25'", time(12, 30, 0, 250_000)),
        ("clock", "arrow_cast('12:30', 'LargeUtf8')", time(12, 30)),
        ("v", "[0.1, 3.0]", [pa.scalar(0.1, pa.float32()).as_py(), 3.0]),
        ("v", [4.0, 5.0], [4.0, 5.0]),
        ("v", None, None),
        ("j", "'{\"a\": 1}'", '{"a":1}'),
        ("name", "upper(name)", "A"),
    ],
)
def test_a_column_is_set_to_what_it_can_hold(
    shared: Service, column: str, value: Any, becomes: Any
) -> None:
    shared.client.update("u$t", ROW | {"name": "'a'"}).raise_for_conflict()
    shared.client.update("u$t", {column: value}, "id = 1").raise_for_conflict()
    found = row(shared)
    assert found[column] == becomes or str(found[column]) == becomes
    assert {k: v for k, v in found.items() if k != column} == {
        k: v for k, v in ROW.items() if k != column
    }


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("small", "cast(small as int) + 100", "row 0 of column 'small' is 200"),
        ("small", "300", "row 0 of column 'small' is 300"),
        ("small", "2.5", "row 0 of column 'small' is 2.5"),
        ("small", 1.5, "1.5"),
        ("small", "'5'", "column 'small'"),
        ("x", "1e300", "infinite"),
        ("x", 1e300, "infinite"),
        ("price", "1.005 * 3", "column 'price'"),
        ("price", 10**8, "100000000"),
        ("day", "'soon'", "column 'day'"),
        ("at", datetime(2024, 1, 1), "2024"),
        ("clock", "'noon'", "column 'clock'.*such as '12:00:00'"),
        ("v", [1.0], "1 elements"),
        ("v", [1e300, 1.0], "infinite"),
        ("name", None, "may not be null"),
        ("j", "''", "not JSON"),
        ("j", "'{'", "column 'j'|rows for"),
    ],
)
def test_what_a_column_cannot_hold_is_refused(
    shared: Service, column: str, value: Any, says: str
) -> None:
    before = shared.client.table("u$t").version
    with pytest.raises(InvalidTransaction, match=says):
        shared.client.update("u$t", {column: value}, "id = 1")
    assert shared.client.table("u$t").version == before
    lance.dataset(str(shared.location("u$t"))).to_table()


@pytest.mark.parametrize("where", ["id = 99", "id > 99"])
@pytest.mark.parametrize(
    ("column", "value"), [("small", "'5'"), ("v", "id"), ("nosuch", "1"), ("x", "nosuch + 1")]
)
def test_what_a_column_never_holds_is_refused_if_no_row_matches(
    shared: Service, column: str, value: str, where: str
) -> None:
    before = shared.client.table("u$t").version
    with pytest.raises(InvalidTransaction, match=column if column != "x" else "nosuch"):
        shared.client.update("u$t", {column: value}, where)
    assert shared.client.table("u$t").version == before
    shared.client.update("u$t", {"small": "small + 1", "day": "'2024-01-02'"}, where)


@pytest.mark.parametrize("blank", ["", " \n"])
def test_empty_sql_is_called_that(shared: Service, blank: str) -> None:
    client = shared.client
    with pytest.raises(InvalidRequest, match="the filter is empty. To mean all rows, write true"):
        client.scan("u$t", blank)
    with pytest.raises(InvalidTransaction, match="the predicate is empty. To mean all rows"):
        client.delete("u$t", blank)
    with pytest.raises(InvalidTransaction, match="the predicate is empty. To mean all rows"):
        client.update("u$t", {"small": "1"}, blank)
    with pytest.raises(InvalidTransaction, match="SQL for 'name' is empty. For empty text"):
        client.update("u$t", {"name": blank}, "id = 1")
