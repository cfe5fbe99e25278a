"""Commands that name positions of a log, and take back what was done since."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from consumers.commands import output
from consumers.commands.options import HERE, AsJson, Where, connect_client


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
