"""Commands and pictures that look closer at a log's history."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import duckdb
import pytest

from commitlog.client.history.index_file import SETTINGS
from commitlog.core.log.replica import Decided
from commitlog.errors import (
    NoSuchTable,
    NoSuchVersion,
    Unavailable,
    UnsupportedFormat,
)
from commitlog.model.operations import AlterProperties
from commitlog.model.records import Code, OperationResult, Outcome, Status, Submitted, Transaction
from commitlog.ports import Log
from consumers import cli, history
from consumers.commands import ask, look, output
from consumers.commands.columns import Column
from consumers.commands.exit_codes import ExitCode
from consumers.views import explanation, plots
from consumers.views.activity import activity
from consumers.views.version_index import IndexPosition, VersionIndex, process, run_index
from consumers.views.version_index.comparison import check_index_of
from consumers.views.version_index.layout import noted_counts
from consumers.views.version_index.rows import no_recordings
from tests.child import ended
from tests.fakes.log_stream import PartitionLog, ReadOnlyLog, batches
from tests.unit.test_version_index_store import position_after
from tests.waiting import meanwhile, wait_until

TABLE = "ns0$t1"
TRANSACTIONS = 900


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("index")
    log = PartitionLog()
    log.grow(TRANSACTIONS)
    with VersionIndex(root, hot_transactions_max=400) as index:
        for batch in batches(log.decided(), 300):
            index.apply(batch, position_after(batch), recordings=no_recordings)
            index.settle()
        index.publish()
    return root


@pytest.fixture(scope="module")
def versions(root: Path) -> tuple[int, int]:
    """Return two versions of the standing life that differ, the newest last."""
    rows = history.query(
        root, "SELECT max(version) AS v FROM versions WHERE incarnation ="
        " (SELECT incarnation FROM tables WHERE table_name = ? AND ended_by IS NULL)", [TABLE]
    )  # fmt: skip
    newest = int(str(rows[0]["v"]))
    return newest - 3, newest


def run(*arguments: str | int | Path) -> int:
    return cli.main([str(one) for one in arguments])


@pytest.mark.slow
def test_a_difference_names_fragments_and_who_did_it(
    root: Path, versions: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("diff", TABLE, *versions, "--root", root, "--json") == ExitCode.OK
    rows = json.loads(capsys.readouterr().out)
    assert rows == history.diff(root, TABLE, *versions)
    assert run("diff", TABLE, versions[1], versions[1], "--root", root) == ExitCode.OK
    assert "have the same fragments" in capsys.readouterr().err
    assert run("diff", TABLE, versions[0], 100_000, "--root", root) == ExitCode.REFUSED
    assert f"to {versions[1]}, made from" in capsys.readouterr().err


def test_who_asks_a_root_without_an_index_is_told_what_keeps_one(tmp_path: Path) -> None:
    root = tmp_path / "my root"
    with pytest.raises(Unavailable, match=f"`commitlog up --root '{root}'` keeps one"):
        history.connect(root)


@pytest.mark.slow
def test_what_is_asked_at_once_sees_one_snapshot(
    root: Path, versions: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    connect = history.connect

    def counted(at: Path) -> duckdb.DuckDBPyConnection:
        opened.append(at)
        return connect(at)

    monkeypatch.setattr(history, "connect", counted)
    history.diff(root, TABLE, *versions)
    for name in ("blame", "growth", "history", "conflicts"):
        with pytest.raises(NoSuchTable):
            getattr(history, name)(root, "nothing")
    with pytest.raises(NoSuchVersion, match="it has versions"):
        history.table_at(root, TABLE, 10**6)
    [newest] = history.timeline(root, limit=1)
    assert explanation.explain(root, str(newest["transaction_id"]))
    assert len(opened) == 8


@pytest.mark.slow
def test_blame_is_of_a_table_a_fragment_or_a_file(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("blame", TABLE, "--root", root, "--json") == ExitCode.OK
    rows = json.loads(capsys.readouterr().out)
    assert rows
    fragment, file = rows[-1]["fragment_id"], rows[-1]["files"][0]
    for what in (fragment, file):
        assert run("blame", TABLE, what, "--root", root) == ExitCode.OK
        lines = capsys.readouterr().out.splitlines()
        assert " ".join(lines[0].split()).startswith("fragment version time, UTC change")
        assert any(line.split()[0] == str(fragment) for line in lines[1:])
    assert run("blame", TABLE, "99999", "--root", root) == ExitCode.REFUSED
    assert "never had fragment or file 99999; it had 0 to" in capsys.readouterr().err
    assert run("blame", "ns0$tt", "--root", root) == ExitCode.REFUSED
    assert "Did you mean ns0$t" in capsys.readouterr().err


@pytest.mark.slow
def test_sql_answers_as_table_json_and_csv(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "SELECT 'a,b' AS x, [1, 2] AS y, TIMESTAMP '2026-01-31 12:00:00' AS z, 1.5 AS n"
    assert run("sql", query, "--root", root) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[0].split() == ["x", "y", "z", "n"]
    assert run("sql", query, "--root", root, "--json") == ExitCode.OK
    row = json.loads(capsys.readouterr().out)[0]
    assert (row["y"], row["z"]) == ([1, 2], "2026-01-31T12:00:00.000")
    monkeypatch.setattr("sys.stdin", io.StringIO(query))
    assert run("sql", "-", "--root", root, "--csv") == ExitCode.OK
    header, cells = csv.reader(io.StringIO(capsys.readouterr().out))
    assert header == ["x", "y", "z", "n"]
    assert cells[:2] == ["a,b", "[1, 2]"]
    assert run("sql", "SELECT nope FROM timeline", "--root", root) == ExitCode.REFUSED
    assert "nope" in capsys.readouterr().err
    assert run("sql", "SELECT 1 AS one WHERE false", "--root", root, "--csv") == ExitCode.OK
    assert capsys.readouterr().out == "one\n"


@pytest.mark.slow
def test_listings_are_csv_if_asked(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["history", TABLE], ["tables"], ["conflicts"], ["blame", TABLE]):
        assert run(*command, "--root", root, "--csv") == ExitCode.OK
        header, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
        assert rows
        assert {len(row) for row in rows} == {len(header)}


def _none(question: Callable[..., history.Rows], *args: Any, **options: Any) -> history.Rows:
    rows = question(*args, **options)
    rows.clear()
    return rows


@pytest.mark.slow
def test_a_listing_without_rows_is_the_header_as_csv(
    root: Path,
    versions: tuple[int, int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headers = []
    for has_rows in (True, False):
        if not has_rows:
            for question in ("conflicts", "history", "diff", "blame"):
                monkeypatch.setattr(history, question, partial(_none, getattr(history, question)))
            none = ask.TABLES.replace("ended_by IS NULL", "false")
            monkeypatch.setattr(ask, "TABLES", none)
        asked: tuple[tuple[str | int, ...], ...] = (
            ("tables",),
            ("conflicts",),
            ("history", TABLE),
            ("diff", TABLE, *versions),
            ("blame", TABLE),
        )
        for command in asked:
            assert run(*command, "--root", root, "--csv") == ExitCode.OK
            header, *rows = capsys.readouterr().out.splitlines()
            assert bool(rows) == has_rows
            headers.append(header)
    assert headers[:5] == headers[5:]


@pytest.mark.slow
def test_top_tells_rates_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("top", "--once", "--json", "--root", root) == ExitCode.OK
    row = json.loads(capsys.readouterr().out)
    assert row["lag"] == {"0": 0}
    assert row["committed_per_second"] == 0  # the log's times lie years back
    assert run("top", "--once", "--root", root) == ExitCode.OK
    assert "committed 0.0/s" in capsys.readouterr().out
    assert run("top", "--interval", "0", "--root", root) == ExitCode.USAGE
    whole = activity(root, seconds=10.0**9)
    rows = history.query(root, "SELECT sum(committed)::BIGINT AS n FROM writers")
    assert float(str(whole["committed_per_second"])) * 10**9 == pytest.approx(
        int(str(rows[0]["n"]))
    )


@pytest.mark.slow
def test_an_index_that_has_all_there_is_is_not_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "END_OFFSET_SECONDS", 0.01)
    stream = PartitionLog()
    stream.grow(20)
    log, noted = cast(Log, ReadOnlyLog([stream])), tmp_path / "index" / "published.json"
    with meanwhile(lambda stop: run_index(log, tmp_path, stop=stop)):
        wait_until(lambda: noted_counts(tmp_path, log.genesis().log_id) == {0: 20}, "all is there")
        os.utime(noted, (0, 0))
        wait_until(lambda: noted.stat().st_mtime > 0, "the keeper looks at the log at rest")
    seen = noted.stat().st_mtime
    for after in (0.0, 3_600.0):
        clock = partial(float, seen + after)
        assert activity(tmp_path, wall_clock=clock)["behind_seconds"] == pytest.approx(after, 0.01)


def test_a_tables_commits_are_transactions_however_many_operations_they_have(
    tmp_path: Path,
) -> None:
    alter = AlterProperties(("t",), upserts=(("a", "b"),))
    record = Transaction("id-1", (alter, alter, alter), principal="ann")
    result = OperationResult(("t",), "life", "AlterProperties", version=1, location="/t")
    made = Outcome(1, "id-1", 0, Status.COMMITTED, time_ms=1_000, results=(result,) * 3)
    refused = Outcome(2, "id-2", 1, Status.REJECTED, time_ms=2_000, code=Code.NO_SUCH_TABLE)
    decided = [
        Decided(Submitted(0, 0, 0, record), made, 1),
        Decided(Submitted(0, 1, 0, replace(record, transaction_id="id-2")), refused, 2),
    ]
    with VersionIndex(tmp_path) as index:
        index.apply(decided, IndexPosition(0, 2), recordings=no_recordings)
        index.publish()
    whole: Any = activity(tmp_path, seconds=10.0**10)
    [writer], [table] = whole["writers"], whole["tables"]
    assert (writer["committed"], writer["refused"]) == (1, 1)
    assert (table["committed"], table["refused"]) == (1, 1)


@pytest.mark.slow
def test_top_stays_in_place_on_a_terminal_until_interrupted(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    # Threads of other tests sleep too.
    monkeypatch.setattr(look, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    # Nothing goes on: its tables are empty.
    assert run("top", "--root", root) == ExitCode.INTERRUPTED
    assert run("top", "--root", root, "--seconds", 10**9, "--once") == ExitCode.OK
    shown = capsys.readouterr().out
    assert looks == [1.0, 1.0]
    assert "writer-1" in shown
    assert TABLE in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "table", "suffix"),
    [
        ("commits", None, ".png"),
        ("commits", TABLE, ".svg"),
        ("growth", TABLE, ".svg"),
        ("conflicts", None, ".svg"),
    ],
)
def test_pictures_are_drawn(
    root: Path, tmp_path: Path, kind: str, table: str | None, suffix: str
) -> None:
    pytest.importorskip("matplotlib")
    first, second = (plots.plot(kind, root, table, tmp_path / f"{n}{suffix}") for n in "ab")
    data = first.read_bytes()
    assert data == second.read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")


@pytest.mark.slow
def test_what_cannot_be_drawn_is_told(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    for arguments, said in (
        (["pie"], "there are commits, growth, conflicts"),
        (["commits", "--out", tmp_path / "x.gif"], "ends with .png or .svg"),
        (["growth"], "name it: plot growth TABLE"),
    ):
        assert run("plot", *arguments, "--root", root) == ExitCode.USAGE
        assert said in capsys.readouterr().err
    with pytest.raises(NoSuchTable, match="Did you mean"):
        plots.plot("growth", root, "ns0$tt", tmp_path / "x.png")
    with VersionIndex(tmp_path / "empty") as index:
        index.publish()
    with pytest.raises(plots.NothingToPlot, match="nothing was decided"):
        plots.plot("commits", tmp_path / "empty", None, tmp_path / "x.png")
    with pytest.raises(plots.NothingToPlot, match="no conflicts"):
        plots.plot("conflicts", tmp_path / "empty", None, tmp_path / "x.png")
    assert run("plot", "commits", "--root", root, "--out", tmp_path / "y.svg") == ExitCode.OK
    assert capsys.readouterr().out.strip() == str(tmp_path / "y.svg")


def test_a_disk_without_room_for_a_picture_is_named(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(figure, "savefig", Mock(side_effect=full))
    out = tmp_path / "x.png"
    assert run("plot", "commits", "--root", root, "--out", out) == ExitCode.MACHINE
    assert f"{out}: No space left" in capsys.readouterr().err


def test_matplotlib_is_asked_for_by_name(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("plot", "commits", "--root", root) == ExitCode.USAGE
    assert "lance-commitlog[plots]" in capsys.readouterr().err


def test_a_long_listing_is_paged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paged: list[str] = []
    monkeypatch.setattr("pydoc.pager", paged.append)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "20")
    columns = (Column("n"),)
    rows = [{"n": number} for number in range(50)]
    output.print_listing(columns, rows[:5], as_json=False, nothing="")
    assert not paged
    output.print_listing(columns, rows, as_json=False, nothing="")
    assert "49" in paged[0]


def _breaks(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "not a database":
        data = bytearray(b"x" * 5000)
    elif how == "empty":
        data = bytearray()
    elif how == "cut":
        del data[len(data) // 2 :]
    else:
        for place in range(20_000, len(data), 500):
            data[place] ^= 0xFF
    path.unlink()
    path.write_bytes(bytes(data))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["not a database", "empty", "cut", "changed bytes"])
def test_a_broken_index_is_told_as_such(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with VersionIndex(tmp_path) as index:
        index.publish()
    _breaks(tmp_path / "index.duckdb", how)
    with pytest.raises(history.BrokenIndex, match="restart `commitlog index`"):
        history.query(tmp_path, "SELECT (SELECT count(*) FROM help), * FROM meta")
    assert run("tables", "--root", tmp_path) == ExitCode.UNAVAILABLE
    told = capsys.readouterr().err
    assert told.startswith("commitlog: the version index at")
    assert told.count("\n") == 1


def test_a_question_that_is_too_large_is_told_as_such(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETTINGS, "memory_limit", "20MB")
    monkeypatch.setitem(SETTINGS, "temp_directory", "")
    sql = "SELECT sum(len(l)) FROM (SELECT list(range) AS l FROM range(10_000_000))"
    with pytest.raises(history.BrokenIndex, match="Out of Memory .* Ask for less") as caught:
        history.query(root, sql)
    assert "delete" not in str(caught.value)


def test_what_the_system_says_of_an_index_is_no_reason_to_delete_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise duckdb.IOException('IO Error: Cannot open file "x": Too many open files')

    monkeypatch.setattr(history, "attach", fails)
    with pytest.raises(history.BrokenIndex, match="let .* more files open"):
        history.query(root, "FROM help")


def test_an_index_of_another_format_is_told_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with VersionIndex(tmp_path) as index:
        index.publish()
    with duckdb.connect(str(tmp_path / "index.duckdb")) as connection:
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'schema_version'")
    with pytest.raises(UnsupportedFormat, match="has format 1, this program reads"):
        history.status(tmp_path)
    assert run("history", "t", "--root", tmp_path) == ExitCode.STOP
    assert "commitlog index" in capsys.readouterr().err
    check_index_of(tmp_path, "log", "its id")  # no reason for an HTTP server not to start


def test_a_wrong_query_is_told_as_such(root: Path) -> None:
    with pytest.raises(history.QueryFailed, match="nope"):
        history.query(root, "SELECT nope FROM timeline")


@pytest.mark.slow
def test_the_older_command_line_of_duckdb_reads_it(root: Path) -> None:
    program = Path(sys.executable).with_name("duckdb")
    if not program.exists():
        pytest.skip("duckdb-cli is not installed")
    found = ended([program, "--version"], check=True)
    assert found.stdout.startswith("v1.")
    examples = history.query(root, "SELECT name, example FROM help")
    queries = ";".join(str(one["example"]).replace("ns$table", TABLE) for one in examples)
    command = [str(program), "-readonly", "-bail", str(root / "index.duckdb"), queries]
    found = ended(command, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.slow
def test_columns_of_one_name_keep_their_values(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a"
    told = {}
    for form in ("--json", "--csv"):
        assert run("sql", query, "--root", root, form) == ExitCode.OK
        told[form] = capsys.readouterr().out
    assert json.loads(told["--json"]) == [{"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}]
    assert told["--csv"] == "a,a_2,a_1,a_3\n1,2,3,4\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("TIMESTAMP_NS '2020-01-01 00:00:00.123456789'", "2020-01-01T00:00:00.123456789"),
        ("TIMESTAMPTZ '20000-01-01 02:00:00+02'", "20000-01-01T00:00:00.000000Z"),
        ("TIMESTAMP '-infinity'", "-infinity"),
        ("TIMESTAMPTZ 'infinity'", "infinity"),
        ("DATE 'infinity'", "infinity"),
        ("DATE '-5000-01-01'", "-5000-01-01"),
        ("DATE '2020-01-01'", "2020-01-01"),
    ],
)
def test_times_that_python_has_not_are_shown(
    root: Path, value: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sql", f"SELECT {value} AS a", "--root", root, "--json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == [{"a": shown}]


def test_times_are_as_exact_as_json_as_they_are(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = "'2026-01-31 12:00:00.12345"
    query = f"SELECT TIMESTAMP {at}6' AS a, TIMESTAMPTZ {at}6+01' AS b, [TIMESTAMP {at}'] AS c"
    assert run("sql", query, "--root", root, "--json") == ExitCode.OK
    assert list(json.loads(capsys.readouterr().out)[0].values()) == [
        "2026-01-31T12:00:00.123456",  # in whichever zone
        "2026-01-31T11:00:00.123456Z",
        ["2026-01-31T12:00:00.123450"],
    ]


@pytest.mark.slow
def test_an_error_of_duckdb_is_one_line_that_steers_no_terminal(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for query in ("SELECT '\x1b[31mx'::INT", "FROM t AT (TIMESTAMP => 'x')"):
        assert run("sql", query, "--root", root) == ExitCode.REFUSED
        told = capsys.readouterr().err
        assert told.startswith("commitlog: the query is refused: Conversion Error")
        assert told.count("\n") == 1
        assert told[:-1].isprintable()


def test_what_cannot_be_shown_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sql", "SELECT [DATE '-5000-01-01'] AS a", "--root", root) == ExitCode.REFUSED
    assert "Cast them to VARCHAR" in capsys.readouterr().err


@pytest.mark.parametrize("flags", ["--interval nan", "--interval inf", "--seconds 1e11"])
def test_a_time_that_cannot_be_waited_for_is_wrong_usage(
    root: Path, flags: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("top", "--once", *flags.split(), "--root", root) == ExitCode.USAGE
    assert "It must be above 0" in capsys.readouterr().err


@pytest.mark.parametrize("handler", ["strict", "surrogateescape"])
def test_a_query_that_is_no_text_is_a_wrong_argument(
    root: Path,
    handler: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = io.TextIOWrapper(io.BytesIO(b"SELECT '\xff'"), encoding="utf-8", errors=handler)
    monkeypatch.setattr("sys.stdin", given)
    assert run("sql", "-", "--root", root) == ExitCode.USAGE
    assert "standard input isn't text" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "explain"])
def test_a_digit_that_is_no_number_names_no_position(
    root: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, "\N{SUPERSCRIPT TWO}", "--root", root) == ExitCode.REFUSED
    assert "has no transaction" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "explain"])
def test_a_position_of_a_partition_that_the_log_lacks_is_refused(
    root: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, "1", "--partition", "9", "--root", root) == ExitCode.USAGE
    assert "--partition 9 does not exist: the log has only partition 0" in capsys.readouterr().err


def test_a_root_that_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").touch()
    assert run("tables", "--root", tmp_path / "notes") == ExitCode.USAGE
    assert "notes is not a folder: name a folder" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "explain"])
def test_a_commit_id_of_iceberg_names_its_transaction(
    root: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = history.query(root, "SELECT transaction_id AS id FROM timeline LIMIT 1")[0]["id"]
    assert run(command, f"txn-{known}", "--root", root) == ExitCode.OK
    assert str(known) in capsys.readouterr().out
    assert run(command, "txn-nobody", "--root", root) == ExitCode.REFUSED
    assert "has no transaction txn-nobody" in capsys.readouterr().err
