"""Builds clones: reads the source's manifest, and copies its files if the clone is a deep one.

A deep clone's files are all copied before anybody hears of the table; if one of them cannot be,
those that were copied are removed again.
"""

from __future__ import annotations

from collections.abc import Iterator

from commitlog.adapters.builds import Build, BuildRefused, Built
from commitlog.adapters.lance_refs import manifest_in
from commitlog.adapters.places import is_moved
from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.codecs.manifest_file import (
    VERSIONS_DIRECTORY,
    decode_manifest,
    encode_manifest,
    manifest_path,
)
from commitlog.core.manifest.manifest_state import DeltaRefused, ManifestState
from commitlog.core.operations.clone import Original, cloned, originals
from commitlog.errors import CommitLogError
from commitlog.lancepb.transaction_pb2 import Transaction


def build_clone(task: Build, target: str) -> Built | BuildRefused:
    """Return the first manifest of a clone of `task`'s head, at the location `target`.

    Raises OSError if a store fails; then nothing is left behind.
    """
    transaction = Transaction.FromString(task.message)
    branch = transaction.clone.branch_name
    if transaction.clone.is_shallow and is_moved(task.location):
        return BuildRefused(
            f"the clone's files would name {task.location}, which was moved: make a deep clone"
        )
    if branch and any(store_for(target).names(VERSIONS_DIRECTORY)):
        return BuildRefused(
            f"branch {branch!r} already exists, and was not created through the log: choose "
            "another name"
        )
    try:
        source = _source(task)
        name = f"{transaction.read_version}-{transaction.uuid}.txn"
        state = cloned(source, transaction.clone, name)
    except FileNotFoundError:
        return BuildRefused(
            f"version {task.head} of {task.location} has no manifest file: under the policy "
            "`latest` it was never written, or it was deleted; open this version through the "
            "log, which writes it, and clone again"
        )
    except (DeltaRefused, CommitLogError) as error:
        return BuildRefused(str(error))
    if not transaction.clone.is_shallow:
        missing = _copy_all(task.location, target, originals(source))
        if missing:
            return BuildRefused(f"{missing} does not exist, so the clone would be incomplete")
    return Built(encode_manifest(state, task.message), state, "")


def _source(task: Build) -> ManifestState:
    store = store_for(task.location)
    path = manifest_in(store, task.head) or manifest_path(task.head)
    state, _ = decode_manifest(store.read(path))
    return state


def _copy_all(location: str, target: str, wanted: list[Original]) -> str:
    """Copy all or nothing; return a file that is missing, if one is."""
    copied: list[str] = []
    to = store_for(target)
    sources = {root: store_for(root) for root in {one.root or location for one in wanted}}
    try:
        for original in wanted:
            source = sources[original.root or location]
            for path in _paths(source, original):
                copied.append(path)
                to.take(path, source)
    except BaseException as error:
        for path in copied:
            to.delete(path)
        if isinstance(error, FileNotFoundError):
            return copied[-1]
        raise
    return ""


def _paths(source: ObjectStore, original: Original) -> Iterator[str]:
    if not original.is_folder:
        yield original.path
        return
    for name in source.names(original.path):
        yield f"{original.path}/{name}"
