"""Manifests that clients staged, read and made into operations of the log.

A path is confined to the table's own `_versions`, and everything is read and checked before
anything is appended. The transaction in the manifest names the commit, so that a client that asks
twice commits once; each of a client's tries, after it rebased, is an attempt of that id.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lance_namespace import (
    ConcurrentModificationError,
    InvalidInputError,
    UnsupportedOperationError,
)

from commitlog.adapters.lance_datasets import check_gate
from commitlog.adapters.lance_namespace import relative_path
from commitlog.adapters.lance_refs import guard_from_cleanup
from commitlog.adapters.shown_values import python_rows
from commitlog.adapters.storage import LocalStore, local_path, store_for
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.contents import contents, summary
from commitlog.client.rows.lance_request import parse_message
from commitlog.client.rows.opening import is_there
from commitlog.client.rows.written_keys import (
    WrittenKeys,
    as_carried,
    read_written_keys,
    standing_keys,
)
from commitlog.codecs.manifest_file import decode_manifest, parse_manifest_name, transaction_path
from commitlog.core.conflicts.write_sets import kind_of
from commitlog.core.decisions import INTERNAL
from commitlog.core.lance.staged_keys import keys_in, with_keys
from commitlog.core.manifest.data_files import data_files
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.errors import CommitLogError
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import CreateTableVersion, LanceCommit
from consumers.partition.allowed_places import lies_in
from consumers.servers.vending.vendor import Subject

_BUILT_OVER_ANY_HEAD = frozenset(
    {"Append", "CreateIndex", "Project", "ReserveFragments", "Rewrite", "UpdateConfig"}
)
"""What a client means whatever others commit before it, if the grid finds no conflict. Deletes and
updates aren't: a client that misses its own commit would carry them out once more."""
_SAYS_ITS_FILES = frozenset({"append", "delete", "overwrite", "rewrite", "update"})
SCHEMES = ("V1", "V2")
VERSION_FIELDS = {
    *("version", "branch", "manifest_path", "manifest_size", "e_tag", "metadata", "naming_scheme")
}
"""What is said of a version that is staged."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged manifest as an operation, and the id of the transaction in it."""

    operation: CreateTableVersion
    transaction_id: str


class StagedManifestMissing(InvalidInputError):
    """There is no manifest of the version where a client says that it staged one."""


def check_fields(request: Any) -> None:
    """Refuse what no table can be asked for."""
    scheme = request.naming_scheme
    if scheme is not None and scheme not in SCHEMES:
        raise InvalidInputError(f"naming_scheme must be V1 or V2, not {scheme!r}")
    if request.version < 1:
        raise InvalidInputError(
            f"version {request.version} cannot be created: versions are numbered from 1, "
            "and the log does not keep detached versions"
        )
    for name in request.metadata or ():
        if name.startswith(INTERNAL):
            raise InvalidInputError(
                f"metadata {name!r} is the log's own to say; choose a name that doesn't begin with "
                f"{INTERNAL}"
            )


def read_staged(target: Subject, request: Any, info: TableInfo | None = None) -> Staged:
    """Read and check a staged manifest; nothing was appended if it raises.

    `target` is a table that exists, or one that the same request declares.
    `info` describes a table that exists, which may declare a key.
    """
    check_fields(request)
    if request.branch and request.branch != "main":
        raise UnsupportedOperationError(
            f"branch {request.branch!r}: this commits to the main branch only; use "
            "version/create for other branches"
        )
    path = relative_path(target.location, request.manifest_path)
    scheme = _checked_scheme(path, request)
    data = staged_bytes(target.location, path, request)
    try:
        state, message = decode_manifest(data)
        if message is None:
            message = read_confined(target.location, transaction_path(state))
        lance_message = parse_message(message)
    except (CommitLogError, ValueError, OSError) as error:
        raise InvalidInputError(
            f"{request.manifest_path!r} is not a Lance manifest with an inline transaction: {error}"
        ) from error
    check_state(target.location, state, request, _new_links(target.location, lance_message))
    guard_from_cleanup(target.location, state.header.message.config)
    if not lance_message.uuid:
        raise InvalidInputError(f"the transaction in {request.manifest_path!r} has no uuid")
    written = read_written_keys(info, lance_message) if info is not None else None
    operation = CreateTableVersion(
        table=target.table,
        version=request.version,
        manifest_path=path,
        manifest_size=len(data),
        e_tag=request.e_tag or "",
        naming_scheme=scheme,
        sha256=hashlib.sha256(data).digest(),
        message=message,
        operation=kind_of(lance_message),
        incarnation=target.uuid,
        metadata=with_keys(_metadata(request.metadata), as_carried(written)),
    )
    if info is not None and written is not None:
        _refuse_standing_keys(info, operation, lance_message, written)
    return Staged(operation, lance_message.uuid)


def staged_bytes(location: str, path: str, request: Any) -> bytes:
    """Return the bytes of the manifest that a request says is staged, if they are as many."""
    try:
        data = read_confined(location, path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise StagedManifestMissing(
            f"the staged manifest {request.manifest_path!r} does not exist"
        ) from error
    if request.manifest_size is not None and request.manifest_size != len(data):
        raise InvalidInputError(
            f"manifest_size is {request.manifest_size}, but {request.manifest_path!r} has "
            f"{len(data)} bytes"
        )
    return data


def check_state(
    location: str, state: ManifestState, request: Any, links: Sequence[str] | None = None
) -> None:
    """Refuse a manifest of places that the caller may not read, or of another version.

    `links` are where those of the new files lead, if these are known: all others are older.
    """
    bases = [base.path for base in state.header.message.base_paths]
    check_gate(location, [*bases, *(links or ())], is_read=links is None)
    if state.version != request.version:
        raise InvalidInputError(
            f"{request.manifest_path!r} holds version {state.version}, not {request.version}"
        )


def _new_links(location: str, message: Transaction) -> list[str] | None:
    """Return where symbolic links among a transaction's files lead; None if it isn't so plain."""
    which, added, changed, _ = contents(message)
    folder = local_path(f"{location}/data")
    names = {file.path for fragment in (*added, *changed) for file in data_files(fragment)}
    if which not in _SAYS_ITS_FILES or folder is None or "/" in "".join(names):
        return None
    paths = (str(folder), *(f"{folder}/{name}" for name in names))
    return [os.path.realpath(path) for path in paths if os.path.islink(path)]


def is_built_over_any_head(staged: Staged) -> bool:
    """Return True if the leader can build a staged version over any head, with nothing to keep."""
    made = staged.operation
    return made.operation in _BUILT_OVER_ANY_HEAD and not any(
        not name.startswith(INTERNAL) for name, _ in made.metadata
    )


def as_commit(staged: Staged, info: TableInfo) -> LanceCommit:
    """Return the transaction of a staged version, for the leader to build it over the head."""
    made = staged.operation
    message = parse_message(made.message)
    _, added, changed, removed = contents(message)
    return LanceCommit(
        table=made.table,
        operation=made.operation,
        read_version=message.read_version,
        message=made.message,
        incarnation=made.incarnation,
        inserted_keys=keys_in(made.metadata) if info.primary_key else None,
        summary=summary(added, changed, removed, ()),
    )


def read_confined(location: str, path: str) -> bytes:
    """Return the bytes of a table's file; InvalidInputError for a link out of it, or for a pipe."""
    store = store_for(location)
    target = store.link_target(path) if isinstance(store, LocalStore) else None
    if target is not None and not lies_in(target, location):
        raise InvalidInputError(
            f"{path!r} is a symbolic link that leads out of the table; write the file itself"
        )
    try:
        return store.read(path)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise InvalidInputError(f"{path!r} is no file, but a pipe or a device") from error


def _refuse_standing_keys(
    info: TableInfo, operation: CreateTableVersion, message: Transaction, written: WrittenKeys
) -> None:
    """Refuse an upsert of a key that somebody inserted behind its back.

    The leader compares keys since the version that was read, which only our own handles tell.
    """
    if not message.HasField("update"):
        return
    before = operation.version - 1
    if before != info.version:
        return  # the leader refuses what doesn't follow its head
    if not is_there(info.location, before):
        raise InvalidInputError(
            f"version {before} of {info.name}, which this one is to follow, has no manifest file to"
            " compare keys with: read the table again"
        )
    found = standing_keys(info, message.update, written, before)
    if found is not None:
        raise ConcurrentModificationError(
            f"{info.name} already has rows with the keys {list(python_rows(found))}: they "
            "were inserted after this upsert read the table. Read the table and merge again"
        )


def _checked_scheme(path: str, request: Any) -> str:
    """Return after which scheme a manifest is named, if it is as the request says."""
    name = parse_manifest_name(path.rsplit("/", 1)[1])
    assert name is not None
    if path.startswith("tree/"):
        raise InvalidInputError(f"{request.manifest_path!r} is of a branch: name it as `branch`")
    if name.version != request.version:
        raise StagedManifestMissing(
            f"{request.manifest_path!r} names version {name.version}, not {request.version}"
        )
    if request.naming_scheme is not None and name.scheme != request.naming_scheme:
        raise InvalidInputError(
            f"{request.manifest_path!r} is named after {name.scheme}, and naming_scheme is"
            f" {request.naming_scheme}"
        )
    return name.scheme


def _metadata(metadata: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((metadata or {}).items()))
