"""Commands that name positions of a log, and take back what was done since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from commitlog.model.table import format_table_id
from consumers.commands import output
from consumers.commands.columns import Column
from consumers.commands.options import (
    ABOVE_ZERO,
    HERE,
    AsJson,
    Flag,
    Where,
    connect_client,
    index_of,
    user,
)
from consumers.runtime.config import ConfigurationError

if TYPE_CHECKING:
    from commitlog.model.records import Outcome


def tag(
    name: str = "",
    /,
    *,
    at: str = "now",
    remove: Flag = False,
    timeout: Annotated[float, ABOVE_ZERO] = 60.0,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """Name a position of the log, by a record, or list the names.

    Reads at a position also accept a tag. Setting an existing tag moves it. A tag keeps no files.

    Parameters
    ----------
    name
        The tag. Without one, all tags are listed.
    at
        The position: a sequence (one for each partition, with commas between), a time as
        2026-01-31T12:00:00Z or 1769860800000ms, another tag, or now.
    remove
        Remove the tag.
    timeout
        Seconds that it may take. For a time, the log is read: about 10,000 commits a second.
    """
    from commitlog.client.history.positions import sequences_text

    if not name and (remove or at != "now"):
        raise ConfigurationError("no tag is named: commitlog tag NAME")
    with connect_client(where.load(), user()) as log:
        if name and remove:
            log.untag(name, timeout=timeout)
        elif name:
            log.tag(name, at, timeout=timeout)
        found = log.tags()
    rows = [
        {"name": one, "position": sequences_text(place)}
        for one, place in found.items()
        if one == name or not name
    ]
    columns = (
        Column("tag", "name"),
        Column("position", is_number=True),
    )
    output.print_listing(columns, rows, as_json=as_json, nothing="no tags")


def undrop(
    table: str,
    /,
    *,
    name: str = "",
    incarnation: str = "",
    timeout: Annotated[float, ABOVE_ZERO] = 120.0,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """Restore a dropped table, Lance or Iceberg, while its files still exist.

    Parameters
    ----------
    table
        The table's former name, for example shop$orders (quote the $).
    name
        A new name, if the old one is taken.
    incarnation
        Which one, if several tables had the name (the one dropped last).
    timeout
        Seconds that it may take. Without ROOT/index.duckdb, about 10,000 commits a second are read.
    """
    config = where.load()
    options: dict[str, Any] = {"index": index_of(config), "timeout": timeout}
    with connect_client(config, user()) as log:
        outcome = log.undrop(table, name=name or None, incarnation=incarnation, **options)
    _print(outcome, as_json=as_json)


def rollback(
    *tables: str,
    to: str,
    timeout: Annotated[float, ABOVE_ZERO] = 120.0,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """Roll tables back to their content at a position, in one record.

    Works for Lance and Iceberg tables. Nothing is removed: each table gets a new version.

    Parameters
    ----------
    tables
        Names, for example shop$orders (quote the $).
    to
        The position: a sequence, a time as 2026-01-31T12:00:00Z, or a tag of the log.
    timeout
        Seconds that it may take. Without ROOT/index.duckdb, about 10,000 commits a second are read.
    """
    if not tables:
        raise ConfigurationError("no table is given: commitlog rollback TABLE... --to POSITION")
    config = where.load()
    options: dict[str, Any] = {"index": index_of(config), "timeout": timeout}
    with connect_client(config, user()) as log:
        outcome = log.restore(tuple(dict.fromkeys(tables)), to, **options)
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
        Column("table"),
        Column("version", is_number=True),
        Column("metadata"),
        Column("position", is_number=True),
    )
    nothing = "nothing to do: the tables already have that content"
    output.print_listing(columns, rows, as_json=as_json, nothing=nothing)
