"""What a decision looks at outside the log, and what it writes there before its outcome.

Deletion vectors are kept by path: their files never change, so a hot fragment's newest vector,
which the last decision wrote, is not read again. Builds run in side workers, one at a time per
table.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial

from commitlog.adapters.bounded_reads import TooLarge, read_at_most
from commitlog.adapters.builds import Build, BuildRefused
from commitlog.adapters.disk import expect_there
from commitlog.adapters.places import bound, stays
from commitlog.adapters.recordings import RECORDINGS
from commitlog.adapters.storage import LocalStore, ObjectStore, sha256_of, store_for
from commitlog.codecs.deletion_file import found_deletions
from commitlog.codecs.manifest_file import decode_manifest
from commitlog.core.decisions import (
    BuildWanted,
    BytesWanted,
    Decision,
    FileToWrite,
    FileWanted,
    FilteredWanted,
    Found,
    ListDeltaWanted,
    ListsWanted,
    PlaceWanted,
    RootWanted,
    VectorWanted,
    Wanted,
)
from commitlog.core.manifest.feature_flags import why_unreadable
from commitlog.core.partition.machine import Machine
from commitlog.errors import CommitLogError, InvalidSettings, Unavailable
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import ICEBERG_LIST_BYTES_MAX
from commitlog.model.records import Observation
from commitlog.model.table import TableId
from commitlog.newest import Newest
from consumers.partition.allowed_places import AllowedPlaces
from consumers.partition.manifest_lists import ManifestLists
from consumers.partition.obstacles import Obstacle, put

VECTORS_MAX = 2_000
STORES_MAX = 10_000
_IMPOSSIBLE = frozenset(
    {errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.ENOTDIR, errno.ENXIO}
)
"""Errors that trying again doesn't mend."""

logger = logging.getLogger(__name__)

WriteVersion = Callable[[TableId, int], str]
Path = tuple[str, str]
"""A location, and a path below it."""


def unbuilt(machine: Machine, wanted: BuildWanted) -> Found:
    """Return what stands for a manifest in a dry run: the head's, under the next version.

    Lance may still refuse to build the real one; all else about the transaction is decided.
    """
    head = machine.tables[wanted.table].manifest
    assert head is not None
    state = head.fork()
    state.version = wanted.version - 1 if wanted.target else wanted.version
    return Found(Observation("", -1), state=state)


class StoreObserver:
    """Looks at what a decision needs outside the log, and writes what it leaves there.

    What may take long runs on workers, and knows nothing of the loop's; the rest on the loop.
    """

    def __init__(
        self,
        tables_root: str,
        *,
        open_store: Callable[[str], ObjectStore] = store_for,
        write_version: WriteVersion | None = None,
        places: AllowedPlaces | None = None,
    ) -> None:
        """Look below locations, and below `tables_root` for what is recorded outside outcomes.

        `write_version(table, version)` writes the manifest of an older version that has none, as
        most have under the policy `latest`. `places` says where base paths and symbolic links may
        lead; without it, anywhere.
        """
        self._open_store = open_store
        self._root = tables_root
        self._places = places
        self._write_version = write_version
        self._stores: Newest[str, ObjectStore] = Newest(STORES_MAX)
        self._vectors: Newest[tuple[str, str], Found] = Newest(VECTORS_MAX)
        self._lists = ManifestLists()
        self._lock = threading.Lock()

    def observe(self, wanted: Wanted) -> Found:
        """Fetch bytes or existence; raise OSError when the store fails.

        A place that no store can have counts as empty, so a record that names one delays no other.
        """
        assert not isinstance(wanted, BuildWanted)
        if isinstance(wanted, PlaceWanted):
            return Found(Observation(wanted.path, 0 if self._allows(wanted.path) else -1))
        if isinstance(wanted, RootWanted):
            return _root(wanted)
        try:
            found = self._look(self._store(wanted.location), wanted)
            expect_there(bound(wanted.location))
            return found
        except TooLarge as error:
            return Found(Observation(wanted.path, error.size), error=str(error))
        except InvalidSettings as error:
            # This process's fault: no reason to say that nothing is there.
            raise OSError(str(error)) from error
        except (CommitLogError, ValueError) as error:
            return Found(Observation(wanted.path, -1), error=str(error))
        except OSError as error:
            if error.errno not in _IMPOSSIBLE:
                raise
            return Found(Observation(wanted.path, -1), error=str(error))

    def _look(self, store: ObjectStore, wanted: Wanted) -> Found:
        assert not isinstance(wanted, BuildWanted | PlaceWanted | RootWanted)
        if self._places is not None and isinstance(store, LocalStore):
            target = store.link_target(wanted.path)
            if target is not None and not self._allows(target):
                return Found(Observation(wanted.path, -1), error=f"it is a link to {target}")
        if isinstance(wanted, ListDeltaWanted | ListsWanted | FilteredWanted):
            return self._lists.look(wanted, partial(self._read_allowed, store))
        if isinstance(wanted, VectorWanted):
            store.keep(wanted.path)
            try:
                return found_deletions(wanted.path, read_at_most(store, wanted.path))
            except FileNotFoundError:
                return Found(Observation(wanted.path, -1), error="there is no such deletion file")
        if isinstance(wanted, FileWanted):
            store.keep(wanted.path)
            return Found(Observation(wanted.path, store.size(wanted.path)))
        try:
            data = read_at_most(store, wanted.path, wanted.bytes_max)
        except FileNotFoundError:
            return Found(Observation(wanted.path, -1), error="there is no such file")
        observation = Observation.of(wanted.path, data)
        if isinstance(wanted, BytesWanted):
            return Found(observation, data=data)
        try:
            state, transaction = decode_manifest(data)
        except CommitLogError as error:
            return Found(observation, error=why_unreadable(error))
        return Found(observation, state=state, transaction=transaction)

    def _read_allowed(self, store: ObjectStore, path: str) -> bytes:
        """Return a file's bytes; a link to where the leader may not read leads nowhere."""
        target = store.link_target(path) if isinstance(store, LocalStore) else None
        if target is not None and not self._allows(target):
            raise FileNotFoundError(f"{path} is a link to {target}")
        return read_at_most(store, path, ICEBERG_LIST_BYTES_MAX)

    def _allows(self, place: str) -> bool:
        return self._places is None or self._places.holds(place)

    def known(self, wanted: Wanted) -> Found | None:
        """Return what needs no look, None if it does; on the loop."""
        if isinstance(wanted, PlaceWanted):
            return Found(Observation(wanted.path, 0 if self._allows(wanted.path) else -1))
        if isinstance(wanted, RootWanted):
            return _root(wanted)
        found = None
        if isinstance(wanted, ListsWanted) and self._lists.knows(wanted):
            store = self._store(wanted.location)
            return self._lists.look(wanted, partial(self._read_allowed, store))
        if isinstance(wanted, VectorWanted):
            found = self._vectors.get((wanted.location, wanted.path))
            if found is not None:
                self._vectors.move_to_end((wanted.location, wanted.path))
        return found

    def learn(self, wanted: Wanted, found: Found) -> None:
        """Keep a deletion vector that a look found: it will be asked for again; on the loop."""
        if isinstance(wanted, VectorWanted) and found.observation.size >= 0:
            self._vectors[wanted.location, wanted.path] = found

    def wrote(self, decision: Decision) -> None:
        """Keep the deletion vectors that a decision wrote; on the loop."""
        for file in decision.files:
            if file.vector is not None:
                wanted = VectorWanted(file.location, file.path)
                observation = Observation(file.path, len(file.data), file.digest)
                self.learn(wanted, Found(observation, vector=file.vector))

    def look_all(self, wanted: Sequence[Wanted]) -> list[Found | OSError | MemoryError]:
        """Fetch bytes or existence, on a worker; an error where the store or the memory fails."""
        found: list[Found | OSError | MemoryError] = []
        for one in wanted:
            try:
                found.append(self.observe(one))
            except (OSError, MemoryError) as error:
                found.append(error)
        return found

    def write(
        self,
        files: Sequence[FileToWrite],
        recordings: Sequence[bytes],
        ours: Container[Path],
        displaced: Mapping[Path, Obstacle],
    ) -> dict[Path, Obstacle]:
        """Put files, on a worker; return what is in the way. Raise OSError when the store fails.

        `ours` are those that were written before, for the same transaction, with other content.
        What is to be `displaced` was in the way before.
        """
        found = {}
        for file in files:
            place = (file.location, file.path)
            store, gone = self._store(file.location), displaced.get(place)
            way = put(store, *place, file.data, gone, is_ours=place in ours)
            if way is not None:
                found[place] = way
        for recording in recordings:
            path = f"{RECORDINGS}/{sha256_of(recording)}"
            self._store(self._root).create(path, recording)
        return found

    def _store(self, location: str) -> ObjectStore:
        with self._lock:
            store = self._stores.get(location)
        if store is None:
            store = self._open_store(location)
            with self._lock:
                self._stores[location] = store
        return store

    def forget(self, location: str) -> None:
        """Keep nothing of a table that is gone; on the loop."""
        with self._lock:
            self._stores.pop(location, None)
        for key in [key for key in self._vectors if key[0] == location]:
            del self._vectors[key]

    def _bring_back(self, wanted: BuildWanted) -> None:
        """Write the manifest of the older version that a Restore or Clone reads."""
        message = Transaction.FromString(wanted.message)
        version = message.restore.version or message.clone.ref_version
        if not version or self._write_version is None:
            return
        try:
            self._write_version(wanted.table, version)
        except Unavailable as error:
            raise OSError(f"version {version} cannot be written now: {error}") from error
        except CommitLogError as error:
            # The build will not find it, and says so.
            logger.warning("version %d cannot be brought back: %s", version, error)

    def build(self, wanted: BuildWanted) -> Found:
        """Have pylance build on a version that has its file, on a worker.

        Raise OSError if the store is to blame.
        """
        # Most logs never need pylance here, and it takes long to load.
        from commitlog.adapters.cloning import build_clone
        from commitlog.adapters.lance_builder import build

        head = wanted.version - 1
        self._bring_back(wanted)
        task = Build(wanted.location, head, wanted.message, wanted.schema_metadata)
        built = build_clone(task, wanted.target) if wanted.target else build(task)
        expect_there(bound(wanted.location))
        if isinstance(built, BuildRefused):
            if built.is_temporary:
                raise OSError(built.reason)
            return Found(Observation("", -1), error=built.reason)
        observation = Observation.of(built.staged_path, built.data)
        return Found(observation, data=built.data, state=built.state)


def _root(wanted: RootWanted) -> Found:
    name = wanted.path if wanted.path != wanted.location else ""
    return Found(Observation(wanted.path, 0 if stays(wanted.location, name) else -1))
