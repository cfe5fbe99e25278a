"""What a leader is asked that its loop answers from its memory, at once."""

from __future__ import annotations

from typing import Any

from commitlog.model.table import parse_table_id
from consumers.partition.files.catalogue import Head
from consumers.partition.files.events import Version
from consumers.partition.session import Session
from consumers.socket.row_states import Params


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
