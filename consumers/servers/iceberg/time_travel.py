"""The Iceberg catalogue as of one position of the log: all tables together, read only.

A client asks `/v1/config?warehouse=at:POSITION` and is given a prefix; what it then loads is a
consistent cut: of a transaction that changed two tables, it has both changes or neither.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NoReturn

from commitlog import CommitLog
from commitlog.client.history.positions import sequences_text, text_sequences
from commitlog.core.iceberg.errors import Invalid
from commitlog.model.table import TableId, parse_table_id
from commitlog.newest import Newest
from consumers.partition.files.iceberg_files import IcebergFiles
from consumers.servers.iceberg.log import LogIcebergService, OnDemand
from consumers.servers.iceberg.replies import Failure
from consumers.servers.iceberg.service import CatalogView

PREFIX = "at-"
"""How the prefix of an address begins that names a position."""
_WAREHOUSE = "at:"
_VIEWS_KEPT = 32


def position_of(warehouse: str, log: CommitLog) -> str:
    """Return the position that a warehouse's name asks for; empty: it asks for none.

    It is `at:` and what names a position for `CommitLog.position`. The answer is of sequences
    only, one for each partition with commas between: a tag may move while a client reads.
    """
    # In any case: a request for the past, by `AT:1207`, must not get the present to write to.
    if not warehouse.lower().startswith(_WAREHOUSE):
        return ""
    return sequences_text(log.position(warehouse[len(_WAREHOUSE) :]))


class PastCatalogues:
    """Catalogues as of positions; those that were asked for last are kept. Thread-safe."""

    def __init__(self, log: CommitLog, files: IcebergFiles, timeout_seconds: float) -> None:
        self._log, self._timeout_seconds = log, timeout_seconds
        self._files = files
        self._kept: Newest[str, CatalogView] = Newest(_VIEWS_KEPT)
        self._lock = threading.Lock()

    def view(self, position: str) -> CatalogView:
        """Return the tables and namespaces that stood at a position."""
        with self._lock:
            known = self._kept.get(position)
        if known is None:
            wanted = text_sequences(position)
            if wanted is None:
                raise Invalid("iceberg_warehouse_not_a_position", value=position)
            known = self._made(wanted)
        with self._lock:
            self._kept[position] = known
        return known

    def _made(self, wanted: Mapping[int, int]) -> CatalogView:
        stood = self._log.snapshot(wanted, timeout=self._timeout_seconds)
        tables: dict[TableId, str] = {}
        others: dict[TableId, str] = {}
        views: dict[TableId, str] = {}
        for name, found in stood.tables.items():
            kind = tables if found.is_iceberg else others
            kind = views if found.is_view else kind
            kind[parse_table_id(name)] = found.metadata_location or found.incarnation
        return CatalogView(
            OnDemand(
                lambda: dict.fromkeys(tables),
                lambda name: self._files.table(tables[name]) if name in tables else None,
            ),
            {**others, **views},
            stood.namespaces,
            OnDemand(
                lambda: dict.fromkeys(views),
                lambda name: self._files.table(views[name]) if name in views else None,
            ),
            heads=tables,
        )


class PastIcebergService:
    """What the catalogue needs of the log, at one position. Nothing is written."""

    def __init__(self, past: PastCatalogues, files: IcebergFiles, position: str) -> None:
        """Show what existed at a position."""
        self._past = past
        self.files = files
        self._position = position

    def view(self, within: TableId | None = None, **part: Any) -> CatalogView:
        """Return the catalogue as of the position, whatever part of it is asked for."""
        return self._past.view(self._position)

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        refuse(self._position)

    submit = operations = registration = lance_operations = _refuse


IcebergService = LogIcebergService | PastIcebergService
"""What the REST catalogue serves. Its methods block; each ends by its deadline."""


def refuse(position: str) -> NoReturn:
    """Say that a catalogue as of a position is read only."""
    message = f"the catalogue at position {position} is read-only; connect without `at:`"
    raise Failure(403, "ForbiddenException", message)
