"""What is kept of `CREATE TABLE … USING commitlog`, and what is made of it later."""

import json
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from commitlog.errors import InvalidRequest, InvalidTransaction
from commitlog.spark.sql_tables import (
    KEPT,
    READ,
    check_create_table,
    keeping_options,
    kept_for_reading,
    kept_for_writing,
)

SERVERS = "kafka.bootstrap.servers"
COLUMNS = StructType([StructField("id", LongType()), StructField("name", StringType())])


def created(table: str = "a$b", **more: str) -> StructType:
    given = {SERVERS: "h:1", "table": table, **more}
    made = {f"option.{name}": value for name, value in given.items()}
    return keeping_options(COLUMNS, {**made, "provider": "commitlog", "owner": "me"})


def written(schema: StructType, without: str = READ) -> StructType:
    """Return columns as Spark hands them to the writer of the table that they are of."""
    fields: list[Any] = json.loads(schema.json())["fields"]
    for field in fields:
        field["metadata"].pop(without, None)
    return StructType.fromJson({"type": "struct", "fields": fields})


def test_the_options_come_back_with_the_columns() -> None:
    expected = {SERVERS: "h:1", "table": "a$b"}
    assert kept_for_reading(created(), {}, SERVERS) == expected
    assert kept_for_reading(created(), {"tag": "x"}, SERVERS) == expected | {"tag": "x"}
    assert kept_for_writing(written(created()), {}, SERVERS) == expected
    own = {SERVERS: "h:2", "table": "c$d"}
    assert kept_for_reading(created(), own, SERVERS) == own
    assert kept_for_writing(created(), own, SERVERS) == own
    assert keeping_options(COLUMNS, own) == COLUMNS


@pytest.mark.parametrize("own", [{}, {SERVERS: "h:2", "table": "c$d"}])
def test_a_name_reads_only_what_it_was_made_for(own: dict[str, str]) -> None:
    """A table's columns lack `_change_type`: its deletions were read as rows."""
    with pytest.raises(InvalidRequest, match="the columns of a table.*not of changes") as caught:
        kept_for_reading(created(), {**own, "read": "Changes"}, SERVERS)
    assert "OPTIONS (…, read 'changes')" in str(caught.value)
    changes = created(read="Changes")
    assert kept_for_reading(changes, {**own, "READ": "changes"}, SERVERS)["read"] == "changes"
    assert kept_for_reading(changes, {}, SERVERS)["read"] == "Changes"
    with pytest.raises(InvalidRequest, match="the columns of changes.*not of a table"):
        kept_for_reading(changes, {**own, "read": "table"}, SERVERS)


@pytest.mark.parametrize(
    "schema",
    [
        created(),
        COLUMNS,
        StructType([created().fields[0], COLUMNS.fields[1]]),
        StructType([written(created()).fields[0], created("c$d").fields[1]]),
        written(written(created()), without="commitlog.columns"),
    ],
    ids=["as read", "of another format", "computed in part", "mixed", "an older release's"],
)
def test_columns_that_say_where_rows_come_from_are_no_target(schema: StructType) -> None:
    with pytest.raises(InvalidTransaction, match="In the second name the table"):
        kept_for_writing(schema, {}, SERVERS)


def test_other_columns_and_secrets_are_refused() -> None:
    more = StructType([*created().fields, StructField("x", LongType())])
    with pytest.raises(InvalidTransaction, match="a\\$b: Spark's catalog.*x is new"):
        kept_for_reading(more, {}, SERVERS)
    with pytest.raises(InvalidTransaction, match="Spark's catalog has other columns"):
        kept_for_reading(StructType(created().fields[:1]), {}, SERVERS)
    old = StructType([StructField("id", LongType(), metadata={KEPT: '{"kafka.ssl.key.pem": "s"}'})])
    with pytest.raises(InvalidTransaction, match="keeps the secret option"):
        kept_for_reading(old, {}, SERVERS)
    for name in ("kafka.sasl.password", "KAFKA.SSL.KEYSTORE.PASSWORD", "x.token"):
        with pytest.raises(InvalidTransaction, match="is a secret") as caught:
            check_create_table({f"option.{name}": "hunter2"})
        assert "hunter2" not in f"{caught.value} {caught.value.value}"
