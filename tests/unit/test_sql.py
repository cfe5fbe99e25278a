"""Tables at any version and their history, asked in one query."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog.client.history.index_file import SETTINGS
from commitlog.client.history.sql import run_sql
from commitlog.errors import InvalidRequest, NoSuchTable, NoSuchVersion, Unavailable
from consumers.views.version_index import VersionIndex
from consumers.views.version_index.rows import no_recordings
from tests.child import ended
from tests.fakes.log_stream import PartitionLog, batches
from tests.unit.test_version_index_store import position_after

Open = Callable[[str, int | None], lance.LanceDataset]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for name in ("nyc$flights", "nyc$planes"):
        path = str(folder / name)
        lance.write_dataset(pa.table({"id": [1, 2], "name": ["a", "b"]}), path)
        lance.write_dataset(pa.table({"id": [3], "name": ["c"]}), path, mode="append")
    return folder


@pytest.fixture
def open_table(folder: Path) -> Open:
    def opened(table: str, version: int | None) -> lance.LanceDataset:
        if not (folder / table).exists():
            raise NoSuchTable(f"the log knows no table {table}.", hint=NoSuchTable.ADVICE)
        return lance.dataset(folder / table, version=version)

    return opened


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("index")
    log = PartitionLog()
    log.grow(200)
    with VersionIndex(root) as index:
        for batch in batches(log.decided(), 100):
            index.apply(batch, position_after(batch), recordings=no_recordings)
        index.publish()
    return root / "index.duckdb"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("SELECT id FROM nyc$flights ORDER BY id", [1, 2, 3]),
        ('SELECT id FROM "nyc$flights" WHERE id > 1 ORDER BY id', [2, 3]),
        ("SELECT id FROM nyc.flights AT (VERSION => 1) ORDER BY id", [1, 2]),
        ("SELECT nyc$flights.id FROM nyc$flights ORDER BY ALL", [1, 2, 3]),
        ("SELECT max(f.id) FROM nyc$flights f AT (VERSION => 2 - 1)", [2]),
        ("WITH nope AS (SELECT * FROM nyc$flights) SELECT max(id) FROM nope", [3]),
        (
            "SELECT id FROM nyc$flights WHERE id NOT IN"
            " (SELECT id FROM nyc$flights AT (VERSION => 1))",
            [3],
        ),
        ("SELECT a.id FROM nyc$flights a JOIN nyc$planes b USING (name) ORDER BY 1", [1, 2, 3]),
        ("SELECT id FROM nyc$flights UNION ALL SELECT 9 ORDER BY 1", [1, 2, 3, 9]),
    ],
)
def test_tables_are_read_at_the_version_asked_for(
    open_table: Open, query: str, ids: list[int]
) -> None:
    assert run_sql(query, open_table).column(0).to_pylist() == ids


@pytest.mark.slow
def test_data_and_history_are_joined(open_table: Open, index: Path) -> None:
    found = run_sql(
        "SELECT h.version, h.operation, (SELECT count(*) FROM nyc$flights) AS n"
        " FROM history('ns0$t1', n := 3) h WHERE h.status = 'committed'",
        open_table,
        index=index,
    )
    assert set(found.column("n").to_pylist()) == {3}
    assert run_sql("FROM writers", open_table, index=index).num_rows > 1


@pytest.mark.slow
def test_a_time_is_looked_up_in_the_index(open_table: Open, index: Path) -> None:
    asked: list[tuple[str, int | None]] = []

    def opened(table: str, version: int | None) -> lance.LanceDataset:
        asked.append((table, version))
        return open_table("nyc$flights", None)

    made = run_sql("FROM table_at('ns0$t0', 4)", open_table, index=index).to_pylist()[0]
    moment: datetime = made["time"]
    run_sql(f"FROM ns0$t0 AT (TIMESTAMP => '{moment}')", opened, index=index)
    assert asked == [("ns0$t0", 4)]
    with pytest.raises(NoSuchVersion, match="no version yet at 2001"):
        run_sql("FROM ns0$t0 AT (TIMESTAMP => '2001-01-01')", opened, index=index)
    with pytest.raises(NoSuchVersion, match="needs the version index"):
        run_sql("FROM ns0$t0 AT (TIMESTAMP => '2001-01-01')", opened)
    with pytest.raises(InvalidRequest, match="3001-01-01 00:00:00 is in the future"):
        run_sql("FROM ns0$t0 AT (TIMESTAMP => '3001-01-01')", opened, index=index)


@pytest.mark.slow
@pytest.mark.parametrize(
    "query", ["FROM heads_at_time('{}')", "FROM ns0$t0 AT (TIMESTAMP => '{}')"]
)
def test_nothing_up_to_the_newest_entry_is_in_the_future(
    open_table: Open, tmp_path: Path, query: str
) -> None:
    """The clock of its leader may be ahead of the reader's."""
    log = PartitionLog()
    log.grow(20)
    newest = datetime(2999, 11, 27, tzinfo=UTC)
    with VersionIndex(tmp_path) as index:
        [batch] = batches(log.decided(), 100)
        position = replace(position_after(batch), changed_at_ms=int(newest.timestamp()) * 1000)
        index.apply(batch, position, recordings=no_recordings)
        index.publish()

    def ask(moment: datetime) -> pa.Table:
        def opened(table: str, version: int | None) -> lance.LanceDataset:
            return open_table("nyc$flights", None)

        return run_sql(query.format(moment), opened, index=tmp_path / "index.duckdb")

    assert ask(newest).num_rows
    with pytest.raises(InvalidRequest, match="is in the future"):
        ask(newest + timedelta(milliseconds=1))


def test_only_what_is_needed_is_read_from_lance(
    open_table: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, str]] = []
    scanner: Callable[..., Any] = lance.LanceDataset.scanner

    def spied(dataset: lance.LanceDataset, *arguments: Any, **options: Any) -> Any:
        seen.append((options.get("columns"), str(options.get("filter"))))
        return scanner(dataset, *arguments, **options)

    monkeypatch.setattr(lance.LanceDataset, "scanner", spied)
    found = run_sql("SELECT name FROM nyc$flights WHERE id = 3", open_table)
    assert found.to_pylist() == [{"name": "c"}]
    ((columns, condition),) = seen
    assert list(columns) == ["name"]
    assert "id" in condition
    assert "3" in condition
    seen.clear()
    run_sql("SELECT max(id) FROM nyc$flights", open_table)
    assert [columns for columns, _ in seen] == [["id"]]


def test_parameters_are_bound(open_table: Open) -> None:
    found = run_sql("SELECT name FROM nyc$flights WHERE id = ?", open_table, parameters=[2])
    assert found.to_pylist() == [{"name": "b"}]


@pytest.mark.parametrize(
    ("query", "error", "words"),
    [
        ("SELECT 1; SELECT 2", InvalidRequest, "2 statements"),
        ("INSERT INTO nyc$flights VALUES (1)", InvalidRequest, "SELECT"),
        ("DROP TABLE nyc$flights", InvalidRequest, "SELECT"),
        ("SELEC", InvalidRequest, "syntax error"),
        ("SELECT nope FROM nyc$flights", InvalidRequest, "nope"),
        ("FROM nyc$trains", NoSuchTable, "trains"),
        ("FROM nyc$flights AT (VERSION => 'new')", NoSuchVersion, "'new' is not a version"),
    ],
)
def test_what_cannot_be_asked_is_told(
    open_table: Open, query: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run_sql(query, open_table)


def test_a_misspelt_view_of_the_index_is_suggested(open_table: Open, index: Path) -> None:
    with pytest.raises(NoSuchTable) as refused:
        run_sql("FROM transaction", open_table, index=index)
    said = "the log knows no table transaction. Did you mean transactions?"
    assert str(refused.value) == said
    with pytest.raises(NoSuchTable, match="Create it first"):
        run_sql("FROM nyc$trains", open_table, index=index)


def test_an_index_that_is_not_there_is_named(open_table: Open, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no version index exists yet"):
        run_sql("SELECT 1", open_table, index=tmp_path / "index.duckdb")
    (tmp_path / "index.duckdb").write_bytes(b"x" * 5000)
    with pytest.raises(Unavailable, match="cannot be opened"):
        run_sql("SELECT 1", open_table, index=tmp_path / "index.duckdb")


def test_a_query_that_memory_does_not_suffice_for_is_not_called_wrong(
    open_table: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same one succeeds where there is more of it."""
    for name, value in (("memory_limit", "30MB"), ("temp_directory", "")):
        monkeypatch.setitem(SETTINGS, name, value)
    with pytest.raises(Unavailable, match=r"needs more memory.*ask for less") as raised:
        run_sql("SELECT list(i) FROM range(30000000) t(i)", open_table)
    assert "\n" not in str(raised.value)


DEADLINE_SECONDS = 100
LONG = "SELECT count(*) FROM range(100000000000) a, range(1000) b"


@pytest.mark.slow
@pytest.mark.parametrize("query", [LONG, "SELECT sum(range) FROM range(10000000000000)"])
def test_ctrl_c_during_a_query_is_ctrl_c(query: str) -> None:
    # The query surely runs once it has used a fifth of a second. A child that doesn't end is ended.
    code = f"""
import faulthandler, os, signal, threading, time
faulthandler.dump_traceback_later({DEADLINE_SECONDS}, exit=True)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from commitlog.client.history.sql import run_sql
run_sql("SELECT 1", None)
def interrupt(began=time.process_time()):
    while time.process_time() < began + 0.2:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    run_sql({query!r}, None)
except KeyboardInterrupt:
    print("interrupted")
"""
    ran = ended([sys.executable, "-c", code], timeout=2 * DEADLINE_SECONDS)
    assert (ran.stdout, ran.stderr) == ("interrupted\n", "")
