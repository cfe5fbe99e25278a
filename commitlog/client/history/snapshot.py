"""All tables as of one position: many tables opened together, Lance and Iceberg alike.

A position is a place in the one order of a log, so the versions at a position are a consistent
cut: if a transaction changed two tables, a snapshot has both versions or neither. They are
computed from the log's outcomes, or looked up in a version index if one is given.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from commitlog.adapters.lance_datasets import open_dataset
from commitlog.adapters.storage import local_path
from commitlog.client.commits.names import like_known
from commitlog.client.history.feed import From, Subscription, starts
from commitlog.client.history.feed_events import Selection
from commitlog.client.history.folds import Folds, TableAt
from commitlog.client.history.positions import NamesPositions, When, sequences_text
from commitlog.client.history.sql import AsksSql, asking_index
from commitlog.client.leader.arguments import checks_arguments
from commitlog.client.leader.runtime import Runtime
from commitlog.client.leader.tables import TableInfo, ask_all
from commitlog.client.rows.host import Host, TableName
from commitlog.client.rows.opening import is_there
from commitlog.errors import (
    InvalidRequest,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchVersion,
    Unavailable,
)
from commitlog.messages import NamespaceDescription
from commitlog.model.table import TableId, format_table_id, parse_table_id

if TYPE_CHECKING:
    import lance

TIMEOUT_SECONDS = 60.0
FILE_SECONDS = 10.0
"""How long a committed Iceberg table's metadata file may still take to be written."""


@checks_arguments
class Snapshot:
    """The tables of a log as of one position. Read-only; there is nothing to close."""

    def __init__(
        self,
        log: Host,
        positions: Mapping[int, int],
        tables: Mapping[str, TableAt],
        namespaces: Mapping[TableId, Mapping[str, str]],
    ) -> None:
        self._log = log
        self.positions = dict(positions)
        """The last sequence that it has of each partition."""
        self.tables = dict(sorted(tables.items()))
        """Its tables by name."""
        self.namespaces = dict(sorted(namespaces.items()))
        """The properties of its namespaces."""

    def __repr__(self) -> str:
        """Show its position and how much it has."""
        return f"<Snapshot at {sequences_text(self.positions)} of {len(self.tables)} tables>"

    def table(self, table_id: TableName) -> TableAt:
        """Return one table's state at the position; NoSuchTable if there was none."""
        name = format_table_id(parse_table_id(table_id))
        found = self.tables.get(name)
        if found is None:
            at = sequences_text(self.positions)
            there = like_known(name, self.tables, "tables at that position")
            raise NoSuchTable(f"the log had no table {name!r} at position {at}.", hint=there)
        return found

    def open(self, table_id: TableName) -> Any:
        """Open a table: a `lance.LanceDataset` at its version, or a pyiceberg table.

        Raises NoSuchVersion if its files have been removed.
        """
        found = self.table(table_id)
        return self._iceberg(found) if found.is_iceberg else self._lance(found)

    def metadata(self, table_id: TableName) -> dict[str, Any]:
        """Return an Iceberg table's metadata at the position."""
        found = self.table(table_id)
        if not found.is_iceberg:
            raise InvalidRequest(
                f"{found.name} is a Lance table",
                field="table",
                value=found.name,
                advice="Open it with `open`",
            )
        read: dict[str, Any] = json.loads(_written(found).read_bytes())
        return read

    def _lance(self, found: TableAt) -> lance.LanceDataset:
        from commitlog.client.rows.read_only import ReadOnlyDataset

        if not found.version:
            raise NoSuchVersion(f"{found.name} had no version yet at position {self.positions}")
        if not is_there(found.location, found.version):
            self._materialize(found)
        dataset = open_dataset(found.location, found.version)
        dataset.__class__ = ReadOnlyDataset  # what it wrote would go around the log
        return dataset

    def _materialize(self, found: TableAt) -> None:
        """Have the leader write the version's manifest, if the table still stands."""
        info = standing(self._log, found.incarnation)
        if info is None:
            raise NoSuchVersion(
                f"{found.name} was dropped since, and version {found.version} has no manifest at"
                f" {found.location}"
            )
        self._log.opened.plain(info, found.version)

    def _iceberg(self, found: TableAt) -> Any:
        try:
            from pyiceberg.table import StaticTable
        except ImportError as error:
            raise Unavailable(
                "opening Iceberg tables needs pyiceberg, which is not installed; install it, or "
                "read `snapshot.metadata(table)`"
            ) from error
        return StaticTable.from_metadata(str(_written(found)))


def standing(log: Host, incarnation: str) -> TableInfo | None:
    """Return an incarnation as it is now, without its schema; None if it was dropped."""
    told = ask_all(log.runtime(), incarnation=incarnation)
    return next((info for info in told if info.incarnation == incarnation), None)


def _written(found: TableAt) -> Path:
    """Return the path of a metadata file, once it is written."""
    path = local_path(found.metadata_location)
    if path is None:
        raise Unavailable(f"{found.metadata_location} is not on a local path")
    deadline = time.monotonic() + FILE_SECONDS
    while not path.is_file():
        if time.monotonic() > deadline:
            raise NoSuchVersion(f"{found.name}: its metadata file {path} no longer exists")
        time.sleep(0.02)
    return path


def _from_index(
    index: str | os.PathLike[str], positions: Mapping[int, int] | None, log_id: str
) -> tuple[dict[int, int], Any]:
    """Return the positions and the tables that exist there, of an `index.duckdb`."""
    with asking_index(index, log_id) as connection:
        has = dict(connection.execute("SELECT partition, sequence FROM positions").fetchall())
        positions = has if positions is None else positions
        late = [p for p, wanted in positions.items() if has.get(p, 0) < wanted]
        if late:
            raise Unavailable(
                f"the index has only {has.get(late[0], 0)} of {positions[late[0]]} outcomes of "
                f"partition {late[0]}; ask again later, or without an index"
            )
        tables = {}
        for partition, sequence in positions.items():
            for row in connection.execute(_HEADS, [partition, sequence]).fetchall():
                tables[row[0]] = TableAt(
                    name=row[0],
                    incarnation=row[1],
                    version=row[2] or 0,
                    location=row[3] or "",
                    metadata_location=row[4] or "",
                )
    return dict(positions), tables


_HEADS = """
    SELECT h.table_name, h.incarnation, h.version, t.location, m.metadata_location
    FROM heads_at($2, of_partition := $1) h
    LEFT JOIN (SELECT incarnation, location FROM tables) t USING (incarnation)
    LEFT JOIN (
        SELECT incarnation, arg_max(metadata_location, sequence * 1048576 + ordinal)
               AS metadata_location
        FROM operations
        WHERE partition = $1 AND sequence <= $2 AND metadata_location IS NOT NULL
        GROUP BY incarnation) m USING (incarnation)
"""


class Reads(AsksSql, NamesPositions):
    """Adds to `CommitLog` more ways to read: `subscribe`, `snapshot` and `sql`."""

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: its threads and sockets belong to one process."""
        raise TypeError(
            "a CommitLog is one process's connection, and can't be pickled or copied: call"
            " CommitLog.connect in each process that needs one"
        )

    def subscribe(
        self,
        tables: str | Sequence[TableName] | None = None,
        from_position: From = None,
        *,
        refused: bool = False,
        idle_seconds: float | None = None,
        missing_ok: bool = False,
    ) -> Subscription:
        """Follow the decided transactions that change these tables (`ns$*`: a namespace), or any.

        Begins after a position: the last sequence that you know (in a log with one partition),
        sequences by partition, an event's token, "beginning", or "now". `refused` includes
        refused transactions. Iterate over the subscription, also with `async for`, or poll it. It
        ends when it is closed, or after `idle_seconds` without an event, counted once it has caught
        up with the log.

        ```python
        for event in log.subscribe("shop$*", "beginning", idle_seconds=1):
            print(event.sequence, event.versions, event.token)
        ```

        Raises NoSuchTable for a table or namespace that doesn't exist, unless `missing_ok` (because
        it will be created, or was dropped) or the position is a token.
        """
        runtime = self.runtime()
        selection = Selection.of(tables, refused)
        is_token = isinstance(from_position, str) and from_position not in ("beginning", "now")
        if not (missing_ok or is_token):
            for table in selection.named:
                self._check_known(runtime, table)
            self._check_namespaces(runtime, selection.namespaces)
        begin = starts(runtime, from_position)
        return Subscription(runtime.log, begin, selection, idle_seconds, runtime.is_closed)

    def snapshot(
        self,
        position: When = None,
        *,
        index: str | os.PathLike[str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Snapshot:
        """Return all tables as of one position, named as for `position`; None: as of now.

        The client computes it from the log, the first time from its beginning, later from where it
        last stopped. With the path of an `index.duckdb` as `index`, it is available immediately.

        ```python
        then = log.snapshot("2026-01-31T12:00:00Z")  # or a sequence, or a tag of the log
        then.open("shop$orders").to_table()
        ```
        """
        runtime = self.runtime()
        deadline = time.monotonic() + timeout
        if index is not None:
            wanted = None if position is None else self.position(position, timeout=timeout)
            found, tables = _from_index(index, wanted, runtime.genesis.log_id)
            names = [parse_table_id(name) for name in tables]
            spaces: dict[TableId, Mapping[str, str]] = {
                name[:depth]: {} for name in names for depth in range(1, len(name))
            }
        else:
            found = self.position(position, timeout=timeout)
            tables, spaces = self._folded(runtime, found, deadline)
        return Snapshot(self, found, tables, spaces)

    def _check_known(self, runtime: Runtime, table: TableId) -> None:
        """Raise NoSuchTable unless there is such a table, of Lance or of Iceberg."""
        try:
            self.describe(table, fresh=True)
        except NoSuchTable:
            partition = runtime.domains.partition(table)
            if runtime.request(partition, "iceberg_table", table=list(table)) is None:
                raise

    def _check_namespaces(self, runtime: Runtime, namespaces: Sequence[TableId]) -> None:
        if not namespaces:
            return
        known = {
            format_table_id(NamespaceDescription.from_json(one).namespace)
            for partition in range(runtime.partitions)
            for one in runtime.request(partition, "namespaces")
        }
        for name in map(format_table_id, namespaces):
            if name not in known:
                hint = like_known(name, known - {""}, "namespaces")
                raise NoSuchNamespace(f"the log has no namespace {name!r}.", hint=hint)

    def _folded(
        self, runtime: Runtime, positions: Mapping[int, int], deadline: float
    ) -> tuple[dict[str, TableAt], dict[TableId, Mapping[str, str]]]:
        self._folds = self._folds or Folds()
        tables: dict[str, TableAt] = {}
        spaces: dict[TableId, Mapping[str, str]] = {}
        for partition, sequence in positions.items():
            fold = self._folds.at(runtime, partition, sequence, deadline)
            tables |= {one.name: one for one in fold.tables.values()}
            spaces |= {name: dict(found) for name, found in fold.namespaces.items()}
        spaces.pop((), None)  # the log's own properties
        return tables, spaces
