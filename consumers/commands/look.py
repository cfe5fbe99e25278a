"""Commands that look closer: what differs, who did it, SQL, pictures, and what is happening now."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from commitlog.errors import InvalidRequest
from consumers.commands import output
from consumers.commands.columns import Column, Row
from consumers.commands.options import (
    ABOVE_ZERO,
    HERE,
    JSON_FLAG,
    AsCsv,
    AsJson,
    Flag,
    Where,
    connect_client,
    from_stdin,
)
from consumers.commands.output import clock, day_and_time
from consumers.runtime.config import ConfigurationError

WHO = Column("writer", "principal", leaves=3)
FRAGMENT = Column("fragment", "fragment_id", is_number=True)
_BEYOND = "<value out of range: {}>"
_WITHOUT_END = {
    _BEYOND.format(sign + str(most)): f"{sign}infinity"
    for sign in ("", "-")
    for most in (2**31 - 1, 2**63 - 1)
}
"""How Arrow writes the dates and times before and after all others."""
TRANSACTION = Column("transaction", "transaction_id", leaves=5)


def diff(
    table: str,
    before: int,
    after: int,
    /,
    *,
    where: Where = HERE,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show the difference between two versions of a table, and who made it.

    Parameters
    ----------
    table
        The table's name, for example nyc$flights (quote the $).
    before
        The version to compare from.
    after
        The version to compare with it.
    """
    from consumers import history as index

    rows = index.diff(where.index_root(), table, before, after)
    columns = (
        FRAGMENT,
        Column("change"),
        Column("rows", lambda row: _from_to(row["rows_before"], row["rows_after"]), is_number=True),
        Column("bytes", lambda row: _from_to(row["bytes_before"], row["bytes_after"]), leaves=4),
        Column("in", "version", is_number=True),
        Column("by", "operation", leaves=2),
        WHO,
        TRANSACTION,
    )
    nothing = f"versions {before} and {after} of {table} have the same fragments"
    output.print_listing(
        columns, rows, as_json=as_json, as_csv=as_csv, nothing=nothing, names=rows.columns
    )


def blame(
    table: str,
    what: str | None = None,
    /,
    *,
    where: Where = HERE,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show who created each fragment of a table, and who changed it last.

    Parameters
    ----------
    table
        The table's name.
    what
        A fragment's id or a data file's name: shows its whole history, oldest first.
    """
    from consumers import history as index

    rows = index.blame(where.index_root(), table, what)
    if what is None:
        columns: tuple[Column, ...] = (
            FRAGMENT,
            Column("rows", is_number=True),
            Column("deleted", lambda row: row["deleted_rows"] or "", is_number=True, leaves=4),
            Column("made in", "made_in", is_number=True),
            Column("made by", lambda row: _doing(row, "made")),
            Column("changed in", "changed_in", is_number=True),
            Column("changed by", lambda row: _doing(row, "changed")),
            Column("at, UTC", lambda row: clock(row["changed_at"]), leaves=5),
        )
    else:
        columns = (
            FRAGMENT,
            Column("version", is_number=True),
            Column("time, UTC", lambda row: clock(row["time"]), leaves=4, brief=day_and_time),
            Column("change"),
            Column("operation"),
            WHO,
            Column("rows", is_number=True),
            Column("made from", "made_from", gives_way=True),
            TRANSACTION,
        )
    nothing = f"{table} has no fragment"
    output.print_listing(
        columns, rows, as_json=as_json, as_csv=as_csv, nothing=nothing, names=rows.columns
    )


def sql(
    query: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    where: Where = HERE,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Query the index's views and macros, and tables at any version, in SQL.

    FROM help lists what the index can answer. A table's rows are read through the log: SELECT *
    FROM nyc$flights AT (VERSION => 7).

    Parameters
    ----------
    query
        One SELECT; - reads it from standard input.
    """
    from commitlog.client.history.sql import run_sql
    from consumers import history as index
    from consumers.views.index_rows import jsonable

    config, root = where.load(), where.index_root()
    index.connect(root).close()  # an index that cannot be read is told as such
    text = from_stdin() if query == "-" else query
    with contextlib.ExitStack() as opened:
        # The log is reached when the first table is opened.
        log = functools.cache(lambda: opened.enter_context(connect_client(config)))
        found = run_sql(text, lambda *of: log().open(*of), index=root / "index.duckdb")
    found = found.rename_columns(_apart(found.column_names))
    # A user's time without a zone may be anywhere's.
    shown = functools.partial(jsonable, is_utc=False)
    values = [list(map(shown, _values(column))) for column in found.columns]
    rows = [dict(zip(found.column_names, row, strict=True)) for row in zip(*values, strict=True)]
    columns = [
        Column(
            name,
            is_number=_is_number(field.type),
            gives_way=len(found.column_names) > 1 and not _is_number(field.type),
        )
        for name, field in zip(found.column_names, found.schema, strict=True)
    ]
    output.print_listing(
        columns,
        rows,
        as_json=as_json,
        as_csv=as_csv,
        nothing="no rows",
        names=found.column_names,
    )


def _apart(names: Sequence[str]) -> list[str]:
    """Return names of columns with a number where an earlier column has the same one."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        taken = {*found, *names} if name in found else set()
        found.append(next(one for one in itertools.chain([name], numbered) if one not in taken))
    return found


def _values(column: Any) -> Sequence[object]:
    """Return a column of Arrow as Python's values; as text if Python's times don't reach so far.

    These end with the year 9999, and have no nanoseconds.
    """
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        pass
    zone = getattr(column.type, "tz", None)
    if zone is not None:  # with one, Arrow writes wrong years beyond 32767
        column = column.cast(f"timestamp[{column.type.unit}]")
    try:
        return [_in_iso(one, "Z" if zone else "") for one in column.cast("string").to_pylist()]
    except (NotImplementedError, ValueError) as error:  # in a list, say
        raise InvalidRequest(
            f"values of type {column.type} cannot be shown",
            field="query",
            advice="Cast them to VARCHAR",
        ) from error


def _in_iso(value: str | None, zone: str) -> str | None:
    """Return a time in the form of those that Python has."""
    if value is None:
        return None
    if value.startswith("<"):
        return _WITHOUT_END.get(value, value)
    return value.replace(" ", "T", 1) + zone


def plot(
    kind: str,
    table: str | None = None,
    /,
    *,
    where: Where = HERE,
    out: Annotated[Path, Parameter(name=["--out", "-o"])] = Path("plot.png"),
) -> None:
    """Draw commits over time, a table's growth, or who lost to whom, as PNG or SVG.

    Parameters
    ----------
    kind
        commits, growth or conflicts.
    table
        Only this table; growth needs one.
    out
        The file; its extension sets the format.
    """
    from consumers.views import plots

    root = where.index_root()
    try:
        path = plots.plot(kind, root, table, out)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise ConfigurationError(
            "`commitlog plot` needs matplotlib: pip install 'lance-commitlog[plots]'"
        ) from error
    print(path)


def top(
    *,
    where: Where = HERE,
    interval: Annotated[float, ABOVE_ZERO, Parameter(help="Seconds between updates.")] = 1.0,
    seconds: Annotated[
        float, ABOVE_ZERO, Parameter(help="Compute rates over this many seconds.")
    ] = 10.0,
    once: Flag = False,
    as_json: Annotated[bool, JSON_FLAG] = False,
) -> None:
    """Show current activity until Ctrl-C: rates, lag, busiest writers and tables.

    Parameters
    ----------
    once
        Show it once.
    as_json
        Print one JSON object per interval.
    """
    from consumers.views.activity import activity

    root = where.index_root()
    with output.screen(live=not (once or as_json)) as show:
        while True:
            row = activity(root, seconds=seconds)
            if as_json:
                print(json.dumps(row), flush=True)
            else:
                show([_rates(row), *_tables_of(row)])
            if once:
                return
            time.sleep(interval)


def _rates(row: Row) -> str:
    rates = "  ".join(
        f"{name} {row[f'{name}_per_second']:.1f}/s"
        for name in ("committed", "refused", "conflicts", "rebased", "repeated")
    )
    lag = ", ".join(f"{lag} in partition {name}" for name, lag in row["lag"].items())
    age = f"the index was current {row['behind_seconds']:,.1f} s ago"
    return f"{clock(row['time'])} UTC  {rates}  lag {lag or 'none'}; {age}"


def _tables_of(row: Row) -> list[tuple[tuple[Column, ...], list[Row]]]:
    writers = (
        Column("writer", lambda one: one["writer"] or "(unnamed)"),
        Column("committed", is_number=True),
        Column("refused", is_number=True),
        Column("last seen, UTC", lambda one: clock(one["last_seen"]), leaves=1),
    )
    tables = (
        Column("table"),
        Column("committed", is_number=True),
        Column("refused", is_number=True),
        Column("version", is_number=True),
        Column("rows added", "rows_added", is_number=True, leaves=1),
    )
    return [(writers, row["writers"]), (tables, row["tables"])]


def _from_to(before: object, after: object) -> str:
    if before == after:
        return output.text(before)
    return f"{output.text(before) or '-'} > {output.text(after) or '-'}"


def _doing(row: Row, what: str) -> str:
    who = row[f"{what}_by"]
    return f"{row[f'{what}_as']}{f' by {who}' if who else ''}"


def _is_number(kind: object) -> bool:
    return str(kind).startswith(("int", "uint", "float", "double", "decimal"))
