"""Whose files are at a place, and who may name it.

A table can be put at a place, or be made to name files there. What is in tables is for who may
read those. What is elsewhere below the tables root, files of tables that were dropped for
example, is for who may read everything, unless a table of the same name left it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lance_namespace.errors import PermissionDeniedError

from commitlog import CommitLog
from commitlog.core.iceberg.named_places import PLACE_PROPERTIES, of_snapshot
from commitlog.messages import IcebergDescription
from commitlog.model.table import TableId
from consumers.partition.allowed_places import AllowedPlaces, lies_in, meet
from consumers.partition.files.iceberg_files import below
from consumers.servers.security.grants import Access, Principal
from consumers.servers.security.identity import Security

UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,150}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_SHOWN_CHARACTERS = 100
_DIGEST_CHARACTERS = 16


def folder_name(part: str) -> str:
    """Return how the folder of a new Iceberg table says a part of its name.

    Clients take `#` and `?` for the end of an object's key, others `*` and `[` for a pattern, and
    no folder's name may be very long. What is changed so ends with a digest: no two names share
    a folder, and only such folders have a `~`.
    """
    if _PLAIN.fullmatch(part):
        return part
    digest = hashlib.sha256(part.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{_UNSAFE.sub('_', part)[:_SHOWN_CHARACTERS]}~{digest}"


class TablePlaces(AllowedPlaces):
    """The places of one log's tables, of both formats."""

    def __init__(self, log: CommitLog, security: Security, locations: Iterable[str] = ()) -> None:
        """Let who may read a table name its files; `locations` are allowed to everybody."""
        super().__init__(log.runtime().genesis.tables_root, locations)
        self._log = log
        self.security = security

    def others(self, place: str, table: TableId) -> list[tuple[TableId, str]]:
        """Return the other tables that have files where a place is, and where theirs are."""
        found = [(info.table_id, info.location) for info in self._log.tables()]
        runtime = self._log.runtime()
        for partition in range(runtime.partitions):
            told = runtime.request(partition, "iceberg_tables")
            found += [(one.table, _home(one)) for one in map(IcebergDescription.from_json, told)]
        return [(name, home) for name, home in found if name != table and meet(place, home)]

    def check(
        self, principal: Principal, table: TableId, place: str, *, own: Iterable[str] = ()
    ) -> None:
        """Refuse a place that a table may not name on a principal's behalf.

        `own` is where the table's files are, or where the log wants it.
        """
        if not self.security.is_on or any(lies_in(place, one) for one in own):
            return
        if not self.holds(place):
            raise PermissionDeniedError(
                f"{place} is outside of the tables root and of the allowed prefixes, or has no "
                "clear meaning; have the server's operator add it to allowed_locations"
            )
        self.check_reading(principal, place, table)

    def check_reading(self, principal: Principal, place: str, table: TableId = ()) -> None:
        """Refuse a place of files that a principal may not read; `table` is where it asks from."""
        if not self.security.is_on:
            return
        others = self.others(place, table)
        for name, _ in others:
            self.security.check(principal, Access.READ, name)
        is_in_table = any(lies_in(place, home) for _, home in others)
        if not (is_in_table or self.is_allowed(place) or self._is_home(table, place)):
            self.security.check(principal, Access.READ, ())

    def home(self, table: TableId) -> str:
        """Return where an Iceberg table's files are, empty if there is no such table."""
        runtime = self._log.runtime()
        told = runtime.request(runtime.domains.partition(table), "iceberg_table", table=list(table))
        return "" if told is None else _home(IcebergDescription.from_json(told))

    def _is_home(self, table: TableId, place: str) -> bool:
        """Return True if a place has the name that the log gives to one of this table's."""
        path = below(place, self.root)
        if path is None or not table:
            return False
        *spaces, name = table
        # Earlier releases used names as they are.
        names = ("/".join(map(folder_name, table)), "/".join(table))
        iceberg = f"(?:{'|'.join(map(re.escape, names))})-{UUID}"
        lance = re.escape("/".join([*(f"{one}.ns" for one in spaces), name])) + rf"-{UUID}\.lance"
        return re.fullmatch(f"(?:{iceberg}|{lance})(?:/.*)?", path) is not None


def _home(one: IcebergDescription) -> str:
    """Return where a table is: the leader tells of its metadata file alone.

    That is in its location, unless a property puts it elsewhere.
    """
    return one.metadata_location.rpartition("/")[0].removesuffix("/metadata")


def of_update(update: Mapping[str, Any]) -> Iterator[str]:
    """Yield the places that one update of an Iceberg table names."""
    snapshot = update.get("snapshot")
    if isinstance(snapshot, dict):
        yield from texts(*of_snapshot(snapshot))
    for name in ("statistics", "partition-statistics"):
        inner = update.get(name)
        if isinstance(inner, dict):
            yield from texts(inner.get("statistics-path"))
    yield from texts(update.get("location"))
    yield from of_properties(update.get("updates"))


def of_properties(properties: Any) -> list[str]:
    """Return the places that a table's properties name."""
    if not isinstance(properties, Mapping):
        return []
    return texts(*(properties.get(name) for name in PLACE_PROPERTIES))


def texts(*values: Any) -> list[str]:
    """Return what of some values is a text, and not empty."""
    return [value for value in values if isinstance(value, str) and value]
