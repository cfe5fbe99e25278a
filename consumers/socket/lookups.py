"""What a leader is asked that its loop answers from its memory, at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commitlog.model.table import parse_table_id
from consumers.partition.session import Session

Params = Mapping[str, Any]


def is_readable(session: Session, params: Params) -> bool:
    """Return True if the version that is asked for, or else the head, opens by path."""
    head = session.catalogue.head(parse_table_id(params.get("table", "")))
    version = int(params.get("version") or 0) or head.version
    return version < head.version or session.readable.newest(head.incarnation) >= version


def _table_now(session: Session, params: Params) -> dict[str, Any]:
    """Describe a table at its head."""
    head = session.catalogue.head(parse_table_id(params.get("table", "")))
    return head.described_whole(session.readable.newest(head.incarnation)).to_json()


def _said_now(session: Session, params: Params) -> list[Any]:
    """Return what clients said of versions, in their order."""
    head = session.catalogue.head(parse_table_id(params.get("table", "")))
    return [head.said(int(version)) for version in params.get("versions", ())]


LOOKUPS = {"table": _table_now, "said": _said_now}
