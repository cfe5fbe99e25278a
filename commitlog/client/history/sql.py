"""Queries tables of the log in SQL, at any of their versions, joined with their history.

DuckDB parses the query. Each table in it is replaced by the version that the query names, so that
DuckDB reads only the needed columns and rows from Lance. With a version index, the query can
also use its views and macros.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commitlog.client.history.index_file import (
    INDEX,
    KNOWN_UNTIL,
    SETTINGS,
    attach,
    is_about_segments,
    rebuild,
)
from commitlog.client.rows.host import Host
from commitlog.errors import (
    InvalidRequest,
    NoSuchTable,
    NoSuchVersion,
    Unavailable,
    WrongLog,
    did_you_mean,
    of_the_future,
)
from commitlog.model.table import DELIMITER

if TYPE_CHECKING:
    import duckdb
    import lance
    import pyarrow as pa

OpenTable = Callable[[str, int | None], "lance.LanceDataset"]
"""Opens (table id, version); without a version the newest one."""

_VERSION_AT = """
WITH life AS (FROM tables WHERE table_name = $1 AND ended_by IS NULL)
SELECT version FROM operations
WHERE table_name IN (SELECT unnest(list_append(former_names, table_name)) FROM life)
  AND incarnation = (SELECT incarnation FROM life)
  AND version IS NOT NULL AND time <= $2::TIMESTAMP
ORDER BY sequence DESC, ordinal DESC LIMIT 1
"""
"""Of the table that has the name: an earlier one's versions have the same numbers, other rows."""
_IS_TO_COME = f"SELECT $1::TIMESTAMP > {KNOWN_UNTIL}"
AGAIN_SECONDS = 0.1
"""How often a query that is to end is told so."""


def run_sql(
    query: str,
    open_table: OpenTable,
    *,
    index: str | os.PathLike[str] | None = None,
    parameters: Sequence[object] = (),
) -> pa.Table:
    """Run one SELECT and return its rows.

    `FROM nyc$flights`, `FROM nyc.flights` and `FROM "nyc$flights"` name a table at its newest
    version; `AT (VERSION => 7)` and, with an index, `AT (TIMESTAMP => '2026-01-31 12:00:00')` (log
    time, UTC) an older one. `index` is the path of an `index.duckdb`.

    Raises:
        InvalidRequest: the query is not one SELECT, or DuckDB refuses it; a time is in the future.
        NoSuchTable, NoSuchVersion: a table or version that it names doesn't exist.
        Unavailable: DuckDB is not installed, the index cannot be opened, or memory ran out.
    """
    duckdb = duckdb_module()
    with duckdb.connect(":memory:", config=SETTINGS) as connection:
        connection.execute("SET enable_progress_bar = false")  # it would be among the rows
        known = attach_index(connection, index) if index is not None else frozenset()
        try:
            statement = _parse(connection, query)
            _Tables(connection, open_table, known).put_into(statement)
            text = _text(connection, statement)
            # Not `execute`: its Arrow table would be a copy.
            return _interruptible(
                connection,
                lambda: connection.sql(text, params=list(parameters) or None).to_arrow_table(),
            )
        except duckdb.OutOfMemoryException as error:
            said = str(error).strip().partition("\n")[0]
            raise Unavailable(
                f"the query needs more memory than DuckDB may take here ({said}): ask for less, or"
                " give this machine or container more"
            ) from error
        except duckdb.Error as error:
            if index is not None and is_about_segments(index, error):
                said = str(error).strip().partition("\n")[0]
                raise Unavailable(f"{index} cannot be read: {said}. {rebuild(index)}") from error
            raise _refused(query, str(error)) from error


def _interruptible(connection: duckdb.DuckDBPyConnection, ask: Callable[[], pa.Table]) -> pa.Table:
    """Return what `ask` returns, and end it at a Ctrl-C.

    DuckDB looks for signals itself, but not always: a thread of its own may have the query's only
    task. What it notices it makes a RuntimeError of.
    """
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask)
        try:
            return running.result()
        finally:
            while not running.done():
                connection.interrupt()  # is forgotten if the query has yet to begin
                wait([running], AGAIN_SECONDS)


class AsksSql(Host):
    """Adds to `CommitLog` its method `sql`."""

    def sql(
        self,
        query: str,
        parameters: Sequence[object] = (),
        *,
        index: str | os.PathLike[str] | None = None,
    ) -> pa.Table:
        """Query tables at any version and, with an index's path, their history: see `run_sql`.

        ```python
        log.sql("SELECT sum(amount) FROM shop$orders AT (VERSION => 2) WHERE id < ?", [5])
        ```
        """
        self.runtime()  # which a closed client refuses
        return run_sql(query, self.open, index=index, parameters=parameters)


def duckdb_module() -> Any:
    """Import DuckDB; Unavailable if it isn't installed."""
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise Unavailable(
            "SQL and an index need duckdb: pip install 'lance-commitlog[server]', or duckdb itself"
        ) from error
    return duckdb


def _refused(query: str, message: str) -> InvalidRequest:
    first = message.strip()
    return InvalidRequest(f"the query is refused: {first}", field="query", value=query)


def attach_index(
    connection: duckdb.DuckDBPyConnection, index: str | os.PathLike[str]
) -> frozenset[str]:
    """Make the index's views and macros known by their names; return those of the views."""
    duckdb = duckdb_module()
    path = Path(index).absolute()
    if path.is_dir():
        raise InvalidRequest(
            f"index={os.fspath(index)!r} is a folder",
            field="index",
            value=os.fspath(index),
            advice=f"Give the path of a file, such as {str(path / 'index.duckdb')!r}",
        )
    if not path.is_file():
        raise Unavailable(f"no version index exists yet at {path}: `commitlog index` keeps one")
    try:
        attach(connection, path)
        rows = connection.execute(
            "SELECT view_name FROM duckdb_views() WHERE database_name = $1 UNION ALL"
            " SELECT table_name FROM duckdb_tables() WHERE database_name = $1",
            [INDEX],
        ).fetchall()
    except duckdb.Error as error:
        raise Unavailable(f"the version index at {path} cannot be opened: {error}") from error
    return frozenset(str(name) for (name,) in rows)


@contextmanager
def asking_index(index: str | os.PathLike[str], log_id: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Connect to a log's index; Unavailable if it can't be read, WrongLog if it is another's."""
    duckdb = duckdb_module()
    with duckdb.connect(":memory:", config=SETTINGS) as connection:
        try:
            attach_index(connection, index)
            found = connection.execute("SELECT value FROM meta WHERE key = 'log_id'").fetchall()
            if found != [(log_id,)]:
                raise WrongLog(
                    f"the index {os.fspath(index)} is of log"
                    f" {found[0][0] if found else 'unknown'}, and this is {log_id}: give this"
                    " log's index, or none"
                )
            yield connection
        except duckdb.Error as error:
            raise Unavailable(f"the index {index} cannot be read: {error}") from error


def _parse(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    found = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [query]).fetchall()
    tree: dict[str, Any] = json.loads(found[0][0])
    if tree.get("error"):
        raise _refused(query, why_refused(tree))
    if len(tree["statements"]) != 1:
        raise _refused(query, f"it has {len(tree['statements'])} statements; write one SELECT")
    return tree


def why_refused(tree: dict[str, Any]) -> str:
    """Return why DuckDB serializes no tree of a query, in words about the query."""
    message = str(tree.get("error_message"))
    if message.startswith("Only SELECT"):
        return "it is not a SELECT, and nothing else is allowed"
    return message


def _text(connection: duckdb.DuckDBPyConnection, tree: dict[str, Any]) -> str:
    found = connection.execute("SELECT json_deserialize_sql($1::JSON)", [json.dumps(tree)])
    return str(found.fetchall()[0][0])


class _Tables:
    """Puts opened tables in the place of their names."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, open_table: OpenTable, known: frozenset[str]
    ) -> None:
        self._connection = connection
        self._open = open_table
        self._known = known
        self._registered: dict[tuple[str, int | None], str] = {}

    def put_into(self, tree: dict[str, Any]) -> None:
        """Change the tree of a parsed query."""
        nodes = list(nodes_of(tree))
        local = {str(one["key"]) for node in nodes for one in _map_of(node)}
        for node in nodes:
            if node.get("show_type") == "SHOW_SPECIAL":
                raise InvalidRequest(
                    "SHOW lists DuckDB's tables, of which there are none",
                    field="query",
                    advice="The log's are in log.tables() and `commitlog tables`; DESCRIBE a table"
                    " for its columns",
                )
            if node.get("type") == "BASE_TABLE" and "table_name" in node:
                self._put(node, local)

    def _put(self, node: dict[str, Any], local: set[str]) -> None:
        parts = [node.get(one) for one in ("catalog_name", "schema_name", "table_name")]
        names = [str(part) for part in parts if part]
        at = node.get("at_clause")
        is_ours = len(names) == 1 or names[0] == INDEX
        if at is None and is_ours and (names[-1] in self._known or names[-1] in local):
            return
        table = DELIMITER.join(names)
        name = self._register(table, self._version(table, at) if at is not None else None)
        node["alias"] = node.get("alias") or names[-1]
        node |= {"catalog_name": "temp", "schema_name": "main", "table_name": name}
        node["at_clause"] = None
        if "qualified_name" in node:  # the same once more, since DuckDB 2
            node["qualified_name"] = {"path": ["temp", "main", name]}

    def _register(self, table: str, version: int | None) -> str:
        name = self._registered.get((table, version))
        if name is None:
            name = f"table_{len(self._registered)}"
            try:
                opened = self._open(table, version)
            except NoSuchTable as error:
                if type(error) is not NoSuchTable:
                    raise
                said, hint = str(error), "Views of the version index need index='DIR/index.duckdb'."
                if self._known:
                    hint = did_you_mean(table, self._known)
                    if not hint or NoSuchTable.ADVICE not in said:
                        raise
                    said = said.removesuffix(NoSuchTable.ADVICE).rstrip()
                raise NoSuchTable(said, hint=hint) from None
            self._connection.register(name, opened)
            self._registered[table, version] = name
        return name

    def _version(self, table: str, at: dict[str, Any]) -> int:
        if str(at.get("unit", "")).upper() == "VERSION":
            value = self._value(at["expr"])
            try:
                return int(value)
            except (TypeError, ValueError):
                raise NoSuchVersion(f"table {table!r}: {value!r} is not a version") from None
        if not self._known:
            raise NoSuchVersion(
                f"table {table!r} is queried at a time, which needs the version index: pass "
                "index='DIR/index.duckdb', or name a version"
            )
        moment = self._moment(at["expr"])
        if self._connection.execute(_IS_TO_COME, [moment]).fetchone() == (True,):
            raise of_the_future(str(moment), "query")
        rows = self._connection.execute(_VERSION_AT, [table, moment]).fetchall()
        if not rows:
            raise NoSuchVersion(f"table {table!r} had no version yet at {moment}")
        return int(rows[0][0])

    def _value(self, expression: dict[str, Any]) -> Any:
        return self._connection.execute(self._asking(expression)).fetchall()[0][0]

    def _moment(self, expression: dict[str, Any]) -> object:
        """Return a time in UTC, which it is if it names no zone."""
        with self._connection.cursor() as asking:
            # A cast would take this machine's zone, and drop the offset of a text.
            asking.execute("SET TimeZone = 'UTC'")
            query = f"FROM ({self._asking(expression)}) t(x)"
            in_utc = f"SELECT (x::TIMESTAMPTZ AT TIME ZONE 'UTC')::VARCHAR {query}"
            return asking.execute(in_utc).fetchall()[0][0]

    def _asking(self, expression: dict[str, Any]) -> str:
        tree = _parse(self._connection, "SELECT 0")
        tree["statements"][0]["node"]["select_list"] = [expression]
        return _text(self._connection, tree).rstrip(";")


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a parsed query."""
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for one in tree:
            yield from nodes_of(one)


def _map_of(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the common table expressions that a query's node defines."""
    found = node.get("cte_map")
    return list(found.get("map", [])) if isinstance(found, dict) else []
