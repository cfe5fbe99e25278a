"""What the Iceberg REST catalogue hears of the log: one reading, one writing.

A service's `view` shows the catalogue as of the log's end, so that a 404 or an empty list is true
when it is said. Its `submit` appends one transaction and waits for its outcome; how it fails says
what the caller may tell its client:

    InvalidTransaction, RecordTooLarge   nothing was appended: 400
    Unavailable, Overloaded              nothing was appended: 503 with Retry-After
    OutcomeUnknown                       it may be committed: 500 CommitStateUnknownException
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.requests import TABLES_MAX, UPDATES_MAX
from commitlog.model.records import Outcome
from commitlog.model.table import TableId


@dataclass(frozen=True, slots=True)
class CatalogView:
    """The tables and namespaces at one position of the log."""

    tables: Mapping[TableId, IcebergTable]
    others: Mapping[TableId, str]
    """Tables of other formats, with their uuids: they hold names too."""
    namespaces: Mapping[TableId, Mapping[str, str]]
    views: Mapping[TableId, IcebergTable] = field(default_factory=dict)
    """Iceberg's views, which are among `others` too."""
    heads: Mapping[TableId, str] = field(default_factory=dict)
    """Where the metadata of the tables is: a look at a name here reads no file."""


@dataclass(frozen=True, slots=True)
class IcebergSettings:
    """What an operator may choose."""

    warehouse: str
    """Where tables without a given location go: `warehouse/namespace/table-uuid`."""
    tables_max: int = TABLES_MAX
    updates_max: int = UPDATES_MAX
    timeout_seconds: float = 30
    body_bytes_max: int = 16 * 1024 * 1024
    """What a record of the log holds."""


def locations_of(outcome: Outcome) -> dict[TableId, str]:
    """Return where each Iceberg table's metadata is since a transaction."""
    return {r.table: r.metadata_location for r in outcome.results if r.metadata_location}
