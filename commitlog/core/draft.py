"""One decision in the making: the state as the record's earlier operations leave it.

Nothing here changes the machine: if an operation refuses, all that others left here is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from commitlog.codecs.lanes import PlainAppend
from commitlog.core.conflicts.history import History, WriteSet
from commitlog.core.conflicts.write_sets import kind_of
from commitlog.core.decisions import (
    Change,
    FileToWrite,
    Found,
    Observed,
    Refused,
    VectorWanted,
    Wanted,
    Wants,
    rejected,
)
from commitlog.core.iceberg.domain import IcebergResult
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState, apply_delta
from commitlog.core.manifest.plain_appends import KIND, read_plain_append
from commitlog.core.tables.by_name import ByName
from commitlog.core.tables.iceberg_tables import IcebergTables
from commitlog.core.tables.lance_tables import (
    LocationParts,
    Locations,
    Place,
    Table,
    location_parts,
    no_such_table,
    normalize_location,
)
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import ICEBERG_COPIES_ELSEWHERE_SINCE, Rules
from commitlog.model.operations import CreateTableVersion, LanceCommit, Properties
from commitlog.model.records import Code, Observation, OperationResult, Transaction
from commitlog.model.table import TableId, format_table_id

PARSES_MAX = 1_000


class Parsed:
    """Lance's message, decoded once per record."""

    __slots__ = ("_message", "_transaction", "files", "kind", "plain")

    def __init__(self, message: bytes, transaction: LanceTransaction | None, kind: str) -> None:
        self._message, self._transaction = message, transaction
        self.kind = kind
        self.plain: PlainAppend | None = None
        """What the message says, if it is so simple."""
        self.files: tuple[object, Any] | None = None
        """The files that it brings, as named for a header (kept by `requests.files_wanted`)."""

    @property
    def transaction(self) -> LanceTransaction:
        """The message itself."""
        if self._transaction is None:
            self._transaction = LanceTransaction.FromString(self._message)
        return self._transaction


def parse(operation: LanceCommit | CreateTableVersion) -> Parsed:
    """Decode an operation's message."""
    plain = read_plain_append(operation.message)
    if plain is not None:
        parsed = Parsed(operation.message, None, KIND)
        parsed.plain = plain
        return parsed
    try:
        transaction = LanceTransaction.FromString(operation.message)
    except DecodeError as error:
        raise rejected(
            Code.MALFORMED_RECORD, "not_a_lance_transaction", table=format_table_id(operation.table)
        ) from error
    return Parsed(operation.message, transaction, kind_of(transaction))


class Parses:
    """What was parsed of transactions that aren't applied yet; of so many at most."""

    def __init__(self) -> None:
        """Know none."""
        self._kept: dict[int, tuple[Transaction, list[Parsed | None]]] = {}

    def of(self, offset: int, record: Transaction) -> list[Parsed | None]:
        """Return a transaction's operations, each decoded if it has a message of Lance's."""
        kept = self._kept.get(offset)
        if kept is not None and kept[0] is record:
            return kept[1]
        parsed = [
            parse(operation) if isinstance(operation, LanceCommit | CreateTableVersion) else None
            for operation in record.operations
        ]
        if len(self._kept) >= PARSES_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[offset] = (record, parsed)
        return parsed

    def forget(self, offset: int) -> None:
        """Drop what is applied."""
        self._kept.pop(offset, None)


class View:
    """A table as the record's earlier operations leave it."""

    __slots__ = ("applied_rows", "deleted", "own", "rows_key", "state", "table")

    def __init__(self, table: Table) -> None:
        """See a table as it stands."""
        self.table = table
        self.state: ManifestState | None = table.manifest
        self.deleted = table.deleted
        self.own: History | None = None
        """What this record's own operations did to it."""
        self.applied_rows = False
        """Whether one of them says that writes of rows were applied."""
        self.rows_key: tuple[str, ...] = ()
        """The key by which one of them writes rows."""

    @property
    def version(self) -> int:
        """The newest version, this record's own included."""
        return self.state.version if self.state is not None else 0

    def location_of(self, base_id: int | None, header: ManifestHeader | None = None) -> str:
        """Return where files of a base lie; of none, the table's own; empty: no such base."""
        if base_id is None:
            return self.table.location
        assert self.state is not None
        base = (header or self.state.header).bases.get(base_id)
        return base.path if base is not None else ""

    def deletion_file(self, path: str, header: ManifestHeader | None = None) -> VectorWanted:
        """Return where a deletion file is: with the table, or at a base as in a shallow clone."""
        base_id, is_elsewhere, there = path.rpartition(":")
        return VectorWanted(self.location_of(int(base_id) if is_elsewhere else None, header), there)

    def advance(self, transaction_id: str, write_set: WriteSet, delta: ManifestDelta) -> None:
        """Take a version that this record makes."""
        if self.own is None:
            self.own = History(self.version)
            if self.state is not None:
                self.state = self.state.fork()
        assert self.state is not None
        apply_delta(self.state, delta)
        self.own.record(transaction_id, write_set)


class Draft:
    """The results of a record's operations so far."""

    __slots__ = (
        "_iceberg",
        "_iceberg_made",
        "_locations",
        "_namespaces",
        "_tables",
        "changes",
        "dropped",
        "files",
        "header_bytes",
        "inline_bytes",
        "iceberg_deltas",
        "iceberg_places",
        "iceberg_results",
        "iceberg_views",
        "is_single",
        "manifest_bytes",
        "namespaces",
        "observations",
        "observed",
        "parsed",
        "places",
        "read_only_made",
        "recordings",
        "results",
        "rules",
        "sequence",
        "time_ms",
        "transaction",
        "views",
    )

    def __init__(
        self,
        transaction: Transaction,
        parsed: list[Parsed | None],
        observed: Observed,
        *,
        time_ms: int,
        sequence: int,
        rules: Rules,
        tables: ByName[Table],
        locations: Locations,
        namespaces: ByName[Properties],
        iceberg: IcebergTables,
    ) -> None:
        self.transaction = transaction
        self.parsed = parsed
        self.observed = observed
        self.time_ms = time_ms
        self.sequence = sequence  # of the outcome that is in the making
        self.rules = rules
        self.is_single = len(parsed) == 1
        self._tables = tables
        self._locations = locations
        self._namespaces = namespaces
        self._iceberg = iceberg
        self.views = ByName[View | None]()
        self.places: Locations | None = None
        self.iceberg_views = ByName[IcebergTable | None]()
        self.iceberg_places = Locations()
        self._iceberg_made: dict[str, list[TableId]] = {}  # by uuid, what it makes or moves
        self.read_only_made: set[TableId] = set()  # second names of tables that it makes
        self.iceberg_results: dict[TableId, IcebergResult] | None = None
        """What the record's Iceberg changes come to, once the first of them is decided."""
        self.iceberg_deltas: Mapping[TableId, bytes] = {}  # of manifest lists that were rewritten
        self.dropped: dict[str, int] = {}  # by incarnation, the newest version
        self.namespaces = ByName[Properties | None]()
        self.results: list[OperationResult] = []
        self.changes: list[Change] = []
        self.files: list[FileToWrite] = []
        self.recordings: list[bytes] = []
        self.inline_bytes = 0  # of deltas that the outcome holds itself
        self.header_bytes = 0  # of its versions, and of what it registers
        self.manifest_bytes = 0  # of the files that it names
        self.observations: dict[Wanted, Observation] = {}

    def refused(self, refusal: Refused, index: int) -> Refused:
        """Add to a refusal what was observed, and which of several operations it is about."""
        refusal.observed = tuple(self.observations.values())
        if not (self.is_single or refusal.is_of_all):
            refusal.operation = index
        return refusal

    def find(self, table_id: TableId) -> View | None:
        """Return a table, None if there is none of this name."""
        if table_id in self.views:
            return self.views[table_id]
        table = self._tables.get(table_id)
        if table is None:
            return None
        view = self.views[table_id] = View(table)
        return view

    def view(self, table_id: TableId, incarnation: str = "") -> View:
        """Return a table; refuse if it isn't there or isn't the incarnation that was meant."""
        view = self.find(table_id)
        if view is None:
            if self.iceberg(table_id) is not None:
                raise rejected(
                    Code.NO_SUCH_TABLE, "is_iceberg_table", table=format_table_id(table_id)
                )
            raise no_such_table(table_id)
        if incarnation and incarnation != view.table.incarnation:
            raise rejected(
                Code.TABLE_REPLACED,
                "table_replaced",
                table=format_table_id(table_id),
                incarnation=view.table.incarnation,
                expected=incarnation,
            )
        return view

    def tables_below(self, namespace: TableId) -> list[TableId]:
        """Return the names of the tables in a namespace, sorted."""
        names = {*self._tables.below(namespace), *self.views.below(namespace)}
        return sorted(name for name in names if self.find(name) is not None)

    def makes(self, table: Table) -> bool:
        """Return True if a table, or its newest version, wasn't there before this record."""
        was = self._tables.get(table.table_id)
        return was is None or was.incarnation != table.incarnation or was.version < table.version

    def iceberg(self, table_id: TableId) -> IcebergTable | None:
        """Return an Iceberg table, None if there is none of this name."""
        if table_id in self.iceberg_views:
            return self.iceberg_views[table_id]
        return self._iceberg.tables.get(table_id)

    def iceberg_below(self, namespace: TableId) -> list[TableId]:
        """Return the names of the Iceberg tables in a namespace, sorted."""
        names = {*self._iceberg.tables.below(namespace), *self.iceberg_views.below(namespace)}
        return sorted(name for name in names if self.iceberg(name) is not None)

    def is_taken(self, table_id: TableId) -> bool:
        """Return True if a table of any format has this name."""
        return self.find(table_id) is not None or self.iceberg(table_id) is not None

    def clash(self, location: str, home: str = "") -> Place | None:
        """Return who has a location that is, contains or is in this one, besides its `home`."""
        return (
            self.clash_with_others(location, home)
            or self.iceberg_places.clash(location, self.rules)
            or self._iceberg.locations.clash(location, self.rules)
        )

    def clash_in_iceberg(self, location: str) -> Iterator[TableId]:
        """Yield the Iceberg tables that exist and have such a location, or had it."""
        by_uuid = self.rules.protocol < ICEBERG_COPIES_ELSEWHERE_SINCE
        for places in (self.iceberg_places, self._iceberg.locations):
            for place in places.clashes(location, self.rules):
                for name in self.iceberg_named(place.incarnation):
                    # Copies have one uuid, and each a place of its own.
                    if by_uuid or name == place.table_id or self._is_around(name, location):
                        yield name

    def _is_around(self, name: TableId, location: str) -> bool:
        table = self.iceberg(name)
        own = location_parts(normalize_location(table.location)) if table is not None else ()
        return all(a == b for a, b in zip(own, location_parts(location), strict=False))

    def iceberg_named(self, uuid: str) -> Iterator[TableId]:
        """Yield the names of the Iceberg tables that exist and have a uuid."""
        for name in dict.fromkeys(self._iceberg.names(uuid) + self._iceberg_made.get(uuid, [])):
            table = self.iceberg(name)
            if table is not None and table.uuid == uuid:
                yield name

    def is_as_registered(self, name: TableId) -> bool:
        """Return True if a table has had no commit since its metadata was registered."""
        return name in self._iceberg.registered and name not in self.iceberg_views

    def is_read_only(self, name: TableId) -> bool:
        """Return True if a name is a second one, which takes no commits."""
        return name in self.read_only_made or name in self._iceberg.read_only

    def clash_with_others(self, location: str, home: str = "") -> Place | None:
        """Return who has such a location among tables that aren't Iceberg's."""
        own = self.places.clash(location, self.rules, home) if self.places is not None else None
        return own or self._locations.clash(location, self.rules, home)

    def table_at(self, location: str) -> View | None:
        """Return the table that is exactly there."""
        own = self.places.at(location) if self.places is not None else None
        place = own or self._locations.at(location)
        view = self.find(place.table_id) if place is not None else None
        return view if view is not None and view.table.location == location else None

    def place_of(self, incarnation: str) -> tuple[LocationParts, Place] | None:
        """Return the place of the table that has, or had, an incarnation."""
        own = self.places.of(incarnation) if self.places is not None else None
        return own or self._locations.of(incarnation)

    def is_above_tables(self, location: str) -> bool:
        """Return True if a location is, or contains, that of a table which is or was."""
        known = (self.places, self._locations, self.iceberg_places, self._iceberg.locations)
        return any(one is not None and one.is_above(location) for one in known)

    def take_for_iceberg(self, location: str, place: Place) -> None:
        """Note a location that an Iceberg table of this record takes."""
        self.iceberg_places.take(location, place)
        self._iceberg_made.setdefault(place.incarnation, []).append(place.table_id)

    def take(self, location: str, place: Place) -> None:
        """Note a location that this record takes."""
        if self.places is None:
            self.places = Locations()
        self.places.take(location, place)

    def namespace(self, namespace: TableId) -> Properties | None:
        """Return a namespace's properties, None if there is no such namespace."""
        if namespace in self.namespaces:
            return self.namespaces[namespace]
        return self._namespaces.get(namespace)

    def namespaces_within(self, namespace: TableId) -> list[TableId]:
        """Return a namespace and those in it, sorted."""
        names = {*self._namespaces.within(namespace), *self.namespaces.within(namespace)}
        return sorted(name for name in names if self.namespace(name) is not None)

    def want(self, wanted: Wanted) -> Found:
        """Return what was observed, or ask for it."""
        return self.want_all((wanted,))[0]

    def want_all(self, wanted: Iterable[Wanted]) -> list[Found]:
        """Return what was observed, or ask for all that wasn't."""
        found, missing = list[Found](), list[Wanted]()
        for one in wanted:
            known = self.observed.get(one)
            if known is None:
                missing.append(one)
            else:
                found.append(known)
                self.observations[one] = known.observation
        if missing:
            raise Wants(tuple(missing))
        return found
