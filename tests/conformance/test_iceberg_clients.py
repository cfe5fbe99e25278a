"""Do DuckDB's Iceberg extension, iceberg-go and iceberg-rust work over `commitlog up` as they are?

Beside each other and beside pyiceberg, too: everybody appends to the same two tables, and nobody
has to try again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from infra import iceberg_clients
from tests.child import ended
from tests.integration.test_up import NO_ROW_PROCESSES, log_on, service

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(1800),  # iceberg-go is built first
    pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning"),
]

_CHILD = Path(__file__).with_name("iceberg_duckdb_child.py")
_SECONDS = 600
_WRITERS, _ROUNDS = 4, 3
_PAIR = ("left", "right")


@pytest.fixture(scope="module")
def uri(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("clients") / "root"
    with service(root, *log_on(broker), *NO_ROW_PROCESSES) as running:
        yield f"http://127.0.0.1:{running.port}"


@pytest.fixture(scope="module")
def go() -> Path:
    found = iceberg_clients.find_go()
    if found is None:
        pytest.skip(iceberg_clients.NO_GO)
    return iceberg_clients.go_program(found)


def _duckdb(uri: str, statements: Sequence[str]) -> list[list[list[Any]]]:
    command = [str(iceberg_clients.duckdb_python()), str(_CHILD), uri]
    found: list[list[list[Any]]] = json.loads(_output(command, json.dumps(statements)))
    return found


def _output(command: Sequence[str], text: str = "") -> str:
    done = ended(command, input=text, timeout=_SECONDS)
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


def test_duckdb_creates_changes_and_drops(uri: str) -> None:
    both = "SELECT (SELECT count(*) FROM log.duck.a), (SELECT count(*) FROM log.duck.b)"
    more = "INSERT INTO log.duck.a VALUES (33, 'x')"
    committed, left_out = "(3, 1.5, 7)", "(4, 4.5, 8)"
    asked = [
        "CREATE SCHEMA log.duck",
        "CREATE TABLE log.duck.a AS SELECT range AS id, 'n' AS name FROM range(10)",
        "CREATE TABLE log.duck.b (id BIGINT, n DOUBLE)",
        "INSERT INTO log.duck.b VALUES (1, 1.5), (2, 2.5)",
        "UPDATE log.duck.a SET name = 'z' WHERE id = 3",
        "DELETE FROM log.duck.a WHERE id = 5",
        "MERGE INTO log.duck.b AS t USING (SELECT 2 AS id, 9.0 AS n) AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET n = s.n",
        "ALTER TABLE log.duck.b ADD COLUMN more INTEGER",
        *("BEGIN", more, f"INSERT INTO log.duck.b VALUES {committed}", "COMMIT"),
        *("BEGIN", more, f"INSERT INTO log.duck.b VALUES {left_out}", "ROLLBACK"),
        both,
        "SELECT sum(id), count(*) FILTER (name = 'z') FROM log.duck.a",
        "SELECT * FROM log.duck.b ORDER BY id",
        "SELECT count(*) FROM iceberg_snapshots(log.duck.a)",
        "DROP TABLE log.duck.a",
        "DROP TABLE log.duck.b",
        "DROP SCHEMA log.duck",
    ]
    found = dict(zip(asked, _duckdb(uri, asked), strict=True))
    assert found[both] == [[10, 3]]
    assert found["SELECT sum(id), count(*) FILTER (name = 'z') FROM log.duck.a"] == [[73, 1]]
    assert found["SELECT * FROM log.duck.b ORDER BY id"] == [
        [1, 1.5, None],
        [2, 9.0, None],
        [3, 1.5, 7],
    ]
    assert found["SELECT count(*) FROM iceberg_snapshots(log.duck.a)"] == [[4]]


def test_all_clients_append_to_the_same_tables_and_nobody_fails(uri: str, go: Path) -> None:
    from pyiceberg.catalog import load_catalog

    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    catalog = load_catalog("clients", type="rest", uri=uri)
    catalog.create_namespace("shared")
    for name in _PAIR:
        one_try = {"commit.retry.num-retries": "0"}
        catalog.create_table(f"shared.{name}", schema, properties=one_try)
    count = _WRITERS * _ROUNDS

    def by_go() -> dict[str, Any]:
        arguments = [uri, "shared", str(_WRITERS), str(_ROUNDS)]
        found: dict[str, Any] = json.loads(_output([str(go), *arguments]))
        return found

    def by_duckdb() -> None:
        statements = []
        for number in range(count):
            row = f"({100 + number}, 'duck')"
            into = [f"INSERT INTO log.shared.{name} VALUES {row}" for name in _PAIR]
            statements += ["BEGIN", *into, "COMMIT"]
        _duckdb(uri, statements)

    def by_pyiceberg() -> None:
        for number in range(_ROUNDS):
            row = pa.table({"id": [200 + number], "name": ["python"]}, schema=schema)
            for name in _PAIR:
                catalog.load_table(f"shared.{name}").append(row)

    with ThreadPoolExecutor() as pool:
        others = [pool.submit(by_duckdb), pool.submit(by_pyiceberg)]
        made = pool.submit(by_go).result()
        for other in others:
            other.result()
    assert made["failed"] == []
    assert made["life"] == {
        "columns": 3,
        "old-is-there": False,
        "registered": [1, 3],
        "rows": [1, 3],
        "said": "so",
        "snapshots": 2,
    }
    # Not read by iceberg-go: its 0.7 compares the name of DuckDB's file format by case.
    expected = [*range(count), *range(100, 100 + count), *range(200, 200 + _ROUNDS)]
    reads = [f"SELECT id FROM log.shared.{name} ORDER BY id" for name in _PAIR]
    for name, read in zip(_PAIR, _duckdb(uri, reads), strict=True):
        assert [row[0] for row in read] == expected
        scanned = catalog.load_table(f"shared.{name}").scan().to_arrow()
        assert sorted(scanned.column("id").to_pylist()) == expected


def test_iceberg_rust_lives_and_appends_beside_others(uri: str) -> None:
    from pyiceberg.catalog import load_catalog

    program = iceberg_clients.built_rust_program()
    if program is None:
        pytest.skip(iceberg_clients.NO_RUST_PROGRAM)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    catalog = load_catalog("rust", type="rest", uri=uri)
    catalog.create_namespace("beside")
    one_try = {"commit.retry.num-retries": "0"}
    table = catalog.create_table("beside.rust", schema, properties=one_try)
    count = _WRITERS * _ROUNDS

    def by_rust() -> dict[str, Any]:
        arguments = [uri, "beside", "rust", str(_WRITERS), str(_ROUNDS), "0"]
        found: dict[str, Any] = json.loads(_output([str(program), *arguments]))
        return found

    with ThreadPoolExecutor() as pool:
        running = pool.submit(by_rust)
        for number in range(_ROUNDS):
            row = pa.table({"id": [200 + number], "name": ["python"]}, schema=schema)
            catalog.load_table("beside.rust").append(row)
        made = running.result()
    assert made["failed"] == []
    assert made["life"] == {
        "left": False,
        "old-is-there": False,
        "registered": [1, 2, 3, 4],
        "rows": [1, 2, 3, 4],
        "rows-then": 3,
        "said": "so",
        "snapshots": 2,
    }
    expected = [*range(count), *range(200, 200 + _ROUNDS)]
    scanned = table.refresh().scan().to_arrow()
    assert sorted(scanned.column("id").to_pylist()) == expected
    (read,) = _duckdb(uri, ["SELECT id FROM log.beside.rust ORDER BY id"])
    assert [row[0] for row in read] == expected
