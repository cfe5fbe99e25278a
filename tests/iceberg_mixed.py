"""All Iceberg clients at once: `python -m tests.iceberg_mixed`.

Writers of pyiceberg, Spark's streams, writers of iceberg-go and DuckDB append to the same two
tables, iceberg-go and DuckDB to both by one commit, each without a second try of its own. Then
every row is to be there once, every snapshot to be readable, and `verify` to find nothing.
iceberg-go 0.7 doesn't read data files of DuckDB 1.5.5, so it reads only a table of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from consumers.broker.java import find_java
from infra import iceberg_clients, oldest_spark
from tests.child import ended
from tests.integration.test_up import run, service

_SPACE, _PAIR = "shared", ("left", "right")
_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
_HERE = Path(__file__).parent / "conformance"
_ONE_TRY = {"commit.retry.num-retries": "0"}
_PYTHON, _DUCK = 100_000, 500_000


def _pyiceberg(uri: str, writer: int, turns: int, failed: list[str]) -> None:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(f"writer-{writer}", type="rest", uri=uri)
    tables = [catalog.load_table(f"{_SPACE}.{name}") for name in _PAIR]
    for turn in range(turns):
        number = _PYTHON + 1_000 * writer + turn
        try:
            tables[turn % 2].append(pa.table({"id": [number], "name": ["python"]}, _SCHEMA))
        except Exception as error:
            failed.append(f"pyiceberg {writer}, {turn}: {error!r}")


def _duckdb(uri: str, statements: Sequence[str]) -> list[list[list[Any]]]:
    command = [
        str(iceberg_clients.duckdb_python()),
        str(_HERE / "iceberg_duckdb_child.py"),
        uri,
    ]
    done = ended(command, input=json.dumps(statements))
    if done.returncode:
        raise RuntimeError(done.stderr[-2_000:])
    found: list[list[list[Any]]] = json.loads(done.stdout)
    return found


def _by_duckdb(uri: str, turns: int, failed: list[str]) -> None:
    for turn in range(turns):
        row = f"({_DUCK + turn}, 'duck')"
        into = [f"INSERT INTO log.{_SPACE}.{name} VALUES {row}" for name in _PAIR]
        try:
            _duckdb(uri, ["BEGIN", *into, "COMMIT"])
        except RuntimeError as error:
            failed.append(f"duckdb {turn}: {error}")


def _expected(given: argparse.Namespace, table: int) -> list[int]:
    turns = given.turns
    return sorted(
        [
            *range(given.go * turns),
            *(
                _PYTHON + 1_000 * w + t
                for w in range(given.pyiceberg)
                for t in range(table, turns, 2)
            ),
            *(_DUCK + t for t in range(turns)),
            *(
                1_000_000 + 1_000 * s + t
                for s in range(table, given.spark, 2)
                for t in range(turns)
            ),
        ]
    )


def _write(uri: str, folder: Path, given: argparse.Namespace) -> tuple[list[str], Any]:
    """Let all of them write at once; return what failed, and Spark, which waits to read."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("mixed", type="rest", uri=uri)
    catalog.create_namespace(_SPACE)
    for name in _PAIR:
        catalog.create_table(f"{_SPACE}.{name}", _SCHEMA, properties=_ONE_TRY)
    oldest_spark.fetch()
    go = iceberg_clients.find_go()
    if go is None:
        raise SystemExit(iceberg_clients.NO_GO)
    program, failed = str(iceberg_clients.go_program(go)), list[str]()
    arguments = [uri, oldest_spark.jars(oldest_spark.ICEBERG), str(folder), _SPACE, ",".join(_PAIR)]
    java = find_java().path.resolve().parents[1]
    spark = subprocess.Popen(
        [
            str(oldest_spark.python()),
            str(_HERE / "iceberg_streams_child.py"),
            *arguments,
            str(given.spark),
            str(given.turns),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(folder / "spark.stderr").open("w"),
        text=True,
        env={"JAVA_HOME": str(java), "PATH": "/usr/bin:/bin"},
    )

    def by_go() -> None:
        command = [program, uri, _SPACE, str(given.go), str(given.turns)]
        done = ended(command)
        if done.returncode:
            failed.append(f"iceberg-go: {done.stderr[-2_000:]}")
        else:
            failed.extend(json.loads(done.stdout)["failed"])

    writers = [
        threading.Thread(target=by_go),
        threading.Thread(target=_by_duckdb, args=(uri, given.turns, failed)),
        *(
            threading.Thread(target=_pyiceberg, args=(uri, number, given.turns, failed))
            for number in range(given.pyiceberg)
        ),
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert spark.stdout is not None
    if spark.stdout.readline().strip() != "written":
        failed.append(f"spark: {(folder / 'spark.stderr').read_text()[-2_000:]}")
    return failed, spark


def _read(uri: str, spark: Any, given: argparse.Namespace) -> int:
    """Read every snapshot by every client that can; return how many there are."""
    from pyiceberg.catalog import load_catalog

    print("all have written; reading every snapshot", flush=True)
    by_spark = json.loads(spark.communicate("read\n")[0])
    count = 0
    for number, name in enumerate(_PAIR):
        table = load_catalog("read", type="rest", uri=uri).load_table(f"{_SPACE}.{name}")
        rows = {s.snapshot_id: int(s.summary["total-records"]) for s in table.snapshots()}  # type: ignore[index, arg-type]
        place = f"log.{_SPACE}.{name}"
        asked = [f"SELECT count(*) FROM {place} AT (VERSION => {one})" for one in rows]
        duck = _duckdb(uri, [*asked, f"SELECT id FROM {place} ORDER BY id"])
        expected = _expected(given, number)
        assert [row[0] for row in duck[-1]] == expected
        assert sorted(table.scan().to_arrow().column("id").to_pylist()) == expected
        assert [answer[0][0] for answer in duck[:-1]] == list(rows.values())
        assert dict(by_spark[name]) == rows
        for one, total in rows.items():
            assert table.scan(snapshot_id=one).to_arrow().num_rows == total
        count += len(rows)
    return count


def main() -> int:
    """Write, read, verify; print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.iceberg_mixed")
    parser.add_argument("--pyiceberg", type=int, default=32, help="writers of one table at a time")
    parser.add_argument("--spark", type=int, default=8, help="streams")
    parser.add_argument("--go", type=int, default=8, help="writers of two tables at once")
    parser.add_argument("--turns", type=int, default=4, help="commits of each, and of DuckDB")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, service(Path(name) / "root") as up:
        uri, began = f"http://127.0.0.1:{up.port}", time.monotonic()
        failed, spark = _write(uri, Path(name), given)
        seconds = time.monotonic() - began
        print(f"{len(failed)} appends failed", *failed[:5], sep="\n", flush=True)
        snapshots = _read(uri, spark, given)
        verified = run("verify", "--root", str(up.root))
    commits = given.turns * (given.pyiceberg + given.spark + given.go + 1)
    print(f"{commits} commits in {seconds:.0f} s; {snapshots} snapshots, read by all that can")
    print(verified.stdout.strip().splitlines()[-1] if verified.stdout else verified.stderr)
    return 1 if failed or verified.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
