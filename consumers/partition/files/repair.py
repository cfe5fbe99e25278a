"""Manifests that a machine lost or a stranger deleted, made again from the log.

Without `--fsync` a power cut may leave the newest files empty, torn or missing, though a checkpoint
says that they were written. Such a file would stop every reader; it is ours, the log has all that
was in it, and so it is written again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from commitlog.adapters.lance_refs import versions_with_files
from commitlog.adapters.storage import local_path, store_for
from commitlog.codecs.manifest_file import (
    MAGIC,
    TRANSACTIONS_DIRECTORY,
    decode_manifest,
    manifest_places,
    transaction_path,
)
from commitlog.core.catalogue.version_deletion import without
from commitlog.core.tables.lance_tables import VersionRanges, is_in
from commitlog.errors import CommitLogError
from commitlog.model.table import Policy, format_table_id
from consumers.partition.files.catalogue import Head

LOOKED_AT = 100
"""How many versions back a table is looked through: a machine writes back what is older in time."""

logger = logging.getLogger(__name__)


def repair(
    head: Head, readable: int, materialize: Callable[[Head, int], object], *, versions: int = 1
) -> list[int]:
    """Make a local table's newest manifests again that are lost or torn; return which.

    `readable` is the newest version that was written. Under `latest` only that one has to be there.
    """
    folder = local_path(head.location)
    if folder is None or not readable:
        return []
    broken = _broken(head, folder, readable, versions)
    if broken and versions < LOOKED_AT:
        # Where one is, others may be.
        broken = _broken(head, folder, readable, LOOKED_AT)
    store, repaired = store_for(head.location), []
    # The oldest first, since each is made of the one before.
    for version in reversed(broken):
        try:
            for path in manifest_places(version):
                store.delete(path)
            materialize(head, version)
        except (OSError, CommitLogError) as error:
            name = format_table_id(head.table)
            logger.error(
                "%s: version %d is damaged and cannot be written again: %s", name, version, error
            )
            continue
        repaired.append(version)
    if repaired:
        name = format_table_id(head.table)
        logger.error("%s: versions %s were lost or damaged and were written again", name, repaired)
    return repaired


def missing_versions(location: str, first: int, newest: int, deleted: VersionRanges) -> list[int]:
    """Return those of a table's versions whose manifests are gone without a record; raise OSError.

    A table that was written to for years has few versions that no record deleted.
    """
    there = versions_with_files(location)
    kept = without([(first, newest)], deleted) if first <= newest else ()
    return [v for begin, end in kept for v in range(begin, end + 1) if v not in there]


def restore_transactions(
    location: str, versions: int, whole: dict[str, int] | None = None
) -> list[int]:
    """Put the transaction files of the newest manifests back that are gone; return which.

    The manifest holds what was in the file. By location, `whole` keeps the hash of names of which
    none lacks another one: as long as they stay, no manifest is read. Raises OSError, and
    CommitLogError.
    """
    store, restored = store_for(location), []
    newest = list(versions_with_files(location).items())[-versions:]
    # Listed after the manifests, since a version's transaction is written before its manifest.
    there = frozenset(store.names(TRANSACTIONS_DIRECTORY))
    names = hash((tuple(newest), there))
    if whole is not None and whole.get(location) == names:
        return []
    for version, path in newest:
        try:
            state, message = decode_manifest(store.read(path))
        except FileNotFoundError:
            continue  # deleted by a record meanwhile
        beside = transaction_path(state)
        if message is None or not beside or beside.rpartition("/")[2] in there:
            continue
        # Thinning removes a manifest, and then its transaction.
        if store.size(path) >= 0:
            store.write_ahead(beside, message)
            restored.append(version)
    if whole is not None and not restored:
        whole[location] = names
    return restored


def _broken(head: Head, folder: Path, readable: int, versions: int) -> list[int]:
    """Return the versions to make again, the newest first."""
    if head.policy is not Policy.EVERY:
        versions = 1
    found = {
        version: _is_whole(folder, version)
        for version in range(readable, max(readable - versions, 0), -1)
        if not is_in(version, head.deleted)
    }
    # What is older than all that is there was cleaned up, or came before the table did.
    oldest = min((v for v, is_whole in found.items() if is_whole is not None), default=readable)
    return [v for v, is_whole in found.items() if v >= min(oldest, readable) and not is_whole]


def _is_whole(folder: Path, version: int) -> bool | None:
    """Return True if a manifest is whole, False if it is torn, None if there is none."""
    for path in manifest_places(version):
        try:
            with (folder / path).open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - len(MAGIC)))
                return file.read() == MAGIC
        except FileNotFoundError:
            continue
        except OSError as error:
            # Whatever this is, writing would not mend it.
            logger.warning("version %d below %s cannot be checked: %s", version, folder, error)
            return True
    return None
