"""What readers ask the version index: rows for the command line, the page and scripts.

`connect` opens the published file read-only; it may be opened at any time, by any number of
programs, while commits run. Each connection sees the snapshot that was published when it was
opened. The functions open one, ask, and close it; their rows are dicts with stable keys and
JSON-able values (times as ISO 8601 in UTC, hashes in hex), in the order in which people read them.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from commitlog.adapters import disk
from commitlog.adapters.places import bound
from commitlog.client.history.index_file import SETTINGS, attach, is_about_segments, rebuild
from commitlog.errors import (
    CommitLogError,
    InvalidRequest,
    NoSuchTable,
    NoSuchVersion,
    Unavailable,
    UnsupportedFormat,
)
from consumers.views.index_rows import SCHEMA_VERSION, ByPlace, Value, jsonable

Row = dict[str, Value]
Found = TypeVar("Found")


class Rows(list[Row]):
    """The rows of an answer, and the names of its columns, which tell it where no row does."""

    columns: Sequence[str] = ()


Ask = Callable[[str, Sequence[object]], Rows]

NEAR_NAMES_MAX = 3
PLACES = ("location", "metadata_location")
"""Columns that name a place."""
ATTEMPTS = 2
"""A segment may be merged away between opening a snapshot and reading it, after its grace."""
_CHANGED = "FROM properties WHERE transaction_id = ? AND key IS NOT NULL ORDER BY ordinal, key"


class BrokenIndex(Unavailable):
    """The published file cannot be read: restart its keeper, which publishes a good one."""


class QueryFailed(CommitLogError):
    """The query is wrong; the message is DuckDB's."""


_REFUSED = (duckdb.ProgrammingError, duckdb.DataError, duckdb.NotSupportedError)


def connect(root: str | os.PathLike[str]) -> duckdb.DuckDBPyConnection:
    """Open the published index under `root`, read-only, with its macros ready to be called.

    Raises Unavailable if there is none, UnsupportedFormat if another program made it, and
    BrokenIndex if it cannot be read.
    """
    public = Path(root).absolute() / "index.duckdb"
    if not public.is_file():
        where = f"--root {shlex.quote(str(root))}"
        raise Unavailable(
            f"no version index exists yet at {public}; `commitlog up {where}` keeps one, and so"
            f" does `commitlog index {where}`"
        )
    # Attached to a database of its own: two connections to one path in a process would share the
    # snapshot of the first.
    connection = duckdb.connect(":memory:", config=SETTINGS)
    try:
        attach(connection, public)
        _check_format(connection, public)
        return connection
    except duckdb.Error as error:
        connection.close()
        raise _broken(public, error) from error
    except BaseException:
        connection.close()
        raise


def _check_format(connection: duckdb.DuckDBPyConnection, public: Path) -> None:
    rows = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchall()
    found = rows[0][0] if rows else "none"
    if found != str(SCHEMA_VERSION):
        raise UnsupportedFormat(
            f"the version index at {public} has format {found}, this program reads "
            f"{SCHEMA_VERSION}. If it is older, start `commitlog index` (or `up`) of this program: "
            "it builds the index anew, and shows it when it has caught up; if it is newer, upgrade"
        )


def _broken(public: Path, error: Exception) -> BrokenIndex:
    said = str(error).strip().split("\n")[0]
    if isinstance(error, duckdb.OutOfMemoryException):
        advice = "Ask for less, or give this process more memory"
    elif "Could not set lock" in said:
        advice = "Another process writes to it: end that, and let others open it read-only"
    elif not (advice := disk.advice_for(said)):
        advice = rebuild(public)
    return BrokenIndex(f"the version index at {public} cannot be read: {said}. {advice}")


def query(
    root: str | os.PathLike[str], sql: str, parameters: Sequence[object] | None = None
) -> Rows:
    """Run one query on the newest snapshot and return its rows."""
    return read(root, lambda run: run(sql, parameters or ()))


def read(root: str | os.PathLike[str], work: Callable[[Ask], Found]) -> Found:
    """Run `work` with a function that asks; all its questions see one snapshot."""
    for attempt in range(ATTEMPTS):
        with connect(root) as connection:
            try:
                return work(functools.partial(ask, connection))
            except duckdb.Error as error:
                public = Path(root).absolute() / "index.duckdb"
                if isinstance(error, _REFUSED) and not is_about_segments(public, error):
                    raise QueryFailed(str(error).strip()) from error
                if attempt == ATTEMPTS - 1:
                    raise _broken(public, error) from error
    raise AssertionError("unreachable")


def ask(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[object]) -> Rows:
    """Run one query on an open connection and return its rows.

    The index has places as the log records them; the rows have them as they are bound.
    """
    result = connection.execute(sql, list(parameters))
    names = [str(column[0]) for column in result.description or ()]
    rows = Rows(
        {name: _shown(name, value) for name, value in zip(names, row, strict=True)}
        for row in result.fetchall()
    )
    rows.columns = names
    return rows


def _shown(name: str, value: Any) -> Value:
    if name in PLACES and value:
        return bound(str(value))
    return jsonable(value)


def history(
    root: str | os.PathLike[str], table: str, *, limit: int = 50, refused: bool = True
) -> Rows:
    """Return what happened to a table, newest first: versions and refused attempts.

    Raises NoSuchTable, naming tables with a similar name.
    """
    parameters = [table, _positive(limit), refused]
    return _of_table(root, table, "FROM history(?, n := ?, refused := ?)", parameters)


def timeline(
    root: str | os.PathLike[str], *, limit: int = 50, after: tuple[int, int] | None = None
) -> Rows:
    """Return what happened to all tables, newest first: one row per transaction.

    With `after` = (partition, sequence): what came after it in that partition, oldest first.
    """
    if after is None:
        return query(root, "FROM timeline LIMIT ?", [_positive(limit)])
    return query(
        root,
        "FROM timeline WHERE partition = ? AND sequence > ? ORDER BY sequence LIMIT ?",
        [*after, _positive(limit)],
    )


def conflicts(root: str | os.PathLike[str], table: str | None = None, *, limit: int = 50) -> Rows:
    """Return who lost to whom, newest first, on one table or on all.

    Raises NoSuchTable, naming tables with a similar name.
    """
    if table is None:
        return query(root, "FROM latest_conflicts(n := ?)", [_positive(limit)])
    return _of_table(root, table, "FROM conflicts_of(?, n := ?)", [table, _positive(limit)])


def transaction(root: str | os.PathLike[str], transaction_id: str) -> Rows:
    """Return what became of an id: see `attempts`."""
    return read(root, lambda run: attempts(run, transaction_id))


def attempts(run: Ask, transaction_id: str) -> Rows:
    """Return what became of an id, one row per attempt or repetition, oldest first.

    Each row has `details`: its operations' rows, `conflict`: its row in `conflicts` or None,
    `failed_requirements` of Iceberg that it met, and `changed`: the properties that it set or
    removed. Empty if the index knows nothing of the id.
    """
    rows = run("FROM transaction_of(?)", [transaction_id])
    if not rows:
        return rows
    details = ByPlace(run("FROM operations_of(?)", [transaction_id]))
    losses = ByPlace(run("FROM conflicts WHERE transaction_id = ?", [transaction_id]))
    failed = ByPlace(run("FROM failed_requirements WHERE transaction_id = ?", [transaction_id]))
    changed = ByPlace(run(_CHANGED, [transaction_id]))
    for row in rows:
        row["failed_requirements"] = failed.of(row)
        if isinstance(row["properties"], str):
            row["properties"] = json.loads(row["properties"])
        row["details"], row["changed"] = details.of(row), changed.of(row)
        row["conflict"] = next(iter(losses.of(row)), None)
    return rows


def table_at(root: str | os.PathLike[str], table: str, version: int) -> Row:
    """Return what made one version of a table.

    Raises NoSuchTable or NoSuchVersion, naming what exists nearby.
    """
    return read(root, lambda run: _table_at(run, table, version))


def _table_at(run: Ask, table: str, version: int) -> Row:
    rows = run("FROM table_at(?, ?)", [table, version])
    if rows:
        return rows[0]
    _check_table(run, table)
    raise NoSuchVersion(
        f"table {table!r} has no version {version} in the log; it has {_span(run, table)}"
    )


def table_at_tag(root: str | os.PathLike[str], table: str, tag: str) -> Row:
    """Return what made the version, or Iceberg's snapshot, that a tag of a table names now.

    Iceberg's tags are in the log; Lance keeps its own beside the table, where they are read.
    Raises NoSuchTable or NoSuchVersion, naming what exists nearby, and OSError.
    """
    return read(root, lambda run: _table_at_tag(run, table, tag))


def _table_at_tag(run: Ask, table: str, tag: str) -> Row:
    rows = run("FROM table_at_tag(?, ?)", [table, tag])
    if rows:
        return rows[0]
    _check_table(run, table)
    lance = "ended_by IS NULL AND format = 'lance' AND table_name = ?"
    found = run(f"SELECT location FROM tables WHERE {lance}", [table])
    from commitlog.adapters.lance_refs import lance_tags  # most questions need no files of Lance

    tags = lance_tags(str(found[0]["location"])) if found else {}
    if tag not in tags:
        near = difflib.get_close_matches(tag, tags, NEAR_NAMES_MAX) or sorted(tags)[:NEAR_NAMES_MAX]
        there = f"; it has {', '.join(near)}" if near else ""
        raise NoSuchVersion(f"table {table!r} has no tag {tag!r}{there}")
    return {**_table_at(run, table, tags[tag]), "name": tag, "kind": "tag"}


def _span(run: Ask, table: str) -> str:
    found = run(
        "SELECT min(version) AS first, max(version) AS last, min(time) AS since, max(time) AS until"
        " FROM versions WHERE incarnation = (SELECT incarnation FROM life_of(?))",
        [table],
    )[0]
    if found["first"] is None:
        return "no version"
    return "versions {first} to {last}, made from {since} to {until}".format(**found)


def diff(root: str | os.PathLike[str], table: str, before: int, after: int) -> Rows:
    """Return how a table differs between two versions: a row per fragment, with who did it.

    Raises NoSuchTable or NoSuchVersion, naming what exists nearby, InvalidRequest for Iceberg.
    """

    def work(run: Ask) -> Rows:
        life = _check_table(run, table, fragments=True)
        for version in (before, after):
            if _table_at(run, table, version)["incarnation"] != life:
                raise NoSuchVersion(
                    f"version {version} is of an earlier table {table!r}; this one has"
                    f" {_span(run, table)}"
                )
        return run("FROM diff(?, ?, ?)", [table, before, after])

    return read(root, work)


def blame(root: str | os.PathLike[str], table: str, what: str | int | None = None) -> Rows:
    """Return who made each fragment that exists and who changed it last, by fragment.

    With `what`, a fragment's id or a data file's name: all that was done to it, oldest first.

    Raises NoSuchTable, naming tables with a similar name; NoSuchVersion if the table never had the
    fragment or file.
    """
    if what is None:
        return _of_table(root, table, "FROM blame(?)", [table], fragments=True)

    def work(run: Ask) -> Rows:
        rows = run("FROM blame_of(?, ?)", [table, str(what)])
        if rows:
            return rows
        _check_table(run, table, fragments=True)
        known = run(
            "SELECT min(fragment_id) AS first, max(fragment_id) AS last FROM fragment_changes"
            " WHERE incarnation = (SELECT incarnation FROM life_of(?))",
            [table],
        )[0]
        has = "no fragments" if known["last"] is None else f"{known['first']} to {known['last']}"
        raise NoSuchVersion(f"table {table!r} never had fragment or file {what}; it had {has}")

    return read(root, work)


def growth(root: str | os.PathLike[str], table: str, *, points: int = 100) -> Rows:
    """Return rows, fragments, files and bytes of a table at so many of its versions.

    Raises NoSuchTable, naming tables with a similar name.
    """
    return _of_table(root, table, "FROM growth(?, points := ?)", [table, _positive(points)])


def writers(root: str | os.PathLike[str]) -> Rows:
    """Return per writer what it committed, what was rebased and refused; busiest first."""
    return query(root, "FROM writers")


def status(root: str | os.PathLike[str]) -> Rows:
    """Return per partition how far the published index is."""
    return query(root, "FROM index_status")


def _of_table(
    root: str | os.PathLike[str],
    table: str,
    sql: str,
    parameters: Sequence[object],
    *,
    fragments: bool = False,
) -> Rows:
    """Run one query about a table, and say why if it has no rows."""

    def work(run: Ask) -> Rows:
        rows = run(sql, parameters)
        if not rows:
            _check_table(run, table, fragments=fragments)
        return rows

    return read(root, work)


def _check_table(run: Ask, table: str, *, fragments: bool = False) -> Value:
    """Say why nothing was found of a table: it isn't there, or hasn't what was asked for.

    Returns the incarnation that the name means, if there is nothing to say.
    """
    lives = run("SELECT incarnation, format FROM life_of(?)", [table])
    if not lives:
        from commitlog.client.commits.names import like_known  # brings the log's records in

        known = run("SELECT unnest(list_append(former_names, table_name)) AS t FROM tables", ())
        near = like_known(table, {str(row["t"]): "" for row in known})
        raise NoSuchTable(f"the version index has no table {table!r}.", hint=near)
    if fragments and lives[0]["format"] == "iceberg":
        raise InvalidRequest(
            f"{table!r} is an Iceberg table, and fragments are Lance's",
            field="table",
            value=table,
            advice=f"`commitlog history '{table}'` shows who committed what to it",
        )
    return lives[0]["incarnation"]


def _positive(limit: int) -> int:
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    return limit
