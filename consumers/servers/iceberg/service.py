"""What the Iceberg REST catalogue needs of the log: one reading, one writing.

`view` shows the catalogue as of the log's end, so that a 404 or an empty list is true when it is
said. `submit` appends one transaction and waits for its outcome; how it fails says what the
caller may tell its client:

    InvalidTransaction, RecordTooLarge   nothing was appended: 400
    Unavailable, Overloaded              nothing was appended: 503 with Retry-After
    OutcomeUnknown                       it may be committed: 500 CommitStateUnknownException
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from commitlog.core.iceberg.domain import UnmetRequirement
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.model.operations import IcebergChange, Operation
from commitlog.model.records import Code, Status
from commitlog.model.table import TableId
from consumers.servers.security.grants import Principal


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
class Committed:
    """A transaction that committed: where each Iceberg table's metadata is now."""

    transaction_id: str
    locations: Mapping[TableId, str]
    tables: Mapping[TableId, IcebergTable] = field(default_factory=dict)
    """The tables as committed, where the service has them at hand."""


@dataclass(frozen=True, slots=True)
class RefusedChanges:
    """A transaction that did not commit, by a definite outcome."""

    status: Status
    code: Code
    message: str
    failed: tuple[UnmetRequirement, ...] = ()
    problem: str = ""
    """Why it could not be rebased, if that is what its requirements failed for."""


class IcebergService(Protocol):
    """The log, as the REST catalogue sees it. Its methods block; each ends by its deadline."""

    def view(self, *, timeout_seconds: float) -> CatalogView:
        """Return the catalogue as of the log's end; raise Unavailable if that cannot be known."""

    def submit(
        self,
        operations: Sequence[Operation],
        *,
        transaction_id: str,
        id_is_new: bool,
        timeout_seconds: float,
    ) -> Committed | RefusedChanges:
        """Append one transaction and return its outcome; the same id returns the same outcome.

        `id_is_new`: this id can't have been used before, which is cheaper.
        """

    def operations(self, transaction_id: str) -> Sequence[Operation]:
        """Return the operations of a decided transaction; none if there is no such id."""

    def read_metadata(self, location: str) -> bytes:
        """Return the JSON of a metadata file; raise OSError if it cannot be read."""

    def registration(
        self,
        table: TableId,
        location: str,
        replaces: str,
        *,
        read_only: bool = False,
        repeats: str = "",
    ) -> IcebergChange:
        """Return what registers a metadata file; raise OSError, or Invalid if it isn't one.

        `replaces` is the uuid of the table that leaves the name; empty: there must be none.
        With `read_only` it may be the metadata of another table. If the transaction that it
        `repeats` registered the file already, its own change is returned: the table that it
        replaced is gone.
        """

    def has_file(self, location: str) -> bool:
        """Return True if there is such a file."""

    def make_folders(self, location: str) -> None:
        """Make a new table's folders where its client may not: below a local tables root."""

    def lance_operations(
        self, items: Sequence[Any], transaction_id: str, who: Principal
    ) -> tuple[Operation, ...]:
        """Return the operations of a request's `lance-operations`.

        Those of the first request under this id, if there was one: what they name may be gone.
        Raises InvalidTransaction, and NoSuchTable.
        """
