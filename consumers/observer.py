"""What a decision looks at outside the log, and what it writes there before its outcome.

Deletion vectors are kept by path: their files never change, so a hot fragment's newest vector,
which the last decision wrote, is not read again. Builds run in side workers, one at a time per
table, and wait until the version that they build on has its file.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.codecs.deletion_file import decode_deletion_file
from commitlog.codecs.manifest_file import decode_manifest
from commitlog.core.decisions import (
    BuildWanted,
    Decision,
    FileWanted,
    Found,
    VectorWanted,
    Wanted,
)
from commitlog.errors import CommitLogError
from commitlog.lancepb.table_pb2 import DeletionFile
from commitlog.model.records import Observation
from consumers.follower import RECORDINGS

VECTORS_MAX = 2_000
BUILD_WAIT_SECONDS = 60.0

WaitFor = Callable[[str, int], "Future[int]"]


class StoreObserver:
    """Observes tables in their stores."""

    def __init__(
        self,
        tables_root: str,
        wait_for: WaitFor,
        *,
        open_store: Callable[[str], ObjectStore] = store_for,
        workers: int = 4,
    ) -> None:
        """Use `wait_for(incarnation, version)` to know that a version can be read."""
        self._open_store = open_store
        self._root = tables_root
        self._wait_for = wait_for
        self._stores: dict[str, ObjectStore] = {}
        self._vectors: OrderedDict[tuple[str, str], Found] = OrderedDict()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="build")
        self._lock = threading.Lock()

    def observe(self, wanted: Wanted) -> Found:
        """Fetch bytes or existence; raise OSError when the store fails."""
        assert not isinstance(wanted, BuildWanted)
        store = self._store(wanted.location)
        if isinstance(wanted, VectorWanted):
            return self._vector(store, wanted)
        if isinstance(wanted, FileWanted):
            return Found(Observation(wanted.path, store.size(wanted.path)))
        try:
            data = store.read(wanted.path)
        except FileNotFoundError:
            return Found(Observation(wanted.path, -1), error="there is no such file")
        observation = Observation(wanted.path, len(data), hashlib.sha256(data).digest())
        try:
            state, transaction = decode_manifest(data)
        except CommitLogError as error:
            return Found(observation, data=data, error=str(error))
        return Found(observation, data=data, state=state, transaction=transaction)

    def build(self, wanted: BuildWanted) -> Future[Found]:
        """Let pylance build a manifest in a side worker."""
        return self._pool.submit(self._build, wanted)

    def write(self, decision: Decision) -> None:
        """Put the decision's files; raise OSError when the store fails."""
        for file in decision.files:
            store = self._store(file.location)
            if not store.create(file.path, file.data) and store.read(file.path) != file.data:
                store.write(file.path, file.data)
            if file.path.startswith("_deletions/"):
                self._remember((file.location, file.path), file.data)
        for recording in decision.recordings:
            path = f"{RECORDINGS}/{hashlib.sha256(recording).hexdigest()}"
            self._store(self._root).create(path, recording)

    def close(self) -> None:
        """End the side workers."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _store(self, location: str) -> ObjectStore:
        store = self._stores.get(location)
        if store is None:
            store = self._stores[location] = self._open_store(location)
        return store

    def _vector(self, store: ObjectStore, wanted: VectorWanted) -> Found:
        key = (wanted.location, wanted.path)
        found = self._vectors.get(key)
        if found is not None:
            self._vectors.move_to_end(key)
            return found
        try:
            data = store.read(wanted.path)
        except FileNotFoundError:
            return Found(Observation(wanted.path, -1), error="there is no such deletion file")
        return self._remember(key, data)

    def _remember(self, key: tuple[str, str], data: bytes) -> Found:
        digest = hashlib.sha256(data).digest()
        observation = Observation(key[1], len(data), digest)
        arrow = key[1].endswith(".arrow")
        file_type = DeletionFile.ARROW_ARRAY if arrow else DeletionFile.BITMAP
        try:
            found = Found(observation, vector=decode_deletion_file(data, file_type))
        except CommitLogError as error:
            found = Found(observation, error=str(error))
        self._vectors[key] = found
        if len(self._vectors) > VECTORS_MAX:
            self._vectors.popitem(last=False)
        return found

    def _build(self, wanted: BuildWanted) -> Found:
        """Wait for the head's file, then for pylance; raise OSError if the store is to blame."""
        # Most logs never need pylance here, and it takes long to load.
        from commitlog.adapters.lance_builder import Build, BuildRefused, build

        head = wanted.version - 1
        try:
            self._wait_for(wanted.incarnation, head).result(BUILD_WAIT_SECONDS)
        except TimeoutError as error:
            raise OSError(f"version {head} has no file yet, so nothing can build on it") from error
        built = build(Build(wanted.location, head, wanted.message, wanted.schema_metadata))
        if isinstance(built, BuildRefused):
            if built.is_temporary:
                raise OSError(built.reason)
            return Found(Observation("", -1), error=built.reason)
        observation = Observation(
            built.staged_path, len(built.data), hashlib.sha256(built.data).digest()
        )
        return Found(observation, data=built.data, state=built.state)
