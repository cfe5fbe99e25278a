"""What a request may reach through a table: its own place, and what its manifests name besides.

A manifest can name other places (base paths), and a symbolic link can lead to them. The server
reads them with its own rights, so each has to be a place that it may serve and that the caller
may read: a table's files if the caller may read that table, other files below the tables root if it
may read everything.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from lance_namespace.errors import PermissionDeniedError

from commitlog.adapters.lance_datasets import Gate
from commitlog.adapters.storage import local_path
from commitlog.newest import Newest
from consumers.partition.allowed_places import lies_in
from consumers.servers.security.grants import Principal
from consumers.servers.security.places import TablePlaces

_FOLDERS_REMEMBERED_MAX = 10_000
_NO_ROWS = frozenset({"_versions", "_transactions"})
"""Folders whose files name others, and hold no rows: what they name is checked."""


class _Folder(NamedTuple):
    """What was found in a folder."""

    changed_at: int
    links: tuple[str, ...] = ()
    """What the symbolic links in it resolve to."""
    folders: tuple[str, ...] = ()


class Reach:
    """Decides for all requests. Thread-safe."""

    def __init__(self, places: TablePlaces) -> None:
        """Serve these places, to whom the grants let."""
        self._places = places
        self._folders: Newest[str, _Folder] = Newest(_FOLDERS_REMEMBERED_MAX)
        self._lock = threading.Lock()

    def gate(self, principal: Principal) -> Gate:
        """Return what lets a principal's requests through."""
        return partial(self._check, principal)

    def _check(
        self, principal: Principal, location: str, bases: Iterable[str], is_read: bool
    ) -> None:
        if not self._places.holds(location):
            raise PermissionDeniedError(
                f"{location} is outside of the tables root and of the allowed prefixes, so it isn't"
                " served here; have the server's operator add it to allowed_locations"
            )
        # A commit puts files there, so it would list them all each time.
        for place in (*bases, *(self._links_of(location) if is_read else ())):
            self._check_place(principal, location, place)

    def _check_place(self, principal: Principal, location: str, place: str) -> None:
        if lies_in(place, location):
            return
        if not self._places.holds(place):
            raise PermissionDeniedError(
                f"the table at {location} reaches {place}, which is outside of the tables root and"
                " of the allowed prefixes; have the server's operator add it to allowed_locations"
            )
        self._places.check_reading(principal, place)

    def _links_of(self, location: str) -> tuple[str, ...]:
        """Return where symbolic links among a table's files lead."""
        root = local_path(location)
        if root is None:
            return ()
        found: list[str] = []
        folders = [str(root)]
        while folders:
            listed = self._listed(folders.pop())
            found += listed.links
            folders += listed.folders
        return tuple(found)

    def _listed(self, folder: str) -> _Folder:
        """List a folder, unless nothing was put there or renamed since it was last listed."""
        try:
            changed_at = os.stat(folder).st_ctime_ns
        except OSError:
            return _Folder(0)
        found = self._folders.get(folder)
        if found is None or found.changed_at != changed_at:
            found = _list(folder, changed_at)
            with self._lock:
                self._folders[folder] = found
        return found


def _list(folder: str, changed_at: int) -> _Folder:
    links, folders = [], []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                links.append(os.path.realpath(entry.path))
            elif entry.name not in _NO_ROWS and entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
    return _Folder(changed_at, tuple(links), tuple(folders))
