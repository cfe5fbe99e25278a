"""The operations that a transaction may contain, one frozen class each.

`LanceCommit` carries Lance's own Transaction message verbatim; the others change the catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from commitlog.model.table import Policy, TableId
from commitlog.model.values import made_fast

Properties = tuple[tuple[str, str], ...]

ROW_ORDER = "commitlog.row-order"
"""A property of a Lance transaction: whether a Rewrite keeps the order of the rows that live."""
ROW_ORDER_KEPT = "kept"

INCARNATION = "commitlog.incarnation"
"""A property of a record that deletes versions of a table: the incarnation that they are of. Under
its name another table may stand by the time that the record is decided."""

COLUMNS = "commitlog.columns"
"""A property of a Lance transaction: whether the writer of a Merge computes its new columns for
what others commit meanwhile, once its turn has come (`core/operations/awaited_columns`)."""
COLUMNS_AWAITED = "awaited"


@dataclass(frozen=True, slots=True)
class AffectedRows:
    """The rows that a Delete or Update touched: physical offsets in one fragment."""

    fragment_id: int
    rows: bytes
    """A portable 32-bit Roaring bitmap."""


@dataclass(frozen=True, slots=True)
class KeyHashes:
    """Exact hashes of the keys that an operation inserts."""

    field_ids: tuple[int, ...]
    hashes: bytes
    """Sorted 16-byte hashes, concatenated."""


@made_fast
@dataclass(frozen=True, slots=True)
class Summary:
    """What an auditor needs, derived by the encoder from the message."""

    rows_added: int = 0
    rows_removed: int = 0
    bytes_added: int = 0
    fragments_added: int = 0
    fragments_updated: int = 0
    fragments_removed: int = 0
    data_files: tuple[str, ...] = ()


@made_fast
@dataclass(frozen=True, slots=True)
class LanceCommit:
    """One of Lance's operations on one table."""

    table: TableId
    operation: str
    """Its name in the message's oneof, in CamelCase: `Append`, `UpdateConfig`."""
    read_version: int
    message: bytes
    """A serialized `lance.table.Transaction`, kept verbatim."""
    incarnation: str = ""
    """Empty: whichever incarnation of the table stands when it is decided."""
    branch: str = ""
    schema_metadata: tuple[tuple[str, bytes], ...] | None = None
    affected_rows: tuple[AffectedRows, ...] = ()
    inserted_keys: KeyHashes | None = None
    summary: Summary = Summary()


@dataclass(frozen=True, slots=True)
class CreateTableVersion:
    """Commit a manifest that a client staged: pylance's external manifest store."""

    table: TableId
    version: int
    manifest_path: str
    """Relative to the table's location: `_versions/<name>.manifest-<uuid>`."""
    manifest_size: int
    e_tag: str = ""
    naming_scheme: str = "V2"
    sha256: bytes = b""
    message: bytes = b""
    """The `lance.table.Transaction` found in the manifest."""
    operation: str = ""
    incarnation: str = ""
    branch: str = ""
    metadata: Properties = ()
    adopt: bool = False
    """True: it was found in storage, not offered by a client (`AdoptVersion`)."""


@dataclass(frozen=True, slots=True)
class CreateTable:
    """Make an empty table at version 1."""

    table: TableId
    incarnation: str
    location: str
    fields: tuple[bytes, ...]
    """One serialized `lance.file.Field` per field, ids assigned, parents before children."""
    schema_metadata: tuple[tuple[str, bytes], ...] = ()
    primary_key: tuple[str, ...] = ()
    policy: Policy = Policy.EVERY
    stable_row_ids: bool = False
    data_storage_version: str = "2.0"
    properties: Properties = ()
    exist_ok: bool = False


@dataclass(frozen=True, slots=True)
class DeclareTable:
    """Reserve a name and a location for a table; another writer writes its first version."""

    table: TableId
    incarnation: str
    location: str
    policy: Policy = Policy.EVERY
    properties: Properties = ()


@dataclass(frozen=True, slots=True)
class RegisterTable:
    """Take over an existing Lance dataset at its newest version."""

    table: TableId
    incarnation: str
    location: str
    version: int
    manifest_path: str
    policy: Policy = Policy.EVERY
    primary_key: tuple[str, ...] = ()
    properties: Properties = ()


@dataclass(frozen=True, slots=True)
class DeregisterTable:
    """Forget the table; its files stay."""

    table: TableId
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class DropTable:
    """Forget the table; its files may be removed."""

    table: TableId
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class RenameTable:
    """Give a table another name in the same domain."""

    table: TableId
    new_table: TableId


@dataclass(frozen=True, slots=True)
class DeleteTableVersions:
    """Delete ranges of old versions; each range is [first, last]."""

    table: TableId
    ranges: tuple[tuple[int, int], ...]
    branch: str = ""


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """Make a namespace."""

    namespace: TableId
    properties: Properties = ()
    exist_ok: bool = False


@dataclass(frozen=True, slots=True)
class DropNamespace:
    """Remove a namespace; `cascade` drops its tables and namespaces."""

    namespace: TableId
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class AlterProperties:
    """Set and remove properties of a table or namespace."""

    target: TableId
    is_namespace: bool = False
    upserts: Properties = ()
    removals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IcebergChange:
    """One Iceberg table's requirements and updates, as the JSON that the client sent."""

    table: TableId
    requirements: str
    updates: str


class RowsMode(StrEnum):
    """What a write of rows does with them."""

    APPEND = "append"
    UPSERT = "upsert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class RowsColumn:
    """A top-level column of written rows."""

    field_id: int
    name: str
    nulls: int
    """How many rows have none of it."""


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Rows for a table: accepted when it is decided, and applied in order by a row writer."""

    table: TableId
    mode: RowsMode
    rows: int
    columns: tuple[RowsColumn, ...]
    schema_digest: bytes
    """sha256 over the fields of these columns, so that the rows are of the table's own types."""
    sha256: bytes
    """Of the rows as an Arrow IPC stream, a payload of the transaction or the file at `path`."""
    size: int
    path: str = ""
    """Of the rows' file, relative to the table's location; empty: they are a payload."""
    on: tuple[str, ...] = ()
    """The key's columns; empty for an append."""
    incarnation: str = ""
    update_all: bool = False
    """Whether an upsert updates the rows that match, with the columns that it brings."""
    update_if: str = ""
    """Updates only where this SQL predicate over `target` and `source` holds."""
    insert_all: bool = False
    """Whether an upsert inserts the rows that don't match."""


@dataclass(frozen=True, slots=True)
class AppliedWrite:
    """The result of one accepted write: its own counts, or why its rows weren't applied."""

    sequence: int
    operation: int
    """Which of its transaction's operations it is."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    refused: str = ""
    """A code; empty: it was applied."""
    problem: str = ""
    """What is wrong with a refused write, as text."""


@dataclass(frozen=True, slots=True)
class ApplyRows:
    """Record the results of a range of accepted writes.

    If they change the table, the next operation of the same transaction does that.
    """

    table: TableId
    incarnation: str
    after: int
    """The position through which the writes were applied before."""
    through: int
    """The position of the last one."""
    writes: tuple[AppliedWrite, ...]


Operation = (
    LanceCommit
    | CreateTableVersion
    | CreateTable
    | DeclareTable
    | RegisterTable
    | DeregisterTable
    | DropTable
    | RenameTable
    | DeleteTableVersions
    | CreateNamespace
    | DropNamespace
    | AlterProperties
    | IcebergChange
    | WriteRows
    | ApplyRows
)

ROW_OPERATIONS: frozenset[type] = frozenset({WriteRows, ApplyRows})
"""Operations on rows, which records of the first schema can't hold."""


def operation_name(operation: Operation) -> str:
    """Return the name by which people know it: Lance's for its own operations."""
    if isinstance(operation, LanceCommit):
        return operation.operation
    return type(operation).__name__


def target(operation: Operation) -> TableId:
    """Return the table (or namespace) that an operation is about."""
    if isinstance(operation, CreateNamespace | DropNamespace):
        return operation.namespace
    if isinstance(operation, AlterProperties):
        return operation.target
    return operation.table


def deciding_name(operation: Operation) -> TableId:
    """Return the name that says which partition decides an operation.

    A namespace is decided where the tables in it are.
    """
    name = target(operation)
    is_namespace = isinstance(operation, CreateNamespace | DropNamespace) or (
        isinstance(operation, AlterProperties) and operation.is_namespace
    )
    return (*name, "") if is_namespace else name
