"""`commitlog properties`: lists and sets properties of tables and namespaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from commitlog.errors import NoSuchNamespace
from commitlog.model.table import format_table_id, parse_table_id
from consumers.commands import output
from consumers.commands.columns import Column
from consumers.commands.options import HERE, AsJson, Flag, Where, connect_client, user
from consumers.runtime.config import ConfigurationError

if TYPE_CHECKING:
    from commitlog import CommitLog

_REPEATED = {"negative": "", "consume_multiple": False, "show_default": False}


def properties(
    name: str = "",
    /,
    *,
    set: Annotated[tuple[str, ...], Parameter(metavar="NAME=VALUE", **_REPEATED)] = (),
    unset: Annotated[tuple[str, ...], Parameter(metavar="NAME", **_REPEATED)] = (),
    namespace: Flag = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """List properties of a Lance table or a namespace, or set some, by a record.

    The properties commitlog.maintain.* control maintenance of the table, or of the namespace's
    tables that don't set their own.

    Parameters
    ----------
    name
        The table, for example shop$orders (quote the $). With --namespace and no name: the root of
        all namespaces, whose properties apply to the whole log.
    set
        Set a property, for example commitlog.maintain.expire-days=30.
    unset
        Remove a property.
    namespace
        The name is that of a namespace.
    """
    values: dict[str, str | None] = dict.fromkeys(unset)
    for pair in set:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise ConfigurationError(f"--set takes NAME=VALUE, not {pair!r}")
        values[key] = value
    if not name and not namespace:
        raise ConfigurationError("no table is given: commitlog properties TABLE")
    with connect_client(where.load(), user()) as log:
        if values:
            log.set_properties(name or [], values, is_namespace=namespace)
        found = _namespaces(log, name) if namespace else dict(log.table(name).properties)
    rows = [{"name": key, "value": value} for key, value in sorted(found.items())]
    columns: Sequence[Column] = (
        Column("property", "name"),
        Column("value"),
    )
    output.print_listing(columns, rows, as_json=as_json, nothing="no properties")


def _namespaces(log: CommitLog, name: str) -> dict[str, str]:
    """Return a namespace's properties; the root's are in all partitions."""
    wanted = parse_table_id(name) if name else ()
    for one in log.namespaces():
        if one.namespace == wanted:
            return dict(one.properties)
    if not wanted:
        return {}
    from commitlog.client.commits.names import like_known  # brings the log's records in

    known = [format_table_id(one.namespace) for one in log.namespaces() if one.namespace]
    hint = like_known(name, known, "namespaces")
    raise NoSuchNamespace(f"the log has no namespace {name!r}.", hint=hint)
