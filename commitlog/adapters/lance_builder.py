"""Manifests that only pylance knows how to build: staged, read back, never published.

Pylance commits with `StagingNamespace` for its manifest store: it checks, builds and writes
`_versions/<name>.manifest-<uuid>`, which no reader sees. What it built counts only if the
transaction in it equals what it was told in every field; what its Python objects cannot hold is
put into the manifest afterwards. Of a build nothing stays but the staged manifest: the file of the
transaction is the materializer's, once it is committed.

A build runs in a daemon thread of its own, so that the caller has a deadline and a pylance that
hangs holds up one table and not the program. A build that ends after its deadline removes what it
staged.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import lance
from google.protobuf.message import DecodeError, Message

from commitlog.adapters.builds import Build, BuildRefused, Built
from commitlog.adapters.lance_namespace import StagedManifest, StagingNamespace
from commitlog.adapters.places import bound
from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.adapters.storage_options import storage_options
from commitlog.codecs.lance_operations import NotConstructible, to_lance_operation
from commitlog.codecs.lance_schema import SchemaMetadata
from commitlog.codecs.manifest_file import (
    TRANSACTIONS_DIRECTORY,
    NamingScheme,
    decode_manifest,
    manifest_path,
    transaction_path,
)
from commitlog.core.lance.completion import complete, sayable, schema_metadata
from commitlog.core.manifest.feature_flags import FLAG_DATA_OVERLAY_FILES
from commitlog.core.manifest.manifest_state import DeltaRefused, ManifestState
from commitlog.errors import CommitLogError, CorruptLog, UnsupportedFormat
from commitlog.lancepb.table_pb2 import IndexSection
from commitlog.lancepb.transaction_pb2 import Transaction

BUILD_TIMEOUT_SECONDS = 60.0
OVERLAYS_ENABLED_BY = "LANCE_ENABLE_UNSTABLE_DATA_OVERLAY_FILES"
"""Lance 14 always writes overlays, but opens a table that has them only if this is set."""


_UNSAYABLE = (
    *(NotConstructible, DeltaRefused, DecodeError, UnsupportedFormat),
    *(ValueError, OverflowError),
)


def build(task: Build, *, timeout_seconds: float = BUILD_TIMEOUT_SECONDS) -> Built | BuildRefused:
    """Have pylance build and stage a manifest; wait at most `timeout_seconds`."""
    running = start_build(task, timeout_seconds=timeout_seconds)
    try:
        return running.result(timeout_seconds)
    except TimeoutError:
        return _too_late(timeout_seconds)


def start_build(
    task: Build, *, timeout_seconds: float = BUILD_TIMEOUT_SECONDS
) -> Future[Built | BuildRefused]:
    """Begin a build and return at once; what ends after the deadline is removed again."""
    future: Future[Built | BuildRefused] = Future()
    future.set_running_or_notify_cancel()
    deadline = time.monotonic() + timeout_seconds

    def work() -> None:
        try:
            built = _build(task)
            if time.monotonic() > deadline and isinstance(built, Built):
                discard(task, built.staged_path)
                built = _too_late(timeout_seconds)
            future.set_result(built)
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="commitlog-build", daemon=True).start()
    return future


def discard(task: Build, staged_path: str) -> None:
    """Remove what a build left: the staged manifest and its transaction file."""
    store = store_for(task.location)
    if staged_path:
        store.delete(staged_path)
    _discard_transaction(store, Transaction.FromString(task.message))


def _discard_transaction(store: ObjectStore, message: Transaction) -> None:
    store.delete(f"{TRANSACTIONS_DIRECTORY}/{message.read_version}-{message.uuid}.txn")


def _too_late(timeout_seconds: float) -> BuildRefused:
    return BuildRefused(
        f"pylance did not build the manifest within {timeout_seconds:g} s", is_temporary=True
    )


def _build(task: Build) -> Built | BuildRefused:
    try:
        whole = Transaction.FromString(task.message)
        message = sayable(whole)
        metadata = task.schema_metadata
        if metadata is None:
            metadata = schema_metadata(whole) or _standing_metadata(task, message)
        operation = to_lance_operation(message, metadata)
    except _UNSAYABLE as error:
        # Also what a constructor of pylance's says of an id or a number: it is in the message.
        return BuildRefused(str(error))
    store = store_for(task.location)
    scheme = _scheme(store, task.head)
    missing = _restored_without_file(store, message, scheme)
    if missing:
        return BuildRefused(
            f"version {missing} has no manifest file: under the policy `latest` it was never "
            "written, or it was deleted; open this version through the log, which writes it, "
            "and restore again"
        )
    namespace = StagingNamespace(task.location, task.head, scheme)
    transaction = lance.Transaction(
        read_version=message.read_version,
        operation=operation,
        uuid=message.uuid,
        transaction_properties=dict(message.transaction_properties),
    )
    failure = _stage(task.location, transaction, namespace)
    staged = namespace.staged[-1] if namespace.staged else None
    for earlier in namespace.staged[:-1]:
        store.delete(earlier.path)
    built = failure or _read_back(task, message, whole, staged)
    if isinstance(built, Built):
        _discard_transaction(store, message)
    else:
        discard(task, staged.path if staged else "")
    return built


def _scheme(store: ObjectStore, head: int) -> NamingScheme:
    for scheme in (NamingScheme.V2, NamingScheme.V1):
        if store.size(manifest_path(head, scheme)) >= 0:
            return scheme
    raise CorruptLog(f"version {head} has no manifest file; it must be written before the next one")


def _standing_metadata(task: Build, message: Transaction) -> SchemaMetadata:
    """Return the schema metadata that a change of columns keeps; pylance clears what isn't said."""
    if not (message.HasField("merge") or message.HasField("project")):
        return ()
    store = store_for(task.location)
    path = manifest_path(task.head, _scheme(store, task.head))
    state, _ = decode_manifest(store.read(path))
    return tuple(sorted(state.header.message.schema_metadata.items()))


def _restored_without_file(store: ObjectStore, message: Transaction, scheme: NamingScheme) -> int:
    """Return the version that is to be restored if pylance couldn't open it, 0 if it could."""
    version = message.restore.version
    is_missing = message.HasField("restore") and store.size(manifest_path(version, scheme)) < 0
    return version if is_missing else 0


def _stage(location: str, transaction: Any, namespace: StagingNamespace) -> BuildRefused | None:
    """Run pylance's commit; return why it failed."""
    try:
        lance.LanceDataset.commit(
            bound(location),
            transaction,
            read_version=transaction.read_version,
            max_retries=1,
            storage_options=storage_options(location) or None,
            namespace_client=namespace,
            table_id=["table"],
            namespace_client_managed_versioning=True,
        )
    except (
        OSError,
        ValueError,
        TypeError,
        OverflowError,
        RuntimeError,
        NotImplementedError,
    ) as error:
        text = str(error)
        full = "No space left" in text or "disk" in text.lower()
        return BuildRefused(f"pylance: {text}", is_temporary=full)
    except BaseException as error:
        # A panic in Rust arrives as a class that derives from BaseException alone.
        if type(error).__name__ != "PanicException":
            raise
        return BuildRefused(f"pylance panicked: {error}")
    return None


def _read_back(
    task: Build, message: Transaction, whole: Transaction, staged: StagedManifest | None
) -> Built | BuildRefused:
    """Return what pylance staged, with what it wasn't told; refuse what isn't the transaction's."""
    if staged is None:
        return BuildRefused("pylance committed without staging a manifest")
    if staged.version != task.head + 1:
        return BuildRefused(
            f"pylance staged version {staged.version} instead of {task.head + 1}: the table's "
            "location has a manifest that the log doesn't know",
            is_temporary=True,
        )
    store = store_for(task.location)
    data = store.read(staged.path)
    try:
        state, inline = decode_manifest(data)
    except CommitLogError as error:
        return BuildRefused(f"pylance's manifest cannot be read: {error}")
    if inline is None:
        inline = store.read(transaction_path(state))
    difference = next(differences(message, Transaction.FromString(inline)), "")
    if difference:
        return BuildRefused(f"pylance changed the transaction's field {difference}")
    if state.reader_feature_flags & FLAG_DATA_OVERLAY_FILES and not _reads_overlays():
        return BuildRefused(
            "with a data overlay, pylance could no longer open the table: overlays are unstable in "
            f"Lance 14; set {OVERLAYS_ENABLED_BY}=1 for the committer and for all readers"
        )
    _own_indices(state, message)
    if message is not whole:
        try:
            complete(state, whole)
        except DeltaRefused as error:
            return BuildRefused(str(error))
    return Built(data, state, staged.path)


def _own_indices(state: ManifestState, message: Transaction) -> None:
    """Have readers of a clone look for remapped indices where they are: at the clone.

    Pylance writes them there, and keeps the base of those that they replace.
    """
    new = {index.new_id.uuid for index in message.rewrite.rewritten_indices}
    if not new or not state.index_section:
        return
    section = IndexSection.FromString(state.index_section)
    for index in section.indices:
        if index.uuid.uuid in new:
            index.ClearField("base_id")
    state.index_section = section.SerializeToString(deterministic=True)


def _reads_overlays() -> bool:
    return os.environ.get(OVERLAYS_ENABLED_BY, "").lower() in {"1", "true", "on", "yes", "y"}


def differences(submitted: Message, built: Message, path: str = "") -> Iterator[str]:
    """Yield the fields in which two messages of one type differ, outermost name first."""
    for field in submitted.DESCRIPTOR.fields:
        name = f"{path}{field.name}"
        ours, theirs = getattr(submitted, field.name), getattr(built, field.name)
        if field.has_presence and submitted.HasField(field.name) != built.HasField(field.name):
            yield name
        elif ours == theirs:
            continue
        elif isinstance(ours, Message):
            yield from differences(ours, theirs, f"{name}.")
        elif field.is_repeated and field.message_type and not _is_map(field):
            if len(ours) != len(theirs):
                yield f"{name} ({len(ours)} entries, pylance has {len(theirs)})"
            for index, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
                yield from differences(mine, other, f"{name}[{index}].")
        else:
            yield name
    mine = submitted.SerializeToString(deterministic=True)
    if not path and mine != built.SerializeToString(deterministic=True) and submitted != built:
        yield "of a newer Lance"


def _is_map(field: Any) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)
