"""Is a user who makes a likely mistake told which it is, and what to do?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog import CommitLog, CommitLogError, InvalidRequest

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32(), 4))])
ROW = [{"id": 1, "v": [1.0, 2.0, 3.0, 4.0]}]


class LazyFrame:
    """Has what a lazy frame of polars has."""

    def collect(self) -> None:
        """Make a data frame of it."""


@pytest.fixture
def table(client: CommitLog) -> str:
    client.create_table("a$t", SCHEMA, primary_key="id")
    client.append("a$t", ROW)
    return "a$t"


def _upsert(client: CommitLog, **options: Any) -> object:
    return client.write_rows("a$t", ROW, mode="upsert", **options)


MISTAKES: list[tuple[Callable[[CommitLog], object], str]] = [
    (
        lambda client: client.merge_insert("a$t", ROW, when_matched_update=True),  # type: ignore[call-arg]
        r"no option 'when_matched_update'\. The options are when_matched_update_all, .*timeout",
    ),
    (
        lambda client: client.append("a$t", ROW, timeoutt=5.0),  # type: ignore[call-arg]
        r"no option 'timeoutt'\. The options are transaction_id, .*timeout",
    ),
    (
        lambda client: _upsert(client, when_match=True),
        r"when_match is not .*'upsert'\. Its options are when_matched_update_all, .*_insert_all\.",
    ),
    (
        lambda client: client.merge_insert("a$t", ROW, on=[]),
        r"on=\[\] names no column\. .* leave it out to use the table's own key",
    ),
    (
        lambda client: client.write_rows("a$t", {"v": [None]}, mode="delete"),
        r"the data lacks the key column 'id'\. Its columns are v\.",
    ),
    (lambda client: client.append("a$t", {"ID": [1]}), r"no column 'ID'\. Rename it to 'id'\."),
    (lambda client: client.append("a$t", LazyFrame()), r"LazyFrame .* Call its method collect\(\)"),
    (
        lambda client: client.append("a$t", [pa.table({"id": [1]})]),
        r"a list of Table cannot be read as rows\. Pass a pyarrow Table",
    ),
    (
        lambda client: client.create_table("a$u", pa.schema([*SCHEMA, SCHEMA.field(0)])),
        r'Duplicate field name "id" in schema$',
    ),
    (
        lambda client: client.alter_columns("a$t", {"path": "v", "name": "id"}),
        r"the columns can't be changed: .*Duplicate field name \"id\" in schema\. The columns",
    ),
    (lambda client: client.sql("FROM help"), r"no table help\. .*need index='DIR/index.duckdb'\."),
    (lambda _: CommitLog("127.0.0.1:9092"), r"'127.0.0.1:9092'\. Call CommitLog.connect\("),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "told"), MISTAKES)
def test_the_message_says_what_to_do(
    client: CommitLog, table: str, make: Callable[[CommitLog], object], told: str
) -> None:
    with pytest.raises(CommitLogError, match=told) as refused:
        make(client)
    assert "Schema {" not in str(refused.value)


def test_an_index_that_exists_is_refused_as_any_wrong_argument(
    client: CommitLog, table: str
) -> None:
    client.create_index(table, "v", "IVF_FLAT", num_partitions=1)
    with pytest.raises(InvalidRequest, match="'v_idx' already exists, .* replace=True") as refused:
        client.create_index(table, "v", "IVF_FLAT", num_partitions=1)
    assert ".rs" not in str(refused.value)
    client.create_index(table, "v", "IVF_FLAT", num_partitions=1, replace=True)


def test_an_index_is_named_by_its_file(client: CommitLog, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"is a folder\. Give the path .*index\.duckdb"):
        client.sql("FROM help", index=tmp_path)
