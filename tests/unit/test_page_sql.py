"""SQL over HTTP: answers questions about the index, and nothing gets out of its process."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import pytest

from commitlog.errors import Overloaded
from consumers.servers.page import sql as sql_service
from consumers.servers.page import sql_child
from consumers.servers.page.sql import Failed, SqlProcess, SqlService, SqlSettings
from consumers.views.version_index import VersionIndex
from tests.child import ended
from tests.page_server import serving_routes
from tests.page_world import busy_log, extend_index

TRANSACTIONS = 600
ENDLESS = "SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range % 7 = b.range % 5"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sql")
    decided, terms = busy_log(TRANSACTIONS)
    extend_index(made, decided, terms)
    # Rows in segments are reached through the views, by paths that are named nowhere else.
    with VersionIndex(made, hot_transactions_max=100) as index:
        index.settle()
        index.publish()
    assert list((made / "index" / "segments").glob("*.parquet"))
    return made


@pytest.fixture(scope="module")
def uri(root: Path) -> Iterator[str]:
    service = SqlService(root, SqlSettings(rows_max=100, processes=1, seconds=60))
    service.answer("SELECT 1", [])  # its process starts with the first question
    with serving_routes(service.routes()) as running:
        yield running
    service.close()


@pytest.fixture(scope="module")
def looked_at(root: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection for looks at statements, which run nothing."""
    with sql_child.open_locked(root) as connection:
        yield connection


def ask(uri: str, body: Any) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(uri.removeprefix("http://"), timeout=60)
    try:
        connection.request("POST", "/v1/sql", data)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.slow
def test_questions_about_the_index_are_answered(uri: str) -> None:
    status, found = ask(uri, {"sql": "SELECT count(*) AS n FROM transactions"})
    assert (status, found["columns"], found["rows"]) == (200, ["n"], [[TRANSACTIONS]])
    asked = {"sql": "SELECT version FROM history($1, n := 3)", "parameters": ["nyc$flights"]}
    assert len(ask(uri, asked)[1]["rows"]) == 3
    _, cut = ask(uri, {"sql": "WITH t AS (FROM transactions) FROM t ORDER BY sequence"})
    assert cut["is_cut"]
    assert len(cut["rows"]) == 100


@pytest.mark.slow
def test_values_without_json_are_words_or_refused(uri: str, root: Path) -> None:
    status, found = ask(uri, {"sql": "SELECT 'nan'::DOUBLE, ['-inf'::FLOAT], 1.5"})
    assert (status, found["rows"]) == (200, [["nan", ["-inf"], "1.5"]])
    status, found = ask(uri, {"sql": "SELECT now()"})  # which DuckDB answers from 2.0.1 on
    assert status == 200 or "now() AT TIME ZONE 'UTC'" in found["error"]
    for sql, said in (
        ("SELECT INTERVAL 30000000 YEARS", "cast it to VARCHAR"),
        ("DROP TABLE meta", "it is not a SELECT"),
    ):
        status, found = ask(uri, {"sql": sql})
        assert (status, found["code"], said in found["error"]) == (400, 13, True), found


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "FROM read_text('{victim}')",
        "FROM '{victim}.csv'",
        "FROM glob('/*')",
        "FROM read_parquet('{root}/index/segments/*.parquet')",
        "FROM sniff_csv('{victim}')",
        "COPY (SELECT 1) TO '{target}'",
        "WITH x AS (COPY (SELECT 1) TO '{target}') FROM x",
        "SELECT (WITH x AS (COPY (SELECT 1) TO '{target}') SELECT 1)",
        "WITH x AS (INSERT INTO meta VALUES ('a', 'b') RETURNING *) FROM x",
        "WITH x AS (DELETE FROM meta RETURNING *) FROM x",
        "WITH x AS (UPDATE meta SET value = 'x' RETURNING *) FROM x",
        "FROM query('WITH x AS (COPY (SELECT 1) TO ''{target}'') FROM x')",
        "FROM query_table('meta')",
        "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
        "ATTACH '{target}'",
        "ATTACH '{root}/index.duckdb' AS again",
        "DETACH commitlog",
        "SET lock_configuration = false",
        "RESET allowed_paths",
        "SET enable_external_access = true",
        "PRAGMA enable_external_access",
        "LOAD httpfs",
        "INSTALL httpfs",
        "EXPORT DATABASE '{target}'",
        "CREATE TEMP TABLE t AS SELECT 1",
        "CREATE MACRO f() AS 1",
        "CALL pragma_version()",
        "SELECT 1; SELECT 2",
        "FROM duckdb_secrets()",
        "FROM 'http://127.0.0.1:1/x.parquet'",
        "SELECT getenv('HOME')",
        "",
        "SELEC",
    ],
)
def test_no_question_gets_out(uri: str, root: Path, tmp_path: Path, sql: str) -> None:
    victim, target = tmp_path / "victim", tmp_path / "target"
    for name in (victim, tmp_path / "victim.csv"):
        name.write_text("hunter2,1\n")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    status, found = ask(uri, {"sql": sql.format(victim=victim, target=target, root=root)})
    assert status == 400, found
    assert "hunter2" not in json.dumps(found)
    assert not target.exists()
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "WITH x AS (COPY (SELECT 1) TO 'f') FROM x",
        "SELECT (WITH x AS (DELETE FROM meta RETURNING *) SELECT 1)",
        "FROM query('WITH x AS (COPY (SELECT 1) TO ''f'') FROM x')",
        "FROM history('a'), read_text('f')",
        "SELECT * FROM (FROM (FROM query_table('meta')))",
        "FROM JSON_EXECUTE_SERIALIZED_SQL('')",
        "SELECT 1; SELECT 2",
        "SET threads = 8",
    ],
)
def test_the_look_at_a_statement_alone_refuses_what_may_act(
    looked_at: duckdb.DuckDBPyConnection, sql: str
) -> None:
    with pytest.raises(sql_child.StatementRefused):
        sql_child.check(looked_at, sql)


@pytest.mark.slow
def test_the_look_at_a_statement_lets_a_recursive_one_pass(
    looked_at: duckdb.DuckDBPyConnection,
) -> None:
    sql_child.check(looked_at, "WITH RECURSIVE r AS (SELECT 1 UNION ALL FROM r) FROM r")


def test_all_functions_are_listed_once_and_only_to_know_one(
    looked_at: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_child, "_own", set())
    connection = Mock(wraps=looked_at)
    asked = ("FROM tables, range(3)", "FROM history('nyc$flights')", "FROM growth('nyc$flights')")
    for sql, times in zip(asked, (0, 1, 1), strict=True):
        sql_child.check(connection, sql)
        assert str(connection.execute.call_args_list).count("duckdb_functions()") == times


def test_the_connection_alone_keeps_files_out(root: Path, tmp_path: Path) -> None:
    """What the look at the statement would miss, DuckDB's settings refuse."""
    victim = tmp_path / "victim.csv"
    victim.write_text("hunter2,1\n")
    with sql_child.open_locked(root) as connection:
        for sql in (
            f"FROM read_csv('{victim}')",
            f"COPY (SELECT 1) TO '{tmp_path / 'target'}'",
            f"ATTACH '{tmp_path / 'other.duckdb'}'",
            "SET enable_external_access = true",
            "SET lock_configuration = false",
            f"SET allowed_paths = ['{victim}']",
            "DELETE FROM meta",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(sql).fetchall()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["victim.csv"]


CONFINED = """
import os, socket, sys
from consumers.servers.page import sandbox
sandbox.limit_resources()
if not sandbox.allow_reading_only([sys.argv[1]]):
    sys.exit(77)
inside, outside = sys.argv[1], sys.argv[2]
assert open(inside + "/readable").read() == "yes"
def refused(act):
    try:
        act()
    except OSError:
        return
    raise SystemExit(f"not refused: {act}")
refused(lambda: open(outside + "/secret").read())
refused(lambda: os.listdir("/dev/shm"))  # the memory that other programs share
refused(lambda: open(inside + "/readable", "w"))
refused(lambda: open(inside + "/new", "w"))
refused(lambda: os.truncate(inside + "/readable", 0))
refused(lambda: os.unlink(inside + "/readable"))
refused(lambda: os.rename(inside + "/readable", inside + "/other"))
refused(lambda: os.mkdir(inside + "/folder"))
refused(lambda: os.execv("/bin/sh", ["sh", "-c", "true"]))
refused(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[3])), 5))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
def test_the_kernel_alone_keeps_the_process_in(uri: str, tmp_path: Path) -> None:
    """What DuckDB would let through, the kernel refuses."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    (inside / "readable").write_text("yes")
    (outside / "secret").write_text("no")
    port = uri.rpartition(":")[2]
    done = ended([sys.executable, "-c", CONFINED, str(inside), str(outside), port])
    if done.returncode == 77:
        pytest.skip("this kernel has no Landlock")
    assert done.returncode == 0, done.stderr
    assert (inside / "readable").read_text() == "yes"


@pytest.mark.slow
def test_a_question_that_takes_too_long_is_killed(root: Path) -> None:
    process = SqlProcess(root, SqlSettings(seconds=0.1))
    try:
        with pytest.raises(Failed, match="within 0.1 s"):
            process.ask(ENDLESS, [])
        assert process.pid is None
    finally:
        process.close()


@pytest.mark.slow
def test_a_process_that_starts_too_late_answers_no_other_question(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says once it has started would be taken for the next answer, and so on."""
    process = SqlProcess(root, SqlSettings(seconds=60))
    monkeypatch.setattr(sql_service, "START_SECONDS", 0.0)
    with pytest.raises(Overloaded, match="try again"):
        process.ask("SELECT 1 AS one", [])
    monkeypatch.setattr(sql_service, "START_SECONDS", 60.0)
    try:
        for number in range(3):
            assert process.ask(f"SELECT {number} AS n", [])["rows"] == [[number]]
    finally:
        process.close()


@pytest.mark.slow
def test_a_question_that_is_left_alone_ends_by_itself(root: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "consumers.servers.page.sql_child", str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps({"sql": ENDLESS, "rows_max": 1, "seconds": 0.1}).encode() + b"\n")
    child.stdin.close()
    assert child.wait(60) == 1


@pytest.mark.slow
def test_too_much_memory_or_too_long_an_answer_is_refused(root: Path) -> None:
    process = SqlProcess(root, SqlSettings(seconds=60, answer_bytes_max=100_000))
    try:
        wide = process.ask("SELECT * FROM range(100000000) a, range(100000000) b", [])
        assert "of memory; ask for less" in wide["error"]
        much = "SELECT list(a.range ORDER BY hash(a.range)) FROM range(200000000) a"
        try:
            assert "memory" in process.ask(much, [])["error"].lower()
        except Failed as failure:
            assert "ended" in str(failure)  # noqa: PT017 - the process may end for it
        with pytest.raises(Failed, match="100000 bytes"):
            process.ask("SELECT repeat('x', 1000000)", [])
        # The next one gets a new process.
        assert process.ask("SELECT 1", [])["rows"] == [[1]]
    finally:
        process.close()


@pytest.mark.slow
def test_the_process_knows_no_secrets(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITLOG_TOKEN", "hunter2")
    process = SqlProcess(root, SqlSettings(seconds=60))
    try:
        process.ask("SELECT 1", [])
        environment = Path(f"/proc/{process.pid}/environ")
        if environment.exists():
            assert b"hunter2" not in environment.read_bytes()
            assert b"hunter2" in os.fsencode(os.environ["COMMITLOG_TOKEN"])
    finally:
        process.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not JSON"),
        (b"[" * 100_000, 413, "bytes"),
        (b"[]", 400, "sql is missing"),
        ({"sql": 7}, 400, "sql is missing"),
        ({"sql": "SELECT $1", "parameters": [{}]}, 400, "parameters"),
        ({"sql": "SELECT $1", "parameters": "a"}, 400, "parameters"),
        ({"sql": "SELECT $1, $2", "parameters": [1]}, 400, "parameter"),
        ({"sql": "FROM nowhere"}, 400, "nowhere"),
    ],
)
def test_bad_input_says_what_is_wrong(uri: str, body: Any, status: int, said: str) -> None:
    found, answer = ask(uri, body)
    assert found == status, answer
    assert said in answer["error"]


@pytest.mark.slow
def test_a_busy_service_says_so(root: Path) -> None:
    service = SqlService(root, SqlSettings(processes=1, wait_seconds=0.05, seconds=2))
    began = threading.Event()

    def hold() -> None:
        began.set()
        assert "within 2 s" in service.answer(ENDLESS, [])["error"]

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert began.wait(120)
        with serving_routes(service.routes()) as uri:
            while (found := ask(uri, {"sql": "SELECT 1"}))[0] == 200:
                assert holder.is_alive()  # its question has not begun yet
            assert found[0] == 503
            assert "busy with other queries" in found[1]["error"]
    finally:
        holder.join(60)
        service.close()
