"""Answers SQL over the published index, as a process that can do nothing else.

It reads one JSON object per line and answers each with one. Three walls stand one behind the other:
a statement must parse as one SELECT without anything that changes or reads files, DuckDB is locked
to the index and its segments, and the kernel takes writing and connecting away from the process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import duckdb

from commitlog.client.history.index_file import SETTINGS, attach, quoted
from commitlog.client.history.sql import nodes_of, why_refused
from consumers.servers.page import sandbox
from consumers.views.index_rows import jsonable

MEMORY_LIMIT = "512MB"
THREADS = 1
LOCKED: dict[str, str | bool | int | float | list[str]] = {
    **SETTINGS,
    "allow_community_extensions": False,
    "temp_directory": "",
    "memory_limit": MEMORY_LIMIT,
    "threads": THREADS,
}
SELECTING = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
GENERATING = {"generate_series", "range", "repeat", "repeat_row", "unnest"}
"""Table functions that look at nothing. Others may run SQL of their own, or read files."""
_own: set[str] = set()
"""The index's own, once one was asked for: DuckDB lists all functions to tell, for 10 ms of CPU."""

NO_ZONES = "times with a zone are not supported here; convert them: now() AT TIME ZONE 'UTC'"


class StatementRefused(Exception):
    """The statement is not one that is answered here."""


def main() -> None:
    """Answer until the input ends."""
    root = Path(sys.argv[1])
    sandbox.limit_resources()
    # What is imported on first use is imported now.
    with duckdb.connect(":memory:", config=LOCKED) as connection:
        connection.execute("SELECT json_serialize_sql('SELECT 1'), now()::TIMESTAMP").fetchall()
    is_confined = sandbox.allow_reading_only([str(root)])
    _say({"ready": True, "is_confined": is_confined})
    for line in sys.stdin:
        asked = json.loads(line)
        # The parent kills this process at the deadline, unless it has ended by then.
        alarm = threading.Timer(asked["seconds"], os._exit, [1])
        alarm.daemon = True
        alarm.start()
        _say(answer(root, asked))
        alarm.cancel()


def _say(body: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(body, separators=(",", ":"), default=str) + "\n")
    sys.stdout.flush()


def answer(root: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Answer one question; a wrong one gets an `error`."""
    try:
        with open_locked(root) as connection:
            check(connection, asked["sql"])
            found = connection.execute(asked["sql"], asked.get("parameters") or None)
            described = found.description or []
            rows = found.fetchmany(asked["rows_max"] + 1)
    except duckdb.OutOfMemoryException:
        return {"error": f"the query needs more than {MEMORY_LIMIT} of memory; ask for less"}
    except duckdb.Error as error:
        return {"error": NO_ZONES if "pytz" in str(error) else str(error)}
    except (OverflowError, ValueError) as error:
        return {
            "error": f"a value of the answer cannot be written as JSON: {error}; cast it to VARCHAR"
        }
    except (StatementRefused, MemoryError) as error:
        return {"error": str(error) or "the query needs more memory than the machine has free"}
    return {
        "columns": [str(column[0]) for column in described],
        "types": [str(column[1]) for column in described],
        "rows": [[jsonable(value) for value in row] for row in rows[: asked["rows_max"]]],
        "is_cut": len(rows) > asked["rows_max"],
    }


def open_locked(root: Path) -> duckdb.DuckDBPyConnection:
    """Open the published index; the connection reaches it and its segments, and stays so."""
    public = root / "index.duckdb"
    connection = duckdb.connect(":memory:", config=LOCKED)
    try:
        attach(connection, public)
        segments = connection.execute("SELECT path FROM segments").fetchall()
        paths = [public, *(root / "index" / str(path) for (path,) in segments)]
        allowed = ", ".join(quoted(str(path)) for path in paths)
        connection.execute(f"SET allowed_paths = [{allowed}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        return connection
    except BaseException:
        connection.close()
        raise


def check(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Refuse anything but one SELECT over the index's own relations, views and macros."""
    found = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [sql]).fetchall()
    tree = json.loads(found[0][0])
    if tree.get("error"):
        raise StatementRefused(why_refused(tree))
    if len(tree["statements"]) != 1:
        raise StatementRefused(f"there are {len(tree['statements'])} statements; write one SELECT")
    for node in nodes_of(tree):
        kind = str(node.get("type", ""))
        if kind.endswith("_NODE") and kind not in SELECTING:
            raise StatementRefused(
                f"only SELECT is answered, and {kind.removesuffix('_NODE')} is more"
            )
        if kind == "TABLE_FUNCTION":
            name = str(node.get("function", {}).get("function_name", "")).lower()
            if name not in GENERATING and not _is_own(connection, name):
                raise StatementRefused(
                    f"the table function {name!r} is not answered here; see FROM help"
                )


def _is_own(connection: duckdb.DuckDBPyConnection, name: str) -> bool:
    if name not in _own:
        macros = connection.execute(
            "SELECT function_name FROM duckdb_functions()"
            " WHERE database_name = 'commitlog' AND function_type = 'table_macro'"
        ).fetchall()
        _own.update(found for (found,) in macros)
    return name in _own


if __name__ == "__main__":
    main()
