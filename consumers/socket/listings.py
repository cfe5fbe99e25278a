"""What a leader answers to those who list: tables and namespaces, all or those in a namespace."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from commitlog.core.iceberg.views import IcebergView
from commitlog.messages import IcebergDescription, NamespaceDescription, TableHead
from commitlog.model.table import TableId
from consumers.partition.session import Session
from consumers.socket.row_states import Params

Ask = Callable[[Callable[[Session], Any]], Coroutine[Any, Any, Any]]


class Listings:
    """Lists what the loop knows; the messages are made outside of it."""

    def __init__(self, ask: Ask) -> None:
        """Look things up by `ask`."""
        self._ask = ask

    async def tables(self, params: Params) -> list[dict[str, Any]]:
        """Describe tables without their schemas; `brief` asks for names and heads alone.

        With a `limit`, so many at most, of those directly in the namespace, after a name.
        """
        within = _within(params)
        if params.get("brief"):
            after, limit = str(params.get("after", "")), params.get("limit")
            heads = await self._ask(
                lambda now: (
                    now.catalogue.heads(within)
                    if limit is None
                    else now.catalogue.next_heads(within, after, int(limit))
                )
            )
            return [TableHead(one.table, one.incarnation, one.version).to_json() for one in heads]
        found = await self._ask(lambda now: now.readable.beside(now.catalogue.heads(within)))
        return [head.described(readable).to_json() for head, readable in found]

    async def namespaces(self, params: Params) -> list[dict[str, Any]]:
        """Describe a namespace and those in it, or all.

        `alone` asks for that one only; a `limit` for so many directly in it, after a name.
        """
        within = _within(params)
        after, limit = str(params.get("after", "")), params.get("limit")
        found = await self._ask(
            lambda now: (
                now.catalogue.namespace(within)
                if params.get("alone")
                else now.catalogue.namespaces(within)
                if limit is None
                else now.catalogue.next_namespaces(within, after, int(limit))
            )
        )
        return [NamespaceDescription(name, dict(given)).to_json() for name, given in found]

    async def iceberg_tables(self, params: Params) -> list[dict[str, Any]]:
        """Describe Iceberg tables and views.

        With a `limit`, so many at most, of those directly in the namespace, after a name: views
        with `is_view`, else tables.
        """
        within = _within(params)
        after, limit = str(params.get("after", "")), params.get("limit")
        found = await self._ask(
            lambda now: (
                now.catalogue.iceberg_tables(within)
                if limit is None
                else now.catalogue.next_iceberg_tables(
                    within, after, int(limit), is_view=bool(params.get("is_view"))
                )
            )
        )
        return [
            IcebergDescription(
                name, table.uuid, table.metadata_location, is_view=isinstance(table, IcebergView)
            ).to_json()
            for name, table in found
        ]


def _within(params: Params) -> TableId:
    return tuple(params.get("within") or ())
