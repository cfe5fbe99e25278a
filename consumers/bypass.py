"""Versions that somebody wrote around the log: moved out of the way, so that the table goes on.

A client plans its next version from the names that it sees, so a foreign one ahead of the head
would have every client miss the next version. Our own files appear only after the head that a
writer is told of, so whatever was there before the head was asked for, and is ahead of it, is
foreign. Should the log come to that version meanwhile, its file is written again from the log.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

from commitlog.adapters.storage import store_for
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, parse_manifest_name
from consumers.catalogue import Head

QUARANTINE = "_quarantine"

logger = logging.getLogger(__name__)


def quarantine_foreign(
    location: str, ask_head: Callable[[], Head], write_again: Callable[[Head, int], object]
) -> list[str]:
    """Move canonical manifests ahead of the head into quarantine; return where they are now."""
    store = store_for(location)
    found: dict[str, int] = {}
    for name in store.names(VERSIONS_DIRECTORY):
        parsed = parse_manifest_name(name)
        if parsed is not None and not parsed.staged_by and not parsed.is_detached:
            found[name] = parsed.version
    head = ask_head()
    moved: list[str] = []
    for name, version in sorted(found.items()):
        if head.location != location or version <= head.version:
            continue
        path = f"{VERSIONS_DIRECTORY}/{name}"
        try:
            digest = hashlib.sha256(store.read(path)).hexdigest()[:16]
            target = f"{QUARANTINE}/{name}-{digest}"
            store.move(path, target)
        except FileNotFoundError:
            continue
        logger.error(
            "%s: version %d was written around the log; moved to %s", location, version, target
        )
        moved.append(target)
        now = ask_head()
        if now.version >= version:
            write_again(now, version)
    return moved
