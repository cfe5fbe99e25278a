"""Which version did a table have as of a position in the log, and which ranges of them exist?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from commitlog.errors import CorruptLog, InvalidRequest, Unavailable, WrongLog
from commitlog.model.records import Application
from commitlog.spark.change_stream import ChangeReader, ChangeStream
from commitlog.spark.log_source import LogReader, LogStream
from commitlog.spark.options import parse_changes, parse_log
from commitlog.spark.versions import TableVersions, VersionWanted
from tests.service import SCHEMA, rows, service

T = "ns$t"
SERVERS = {"kafka.bootstrap.servers": "h:1"}


def test_an_answer_to_a_repeat_is_no_newer_version(tmp_path: Path) -> None:
    with service(tmp_path) as made:
        client, application = made.client, Application("job", 1)
        client.create_table(T, SCHEMA)
        first = client.append(T, rows(0), application=application)
        newer = client.append(T, rows(1))
        again = client.append(T, rows(2), application=application)
        assert again.answers == first.sequence
        versions = TableVersions(client.runtime(), client.table(T))
        for outcome, version in ((first, 2), (newer, 3), (again, 3)):
            assert versions.resolve(VersionWanted(position=outcome.sequence)) == version


def test_a_range_of_changes_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """It read fewer versions, or none, as if it had been asked for them."""
    with service(tmp_path) as made:
        made.client.create_table(T, SCHEMA)
        made.client.append(T, rows(1))

        def parts(start: str, end: str) -> Sequence[InputPartition]:
            given = {**SERVERS, "table": T, "read": "changes"}
            options = parse_changes({**given, "startingVersion": start, "endingVersion": end})
            found = ChangeReader(options, StructType(), lambda _: made.client).partitions()
            return [part for one in found for part in one.parts]  # type: ignore[attr-defined]

        for start in ("1", "2", "3"):
            with pytest.raises(InvalidRequest, match="version 9 of .*future: the head is 2"):
                parts(start, "9")
        with pytest.raises(InvalidRequest, match="start at version 3 and end at 1"):
            parts("3", "1")
        assert parts("3", "2") == []  # A job that goes on where it ended: nothing is new.
        assert len(parts("2", "2")) == 1


def test_a_stream_doesnt_wait_for_what_another_log_had(tmp_path: Path) -> None:
    """With another log's checkpoint, or after a restore, it left out what came, without a word."""
    options = parse_log({**SERVERS, "read": "log"})
    with service(tmp_path / "a") as made, service(tmp_path / "b") as other:
        for one in (made, other):
            one.client.create_table(T, SCHEMA)
        made.client.append(T, rows(1))
        start = LogStream(options, lambda _: made.client).latestOffset()
        stream = LogStream(options, lambda _: other.client)
        with pytest.raises(WrongLog, match="ends at offset .*new checkpoint"):
            stream.latestOffset(start)
        for number in (2, 3):
            other.client.append(T, rows(number))
        of_the_term_before = {"0": {**start["0"], "epoch": 0}}
        for given in (start, of_the_term_before):
            with pytest.raises(CorruptLog, match="is broken .*new checkpoint"):
                stream.latestOffset(given)


def test_a_checkpoint_of_another_source_is_no_riddle(tmp_path: Path) -> None:
    """It was a KeyError, or said of a table that it was dropped."""
    with service(tmp_path) as made:
        for name in (T, "ns$other"):
            made.client.create_table(name, SCHEMA)

        def changes(name: str = T) -> ChangeStream:
            options = parse_changes({**SERVERS, "table": name, "read": "changes"})
            return ChangeStream(options, from_arrow_schema(SCHEMA), lambda _: made.client)

        log = LogStream(parse_log({**SERVERS, "read": "log"}), lambda _: made.client)
        of_table, of_log, of_rate = changes().initialOffset(), log.latestOffset(), 5
        pairs: tuple[tuple[Any, tuple[Any, ...]], ...] = (
            (changes(), (of_log, of_rate)),
            (log, (of_table, of_rate, {"0": 5})),
        )
        told = "checkpoint is another source's"
        for stream, others in pairs:
            for other in others:
                with pytest.raises(InvalidRequest, match=told):
                    stream.latestOffset(other)
                with pytest.raises(InvalidRequest, match=told):
                    stream.partitions(other, other)
        with pytest.raises(InvalidRequest, match="is another table's.*or ns.other was dropped"):
            changes("ns$other").latestOffset(of_table)


def test_progress_shows_how_far_a_stream_is_behind_the_log(tmp_path: Path) -> None:
    """Spark showed null as `latestOffset`."""
    with service(tmp_path) as made:
        options = parse_log({**SERVERS, "read": "log", "maxRowsPerTrigger": "1"})
        stream = LogStream(options, lambda _: made.client)
        at = stream.latestOffset(stream.initialOffset(), ReadMaxRows(1))
        made.client.create_table(T, SCHEMA)
        made.client.append(T, rows(1))
        newest = stream.latestOffset(at, ReadAllAvailable())
        assert at["0"]["offset"] < newest["0"]["offset"]
        assert stream.reportLatestOffset() == {"0": {"offset": newest["0"]["offset"]}}


@pytest.mark.parametrize("what", ["read_outcomes", "read_transactions"])
def test_a_task_waits_for_kafka_as_long_as_the_query_may(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for 30 seconds, whatever `timeoutSeconds` says."""
    options = parse_log({**SERVERS, "read": "log", "timeoutSeconds": "0.2"})
    with service(tmp_path) as made:
        made.client.create_table(T, SCHEMA)
        reader = LogReader(options, lambda _: made.client)
        parts = reader.partitions()
        log = made.client.runtime().log
        opened = getattr(log, what)

        def silent(*given: Any, **more: Any) -> Any:
            found = opened(*given, **more)
            monkeypatch.setattr(found, "poll", lambda **_: [])
            return found

        monkeypatch.setattr(log, what, silent)
        for part in parts:
            with pytest.raises(Unavailable, match=r" 0\.2 s"):
                list(reader.read(part))


def test_a_stream_doesnt_wait_for_versions_that_a_table_lost(tmp_path: Path) -> None:
    with service(tmp_path) as made:
        made.client.create_table(T, SCHEMA)
        made.client.append(T, rows(1))
        options = parse_changes({**SERVERS, "table": T, "read": "changes"})
        stream = ChangeStream(options, StructType(), lambda _: made.client)
        end = stream.latestOffset()
        assert (end["version"], stream.latestOffset(end)) == (3, end)
        with pytest.raises(InvalidRequest, match="version 3 .*the head is 2.*new checkpoint"):
            stream.latestOffset({**end, "version": 4})


def test_a_stream_of_the_log_waits_for_a_log_that_is_away(tmp_path: Path) -> None:
    """It failed at once when the broker was restarted, whatever `timeoutSeconds` said."""
    with service(tmp_path) as made:
        made.client.create_table(T, SCHEMA)
        made.client.append(T, rows(1))

        def stream(seconds: str) -> LogStream:
            options = parse_log({**SERVERS, "read": "log", "timeoutSeconds": seconds})
            return LogStream(options, lambda _: made.client)

        start = stream("60").initialOffset()
        end = stream("60").latestOffset(start)
        asks: list[tuple[Callable[[], object], object]] = [
            # A leader that was away for long begins a new epoch, and so moves the offset.
            (lambda: stream("60").latestOffset(start)["0"]["sequence"], end["0"]["sequence"]),
            (lambda: len(stream("60").partitions(start, end)), 1),
            (stream("60").prepareForTriggerAvailableNow, None),
        ]
        for ask, answer in asks:
            made.cluster.is_reachable = False
            back = threading.Timer(0.5, setattr, (made.cluster, "is_reachable", True))
            back.start()
            assert ask() == answer
            back.join()
        made.cluster.is_reachable = False
        with pytest.raises(Unavailable):
            stream("0.1").latestOffset(start)
        made.cluster.is_reachable = True
