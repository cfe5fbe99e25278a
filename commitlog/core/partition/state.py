"""One partition's state: what applying its log has come to."""

from __future__ import annotations

from commitlog.core.catalogue.catalogue_state import Catalogue
from commitlog.core.log.deduplication import Deduplication
from commitlog.core.tables.by_name import ByName
from commitlog.core.tables.iceberg_tables import IcebergTables
from commitlog.core.tables.lance_tables import Locations, Table
from commitlog.model.limits import Rules
from commitlog.model.records import Genesis


class PartitionState:
    """The tables of one partition and what was decided of its transactions."""

    def __init__(self, genesis: Genesis, rules: Rules | None = None) -> None:
        """Start before the first record."""
        self.genesis = genesis
        self.rules = rules or Rules()
        self.sequence = 0
        self.time_ms = 0
        self.tables = ByName[Table]()
        self.locations = Locations()
        self.iceberg = IcebergTables()
        self.catalogue = Catalogue(self.tables, self.locations, self.iceberg)
        self.deduplication = Deduplication()
