"""Commands that make recorded places relative to named roots, by records of the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cyclopts import App

from commitlog.adapters.places import TABLES
from commitlog.errors import TransactionRejected
from consumers.commands import output
from consumers.commands.columns import Column
from consumers.commands.options import HERE, AsJson, Where, connect_client
from consumers.runtime.config import Config, ConfigurationError
from consumers.runtime.endpoints import read_endpoints, write_endpoints

if TYPE_CHECKING:
    from commitlog.client.log import CommitLog

places = App(name="places", help="Show which places of the log are in named roots, or bind them.")


@places.default
def show(*, where: Where = HERE, as_json: AsJson = False) -> None:
    """Show which recorded places of the log are in named roots, and where those are now."""
    with connect_client(where.load()) as log:
        _print(log, as_json=as_json)


@places.command
def bind(
    place: str, root: str = TABLES, /, *, where: Where = HERE, as_json: AsJson = False
) -> None:
    """Bind a recorded place to a named root, by a record in the log.

    From then on each deployment says where its root of that name is: `tables` is its --tables-root,
    or ROOT/tables; others are given by --places NAME=WHERE. A root that was moved, copied or
    mounted elsewhere then starts without further settings. This moves no files: the leader refuses
    it unless it was started with a root of this name that has them. Needs protocol 5.

    Parameters
    ----------
    place
        A folder or URI as the log recorded it, for example /old/root/tables.
    root
        The root's name.
    """
    config = where.load()
    with connect_client(config, "places") as log:
        with _wrong_argument():
            log.bind_place(place, root)
        _note(log, config)
        _print(log, as_json=as_json)


@places.command
def unbind(place: str, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """Remove the binding of a place, by a record in the log.

    The leader refuses it unless it finds the files without the binding: where they were recorded,
    or where --places says.

    Parameters
    ----------
    place
        The place as `commitlog places` shows it.
    """
    config = where.load()
    with connect_client(config, "places") as log:
        with _wrong_argument():
            log.unbind_place(place)
        _note(log, config)
        _print(log, as_json=as_json)


@contextmanager
def _wrong_argument() -> Iterator[None]:
    """Have what the leader refuses of a place or a root be what it is here: a wrong argument."""
    try:
        yield
    except TransactionRejected as error:
        raise ConfigurationError(error.outcome.message) from error


def _note(log: CommitLog, config: Config) -> None:
    """Leave what is bound in the root, for those who look at it where no log answers."""
    left = read_endpoints(config.root) if config.root is not None else {}
    if config.root is not None and left:
        roots = {place: root for place, (root, _) in log.places().items()}
        write_endpoints(config.root, {**left, "roots": json.dumps(roots)})


def _print(log: CommitLog, *, as_json: bool) -> None:
    rows = [
        {"place": place, "root": root, "now": now} for place, (root, now) in log.places().items()
    ]
    columns = (
        Column("place"),
        Column("root"),
        Column("where it is now", "now"),
    )
    output.print_listing(columns, rows, as_json=as_json, nothing="no place is in a named root")
