"""What a replay builds: where it is, where it was, and what came of tables' rows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from commitlog.adapters.storage import LocalStore, local_path, store_for
from commitlog.core.tables.lance_tables import Table, location_parts, normalize_location
from commitlog.errors import CommitLogError
from commitlog.lancepb.table_pb2 import DataFragment
from consumers.tools.verify.missing import own_files

_DATA, _DELETIONS = "data", "_deletions"

logger = logging.getLogger(__name__)

Rows = Literal["missing", "all", "none"]


@dataclass(frozen=True, slots=True)
class RebuiltTable:
    """What came of one table's rows."""

    table: str
    newest: int
    """The table's newest version."""
    version: int
    """The version whose rows were written again; 0: none is known to have been without rows."""
    rows: int = 0
    path: str = ""
    """Where they are; empty: there are none."""
    why: str = ""
    """Why later versions can't be written again; empty: it is the newest."""
    is_equal: bool = False
    """Whether the table's own rows were read, and are the same."""

    def __str__(self) -> str:
        equal = ", the same as the table's own" if self.is_equal else ""
        where = f" are in {self.path}{equal}" if self.path else ", there are none"
        said = f"{self.rows:,} rows of version {self.version}{where}" if self.version else ""
        if not self.why:
            return said
        later = f"versions {self.version + 1} to {self.newest} can't be written again: {self.why}"
        return "; ".join(filter(None, (said, later)))


@dataclass(frozen=True, slots=True)
class RowsPlace:
    """Where a table's rows are made again."""

    at: str
    """The table's old place."""
    made_in: Path
    put_at: Path
    """Where they come to once they are whole."""
    empty: tuple[int, int]
    """Where in the log the table had no rows last, and its version there; 0: it always had."""


class RebuiltPlaces:
    """Where things are in the rebuilt root, and where they were."""

    def __init__(self, tables_root: str, into: Path, against: Path | None) -> None:
        """Map the log's tables root; `against` is where the old root is now."""
        self._root = normalize_location(tables_root) if tables_root else ""
        self._into = into
        self._against = against

    def new(self, location: str) -> LocalStore:
        """Return the rebuilt place of a location."""
        return LocalStore(self._into / self.below(location))

    def below(self, location: str) -> Path:
        """Return the rebuilt place of a location, below the folder that is built in."""
        inside = self._inside(location)
        if inside is None:
            return Path("elsewhere", *location_parts(location)[1:])
        return Path("tables", *inside)

    def old(self, location: str) -> LocalStore:
        """Return the old place of a location: where the old root is now, else where it was."""
        return LocalStore(self._old_path(location) or self._into / "nowhere")

    def old_uri(self, location: str) -> str:
        """Return the same as a path or URI."""
        return str(self._old_path(location) or location)

    def has_data(self, table: Table) -> bool:
        """Return True if a table's newest version has its files, in its old or its new place.

        A place that can't be reached has none.
        """
        if table.manifest is None:
            return True
        there = self._names(table.location)
        fragments = map(DataFragment.FromString, table.manifest.fragments.values())
        return all(there.issuperset(own_files(fragment)) for fragment in fragments)

    def _names(self, location: str) -> frozenset[str]:
        """Return the paths of a table's data and deletion files in both of its places."""
        found: set[str] = set()
        try:
            is_local = self._old_path(location) is not None
            stores = (self.old(location) if is_local else store_for(location), self.new(location))
            for folder in (_DATA, _DELETIONS):
                for store in stores:
                    found.update(f"{folder}/{name}" for name in store.names(folder))
        except (OSError, CommitLogError) as error:
            logger.warning("%s can't be looked at for data files: %s", location, error)
        return frozenset(found)

    def _old_path(self, location: str) -> Path | None:
        inside, path = self._inside(location), local_path(location)
        if inside is not None and self._against is not None:
            moved = self._against.joinpath("tables", *inside)
            if moved.is_dir() or path is None or not path.is_dir():
                path = moved
        return path

    @property
    def is_old_seen(self) -> bool:
        """Whether the old root's tables can be seen."""
        path = local_path(self._root) if self._root else None
        moved = self._against / "tables" if self._against is not None else None
        return any(place is not None and place.is_dir() for place in (path, moved))

    def is_seen(self, location: str) -> bool:
        """Return True if a table's old place can be compared with."""
        if self._inside(location) is not None:
            return self.is_old_seen
        path = local_path(location)
        return path is not None and path.is_dir()

    def _inside(self, location: str) -> tuple[str, ...] | None:
        """Return the path below the tables root, None if it isn't below it."""
        if not self._root:
            return None
        parts, root = location_parts(location), location_parts(self._root)
        return parts[len(root) :] if parts[: len(root)] == root else None
