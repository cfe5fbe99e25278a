"""What a leader answers from what its loop knows: of one table, and lists of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from commitlog.core.iceberg.views import IcebergView
from commitlog.messages import IcebergDescription, NamespaceDescription, TableHead
from commitlog.model.table import TableId, parse_table_id
from consumers.partition.files.catalogue import Head, PartitionHeads
from consumers.partition.files.events import Version
from consumers.partition.session import Session
from consumers.socket.row_states import Ask, Params


def head_of(session: Session, params: Params) -> Head:
    """Return the head of the table that is asked about; raise NoSuchTable."""
    return session.catalogue.head(parse_table_id(params.get("table", "")))


def awaited_by(head: Head, params: Params) -> tuple[Version, ...]:
    """Return what has to open by path first: the version that is asked for, or else the head."""
    version = int(params.get("version") or 0) or head.version
    return ((head.incarnation, version),) if version >= head.version > 0 else ()


def _table_now(session: Session, params: Params) -> dict[str, Any]:
    """Describe a table at its head."""
    head = head_of(session, params)
    return head.described_whole(session.readable.newest(head.incarnation)).to_json()


def _said_now(session: Session, params: Params) -> list[Any]:
    """Return what clients said of versions, in their order."""
    head = head_of(session, params)
    return [head.said(int(version)) for version in params.get("versions", ())]


LOOKUPS = {"table": _table_now, "said": _said_now}


class Listings:
    """Lists what the loop knows; the messages are made outside of it."""

    def __init__(self, ask: Ask) -> None:
        """Look things up by `ask`."""
        self._ask = ask

    async def tables(self, params: Params) -> list[dict[str, Any]]:
        """Describe tables without their schemas; `brief` asks for names and heads alone.

        Or those of an `incarnation`, or whose location has an `ending`.
        """
        if params.get("brief"):
            heads = await self._listed(params, PartitionHeads.heads, PartitionHeads.next_heads)
            return [TableHead(one.table, one.incarnation, one.version).to_json() for one in heads]
        within = _within(params)
        only = {name: str(params[name]) for name in ("incarnation", "ending") if name in params}

        def look(now: Session) -> list[tuple[Head, int]]:
            heads = now.catalogue.heads_of(**only) if only else now.catalogue.heads(within)
            return now.readable.beside(heads)

        found = await self._ask(look)
        return [head.described(readable).to_json() for head, readable in found]

    async def namespaces(self, params: Params) -> list[dict[str, Any]]:
        """Describe a namespace and those in it, or all; `alone` asks for that one only."""
        of = PartitionHeads.namespace if params.get("alone") else PartitionHeads.namespaces
        found = await self._listed(params, of, PartitionHeads.next_namespaces)
        return [NamespaceDescription(name, dict(given)).to_json() for name, given in found]

    async def iceberg_tables(self, params: Params) -> list[dict[str, Any]]:
        """Describe Iceberg tables and views; in parts tables, or with `is_view` views."""
        following = partial(PartitionHeads.next_iceberg_tables, is_view=bool(params.get("is_view")))
        found = await self._listed(params, PartitionHeads.iceberg_tables, following)
        return [
            IcebergDescription(
                name, table.uuid, table.metadata_location, is_view=isinstance(table, IcebergView)
            ).to_json()
            for name, table in found
        ]

    async def _listed(
        self, params: Params, whole: Callable[..., Any], following: Callable[..., Any]
    ) -> Any:
        """Return all, or with a `limit` so many directly in the namespace, after a name."""
        within, limit = _within(params), params.get("limit")
        if limit is None or params.get("alone"):
            return await self._ask(lambda now: whole(now.catalogue, within))
        after = str(params.get("after", ""))
        return await self._ask(lambda now: following(now.catalogue, within, after, int(limit)))


def _within(params: Params) -> TableId:
    return tuple(params.get("within") or ())
