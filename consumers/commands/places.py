"""Commands that make recorded places relative to named roots, by records of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclopts import App

from commitlog.adapters.places import TABLES
from consumers.commands import output
from consumers.commands.options import HERE, AsJson, Where, connect_client

if TYPE_CHECKING:
    from commitlog.client.log import CommitLog

places = App(name="places", help="Show which places of the log are in named roots, or bind them.")


@places.default
def show(*, where: Where = HERE, as_json: AsJson = False) -> None:
    """Show which places of the log are in named roots, and where these are now."""
    log = connect_client(where.load())
    try:
        _print(log, as_json=as_json)
    finally:
        log.close()


@places.command
def bind(
    place: str, root: str = TABLES, /, *, where: Where = HERE, as_json: AsJson = False
) -> None:
    """Have what the log recorded below a place be in a root with a name, by a record.

    From then on each deployment says where its root of that name is: `tables` is its --tables-root,
    or ROOT/tables; for others, --places NAME=WHERE. So a root that was moved, copied or mounted
    elsewhere just starts. Nothing is moved by this: the leader refuses it unless it was started
    with a root of this name where the files are now. Needs protocol 5.

    Parameters
    ----------
    place
        A folder or URI as the log recorded it, for example /old/root/tables.
    root
        The root's name.
    """
    log = connect_client(where.load(), "places")
    try:
        log.bind_place(place, root)
        _print(log, as_json=as_json)
    finally:
        log.close()


@places.command
def unbind(place: str, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """Take a place out of its root again, by a record.

    The leader refuses it unless it finds the files without: where they were recorded, or where
    --places binds that.

    Parameters
    ----------
    place
        As `commitlog places` shows it.
    """
    log = connect_client(where.load(), "places")
    try:
        log.unbind_place(place)
        _print(log, as_json=as_json)
    finally:
        log.close()


def _print(log: CommitLog, *, as_json: bool) -> None:
    rows = [
        {"place": place, "root": root, "now": now} for place, (root, now) in log.places().items()
    ]
    columns = (
        output.Column("place", lambda row: row["place"]),
        output.Column("root", lambda row: row["root"]),
        output.Column("where it is now", lambda row: row["now"]),
    )
    output.print_listing(columns, rows, as_json=as_json, nothing="no place is in a named root")
