"""The options of format `commitlog`."""

from collections.abc import Callable
from unittest.mock import MagicMock

import pytest

from commitlog.errors import InvalidTransaction
from commitlog.spark import compact, show_repeats
from commitlog.spark.audit import audit
from commitlog.spark.options import (
    Connection,
    parse_batches,
    parse_changes,
    parse_read,
    parse_write,
)
from commitlog.spark.versions import VersionWanted

BASE = {"table": "nyc$flights", "kafka.bootstrap.servers": "localhost:9092"}


def test_the_connection_carries_kafkas_own_settings() -> None:
    given = {**BASE, "log": "other", "kafka.security.protocol": "SSL"}
    options = parse_write(given, streaming=True)
    expected = Connection("localhost:9092", "other", (("security.protocol", "SSL"),))
    assert options.connection == expected
    assert options.table == "nyc$flights"


def test_a_query_may_wait_for_its_log_as_long_as_it_says() -> None:
    waits = [{}, {"timeoutSeconds": "600"}, {"timeoutSeconds": "2.5"}]
    found = [parse_write({**BASE, **one}, streaming=True).connection for one in waits]
    assert [one.connect_seconds for one in found] == [30.0, 600.0, 2.5]


def test_the_path_may_name_the_table() -> None:
    given = {"path": "nyc$flights", "kafka.bootstrap.servers": "localhost:9092"}
    assert parse_read(given).table == "nyc$flights"


def test_names_are_read_in_any_case() -> None:
    options = parse_write({**BASE, "TXNAPPID": "job", "txnVersion": "3"}, streaming=False)
    assert (options.application_id, options.application_sequence) == ("job", 3)


def test_columns_are_a_list() -> None:
    given = {**BASE, "columns": " carrier, flight ,carrier"}
    assert parse_read(given).columns == ("carrier", "flight")


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        ("`last, first`,id", ("last, first", "id")),
        (" ` id ` , `a``b` ", (" id ", "a`b")),
        *(("a`b", ("a`b",)), ("a b,,c.d,", ("a b", "c.d"))),
    ],
)
def test_a_column_whose_name_has_a_comma_is_quoted_as_in_sql(
    given: str, columns: tuple[str, ...]
) -> None:
    """It was cut in two, of which the table had none."""
    assert parse_read({**BASE, "columns": given}).columns == columns


@pytest.mark.parametrize("given", [",", " , ", "`a", "`a`b", "``,a"])
def test_what_is_no_list_of_columns_is_refused(given: str) -> None:
    """A comma alone read all columns."""
    told = "option 'columns' is not a list of column names. Separate names by commas"
    for parse in (parse_read, parse_changes):
        with pytest.raises(InvalidTransaction, match=told) as caught:
            parse({**BASE, "columns": given})
        assert (caught.value.field, caught.value.value) == ("columns", given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, VersionWanted()),
        ({"versionAsOf": "3"}, VersionWanted(version=3)),
        ({"positionAsOf": "17"}, VersionWanted(position=17)),
        ({"tag": "best"}, VersionWanted(tag="best")),
        ({"timestampAsOf": "2013-07-01"}, VersionWanted(time_ms=1372636800000)),
        ({"timestampAsOf": "2013-07-01T02:00+02:00"}, VersionWanted(time_ms=1372636800000)),
        ({"timestampAsOf": "2004-10-19T12:40:37.656Z"}, VersionWanted(time_ms=1098189637656)),
        ({"timestampAsOf": "1969-12-31T23:59:59.9995Z"}, VersionWanted(time_ms=-1)),
    ],
)
def test_a_version_is_named_in_four_ways(given: dict[str, str], expected: VersionWanted) -> None:
    assert parse_read({**BASE, **given}).version == expected


def test_foreach_batch_takes_no_table() -> None:
    reached = {key: value for key, value in BASE.items() if key != "table"}
    assert parse_batches({**reached, "txnAppId": "cdc"}).application_id == "cdc"
    with pytest.raises(InvalidTransaction, match="not an option of foreachBatch"):
        parse_batches(BASE)


def test_a_table_made_by_sql_brings_properties_of_sparks() -> None:
    twice = BASE | {f"option.{name}": value for name, value in BASE.items()}
    by_sql = {**twice, "owner": "me", "provider": "commitlog", "location": "file:/x"}
    assert parse_read(by_sql) == parse_read(BASE)


def test_what_spark_adds_is_no_error() -> None:
    parse_write({**BASE, "checkpointlocation": "/tmp/x", "queryname": "q"}, streaming=True)


@pytest.mark.parametrize(
    ("given", "streaming", "field", "says"),
    [
        ({"txnAppIdd": "x"}, True, "txnappidd", "Did you mean 'txnAppId'"),
        ({"zzz": "x"}, True, "zzz", "Known are"),
        ({"versionAsOf": "1"}, True, "versionAsOf", "not an option of a write"),
        ({"txnAppId": "x", "txnVersion": "1"}, True, "txnVersion", "foreachBatch"),
        ({"txnAppId": "x"}, False, "txnAppId", "belong together"),
        ({"txnVersion": "1"}, False, "txnAppId", "belong together"),
        ({"txnAppId": "x", "txnVersion": "-1"}, False, "txnVersion", "whole number from 0"),
        (
            {"rowsPerFile": "many"},
            True,
            "rowsPerFile",
            "is 'many', not a number that fits. Give a whole number from 1",
        ),
        ({"rowsPerFile": str(2**63)}, True, "rowsPerFile", "whole number up to"),
        ({"txnAppId": "x", "txnVersion": str(2**63)}, False, "txnVersion", "whole number up to"),
        ({"txnAppId": "a\0b"}, True, "txnAppId", "holds a NUL character"),
        ({"rows": "logs"}, True, "rows", "is 'logs', not a write mode. Use files or log"),
        ({"timeoutSeconds": "nan"}, True, "timeoutSeconds", "seconds above 0"),
        ({"path": "nyc$other"}, True, "table", "names two tables"),
        ({"replaceWhere": "id = 1"}, True, "replacewhere", "use `CommitLog.delete` and append"),
        ({"partitionOverwriteMode": "dynamic"}, False, "partitionoverwritemode", "replaces all"),
        ({"mergeSchema": "true"}, True, "mergeschema", "use `CommitLog.add_columns`"),
        ({"sasl.password": "x"}, True, "sasl.password", "file that option 'kafkaFile' names"),
        ({"security.protocol": "SSL"}, True, "security.protocol", "'kafka.security.protocol'"),
        ({"table": ""}, True, "table", "is missing"),
        ({"table": "nyc$$x"}, True, "table", "cannot name"),
        ({"kafka.bootstrap.servers": ""}, True, "kafka.bootstrap.servers", "is missing"),
    ],
)
def test_a_wrong_write_says_what_to_change(
    given: dict[str, str], streaming: bool, field: str, says: str
) -> None:
    with pytest.raises(InvalidTransaction, match=says.replace("$", r"\$")) as caught:
        parse_write({**BASE, **given}, streaming=streaming)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"rowsPerFile": "5"}, "rowsPerFile", "not an option of a read"),
        ({"versionAsOf": "0"}, "versionAsOf", "whole number from 1"),
        ({"versionAsOf": "1_0"}, "versionAsOf", "'1_0', not a number.*whole number from 1"),
        ({"batchRows": str(2**32)}, "batchRows", "whole number up to"),
        ({"timestampAsOf": "yesterday"}, "timestampAsOf", "is 'yesterday', not a time"),
        ({"timestampAsOf": "1796042700000"}, "timestampAsOf", "not a time"),
        ({"tag": "x", "versionAsOf": "1"}, "tag", "conflicts with versionAsOf"),
        ({"pushFilters": "true"}, "pushfilters", "Did you mean 'filter'"),
        ({"colums": "a"}, "colums", "Did you mean 'columns'"),
        ({"startingVersion": "1"}, "startingVersion", "Leave it out, or set read='changes'"),
        ({"maxFilesPerTrigger": "1"}, "maxFilesPerTrigger", "or set read='changes'"),
        ({"startingPosition": "latest"}, "startingPosition", "or set read='changes'"),
        ({"readChangeFeed": "true"}, "readchangefeed", "Set read='changes' instead"),
        ({"snapshot-id": "7"}, "snapshot-id", "Use versionAsOf"),
        ({"mergeSchema": "true"}, "mergeschema", "Leave it out"),
        *(({name: ""}, name, "is empty. Give it a value") for name in ("versionAsOf", "tag")),
        ({"filter": " "}, "filter", "is empty. Give it a value, or leave it out"),
    ],
)
def test_a_wrong_read_says_what_to_change(given: dict[str, str], field: str, says: str) -> None:
    with pytest.raises(InvalidTransaction, match=says) as caught:
        parse_read({**BASE, **given})
    assert caught.value.field == field


def test_who_writes_is_an_option() -> None:
    servers = {"kafka.bootstrap.servers": "h:1", "table": "t"}
    assert parse_write(servers, streaming=False).connection.principal == "spark"
    named = parse_write({**servers, "principal": "etl"}, streaming=False)
    assert named.connection.principal == "etl"


@pytest.mark.parametrize(
    ("name", "use"),
    [
        *(("rowsPerFile", "compact"), ("table", "compact"), ("txnAppId", "show_repeats")),
        *(("startingPosition", "audit"), ("read", "audit"), ("endingVersion", "audit")),
    ],
)
def test_what_only_reaches_the_log_refuses_options_without_effect(name: str, use: str) -> None:
    given = {"kafka.bootstrap.servers": "h:1", name: "1"}
    functions: dict[str, Callable[[], object]] = {
        "compact": lambda: compact(MagicMock(), "t", options=given, connect=MagicMock()),
        "show_repeats": lambda: show_repeats(MagicMock(), given, connect=MagicMock()),
        "audit": lambda: audit(MagicMock(), given, connect=MagicMock()),
    }
    with pytest.raises(InvalidTransaction, match=f"'{name}' is not an option of {use}") as raised:
        functions[use]()
    assert raised.value.field == name
