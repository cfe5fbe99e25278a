"""Is a user who makes a likely mistake told which it is, and what to do?"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog import CommitLog, CommitLogError, InvalidRequest
from commitlog.client.habits import INSTEAD

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
        lambda client: client.append("a$t", [pa.table({"id": [1]}), 5]),
        r"a list of Table, int cannot be read as rows\. Pass a pyarrow Table",
    ),
    (
        lambda client: client.append("a$t", {"id": 1, "v": None}),
        r"'id' for a\$t cannot be int\. Give lists .* or a list of rows: \[\{…\}\]\.",
    ),
    (
        lambda client: client.append("a$t", {"id": "12"}),
        r"'id' for a\$t cannot be str\. Give lists .* or a list of rows: \[\{…\}\]\.",
    ),
    (
        lambda client: client.append("a$t", {"id": [1, 2], "v": [None]}),
        r"columns differ in length: \{'id': 2, 'v': 1\}\. Give each column as many values\.",
    ),
    (
        lambda client: client.update("a$t", "id = 1", {"v": "NULL"}),  # type: ignore[arg-type]
        r"^values cannot be of type str\. Give a mapping with texts as keys",
    ),
    (
        lambda client: client.create_table("a$u", pa.table({"id": [1]})),
        r"needs a pyarrow\.Schema .*, not Table\. Pass .* pa\.table\(rows\)\.schema of rows",
    ),
    (lambda client: client.sql("SHOW TABLES"), r"of which there are none\. .* log\.tables\(\)"),
    (
        lambda client: client.open("a$t", "2026-01-31"),  # type: ignore[arg-type]
        r"for a time or a tag of the log, call log\.snapshot\(when\)\.open\(table\)",
    ),
    (
        lambda client: client.create_table("a$u", pa.schema([*SCHEMA, SCHEMA.field(0)])),
        r'Duplicate field name "id" in schema$',
    ),
    (
        lambda client: client.alter_columns("a$t", {"path": "v", "name": "id"}),
        r"the columns can't be changed: .*Duplicate field name \"id\" in schema\. The columns",
    ),
    (  # Lance panics over the text
        lambda client: client.add_columns("a$t", {"more": "$$a$$"}),
        r"the columns can't be changed: Task was aborted\. The columns",
    ),
    (lambda client: client.snapshot(date(1970, 1, 2)), r"no commits at 1970-01-02T00:00:00\+00:00"),
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


def test_a_method_of_another_library_is_answered_with_ours(client: CommitLog) -> None:
    with pytest.raises(AttributeError, match=r"no 'upsert': use merge_insert\(table, rows, on=key"):
        client.upsert("a$t", ROW)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'CommitLog' object has no attribute 'apend'") as typo:
        client.apend("a$t", ROW)  # type: ignore[attr-defined]
    assert typo.value.name == "apend", "Python suggests a name that is spelled alike"
    for ours in INSTEAD.values():
        for name in re.findall(r"(?:^|log\.|, or )(\w+)\(", ours):
            assert callable(getattr(CommitLog, name)), ours
    assert not [name for name in INSTEAD if hasattr(CommitLog, name)]


def test_what_is_shown_at_the_prompt_is_short(client: CommitLog, table: str) -> None:
    assert re.fullmatch(r"<TableInfo a\$t@2 \(id, v\) at .*\.lance>", repr(client.table(table)))
    assert re.fullmatch(r"<Snapshot at \d+ of 1 tables>", repr(client.snapshot()))


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


@pytest.mark.parametrize("name", ["append", "delete", "update", "merge_insert", "rename_table"])
def test_a_missing_argument_is_one_of_what_was_called(client: CommitLog, name: str) -> None:
    with pytest.raises(TypeError, match=rf"^CommitLog\.{name}\(\) missing 1 required"):
        getattr(client, name)("a$t")


def test_a_property_that_the_log_reads_has_a_value_that_means_something(client: CommitLog) -> None:
    with pytest.raises(InvalidRequest, match="the property rows='yes' says nothing. Use rows=log"):
        client.create_table("a$t", SCHEMA, properties={"rows": "yes"})
    client.create_table("a$t", SCHEMA, properties={"rows": "files"})
    with pytest.raises(InvalidRequest, match="rows='Log' says nothing"):
        client.set_properties("a$t", {"rows": "Log"})
    client.set_properties("a$t", {"rows": None})
    client.create_table("a$u", SCHEMA, properties={"lines": "yes"})
