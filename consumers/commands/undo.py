"""Commands that name positions of a log, and take back what was done since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from commitlog.model.table import format_table_id
from consumers.commands import output
from consumers.commands.options import HERE, AsJson, Where, connect_client
from consumers.runtime.config import ConfigurationError

if TYPE_CHECKING:
    from commitlog.model.records import Outcome


def tag(
    name: str = "",
    /,
    *,
    at: str = "now",
    remove: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """Name a position of the log, by a record, or list the names.

    Whoever reads at a position may give a tag for it. The same name again moves it. A tag keeps no
    files.

    Parameters
    ----------
    name
        The tag. Without one, all tags are listed.
    at
        The position: a sequence (one for each partition, with commas between), a time as
        2026-01-31T12:00:00Z or 1769860800000ms, another tag, or now.
    remove
        Remove the tag.
    """
    log = connect_client(where.load())
    try:
        if name and remove:
            log.untag(name)
        elif name:
            log.tag(name, at)
        found = log.tags()
    finally:
        log.close()
    rows = [
        {"name": one, "position": ",".join(str(place[number]) for number in sorted(place))}
        for one, place in found.items()
        if one == name or not name
    ]
    columns = (
        output.Column("tag", lambda row: row["name"]),
        output.Column("position", lambda row: row["position"], is_number=True),
    )
    output.print_listing(columns, rows, as_json=as_json, nothing="no tags")


def undrop(
    table: str,
    /,
    *,
    name: str = "",
    incarnation: str = "",
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """Bring back a table that was dropped, Lance's or Iceberg's, until its files go.

    Parameters
    ----------
    table
        The name that it had, for example shop$orders (quote the $).
    name
        Its name from now on, if the old one is taken.
    incarnation
        Which of several that had the name; without it, the one dropped last.
    """
    log = connect_client(where.load())
    try:
        outcome = log.undrop(table, name=name or None, incarnation=incarnation)
    finally:
        log.close()
    _print(outcome, as_json=as_json)


def rollback(
    *tables: str,
    to: str,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """Give tables the content that they had at a position, all by one record.

    Tables of Lance's and of Iceberg's format. Nothing is removed: each gets a newer version.

    Parameters
    ----------
    tables
        Names, for example shop$orders (quote the $).
    to
        The position: a sequence, a time as 2026-01-31T12:00:00Z, or a tag of the log.
    """
    if not tables:
        raise ConfigurationError("no table is named: commitlog rollback TABLE... --to POSITION")
    log = connect_client(where.load())
    try:
        outcome = log.restore(tables, to)
    finally:
        log.close()
    _print(outcome, as_json=as_json)


def _print(outcome: Outcome | None, *, as_json: bool) -> None:
    rows = (
        []
        if outcome is None
        else [
            {
                "table": format_table_id(result.table),
                "version": result.version or None,
                "metadata": result.metadata_location or None,
                "position": outcome.sequence,
            }
            for result in outcome.results
        ]
    )
    columns = (
        output.Column("table", lambda row: row["table"]),
        output.Column("version", lambda row: row["version"], is_number=True),
        output.Column("metadata", lambda row: row["metadata"]),
        output.Column("position", lambda row: row["position"], is_number=True),
    )
    nothing = "nothing to do: the tables have that content"
    output.print_listing(columns, rows, as_json=as_json, nothing=nothing)
