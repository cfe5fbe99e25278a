"""One table's files as the materializer keeps them: how far they are, and what readers find by.

The names are Lance's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count, takewhile

from google.protobuf.message import DecodeError

from commitlog.adapters.lance_refs import manifests_in, versions_in
from commitlog.adapters.storage import ObjectStore, sha256_of
from commitlog.codecs.manifest_file import (
    VERSIONS_DIRECTORY,
    NamingScheme,
    decode_manifest,
    encode_manifest,
    manifest_name,
    transaction_path,
)
from commitlog.core.catalogue.version_deletion import extended, merged
from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.tables.lance_tables import VersionRanges, is_in
from commitlog.errors import CommitLogError, Unavailable
from commitlog.model.table import Policy, format_table_id
from consumers.partition.files.events import Event
from consumers.partition.files.owed import Owed
from consumers.partition.files.table_manifests import TableManifests
from consumers.partition.files.trouble import Trouble

QUARANTINE = "_quarantine"
HINT = f"{VERSIONS_DIRECTORY}/latest_version_hint.json"
GATHERING = 5.0
"""Under `latest`, if several versions had gathered, the wait for more before the next manifest, as
a multiple of the time that a manifest takes. A manifest grows with the table, and its writer must
not take the leader's time. For a local table CPU time counts: on a busy machine a manifest of one
millisecond takes ten, and nobody should wait five times that."""
GATHERING_SECONDS_MAX = 0.1
"""The limit of that wait: a slow store takes none of the leader's time, and writers wait."""
RETRY_SECONDS = (0.05, 0.2, 1.0, 5.0)
AHEAD_MIN, AHEAD_MAX = 4, 1_000
"""How many versions at least, and at most, a standby takes at once that a leader has written."""
UNHINTED_MAX = 8
"""A reader looks for later versions than the hint's one by one, so it doesn't stay far behind."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TableFiles(TableManifests):
    """One incarnation of a table as far as its files go, which follow its state.

    Where the log doesn't say how its manifests are named, its store does, once it answers.
    """

    store: ObjectStore = field(kw_only=True)
    written_version: int = 0
    reported_version: int = 0
    """The newest version that was reported as written."""
    hinted_version: int = 0
    pending: deque[tuple[Change, Event]] = field(default_factory=deque)
    done: list[Event] = field(default_factory=list)
    """Of whose changes one was written since the last write came to its end."""
    applied: int = 0
    """How many of `pending` are in `state` already (a write failed after them)."""
    failures: int = 0
    trouble: Trouble | None = None
    """That its files cannot be written."""
    retry_at: float = 0.0
    gather_until: float = 0.0
    took_seconds: float = 0.0
    """How long the last manifest took under `latest`."""
    writing: Future[None] | None = None
    """The write in progress; until it is done, only its worker may touch `state` and `pending`."""
    heard_offset: int = 0
    """All outcomes before it were heard when the write began: what they change is in `pending`."""
    is_quick: bool = True
    """Whether its last write took next to no time."""
    given_up: bool = False
    """Whether a dropped table's manifests are written no more."""
    owed: Owed | None = None
    """What a checkpoint owes of it, which comes before `pending`."""
    paid: int = 0
    """How many of the changes that were owed were done since the last write came to its end."""
    strangers: list[tuple[int, str]] = field(default_factory=list)
    """Versions written around the log that were in the way and not reported yet, and where they
    are now."""

    def apply(self, change: Change) -> bool:
        """Take the next change into the state; return True if it makes a version."""
        is_made = TableManifests.apply(self, change)
        if is_made and change.kind is ChangeKind.REGISTERED:
            self.given_up, self.reported_version = False, 0
        return is_made

    def gather(self, count: int, took_seconds: float, now: Callable[[], float]) -> None:
        """Have the next manifest under `latest` wait for more, after one of `count` changes."""
        took, self.took_seconds = self.took_seconds, took_seconds
        # A store that hesitates once is no reason to wait; and one change at a time is a lone
        # writer's, who waits for this file before the next.
        gathering = min(GATHERING * min(took, took_seconds), GATHERING_SECONDS_MAX)
        self.gather_until = now() + gathering if count > 1 else 0.0

    def succeeded(self, now: Callable[[], float]) -> None:
        """Note that a write came to its end."""
        self.failures = 0
        if self.trouble is not None:
            if not self.given_up:
                name = format_table_id(self.table)
                self.trouble.over(f"table {name}: its manifests are written again", now())
            self.trouble = None


def hint_at(files: TableFiles, version: int, *, is_alone: bool) -> None:
    """Have a reader find a version, whose file comes next.

    What others hinted at meanwhile, or this process before a restart, may be newer: then a reader
    must not fall behind it again. Who `is_alone` knows all hints once it has read one.
    """
    if not is_alone or not files.hinted_version:
        files.hinted_version = _hinted(files.store)
    is_gap = version != files.written_version + 1
    is_newer = version > files.hinted_version
    if is_newer and (is_gap or version >= files.hinted_version + UNHINTED_MAX):
        files.store.write_hint(HINT, b'{"version": %d}' % version)
        files.hinted_version = version


def _hinted(store: ObjectStore) -> int:
    """Return the version that readers are pointed to, 0 if there is no usable hint."""
    try:
        return int(json.loads(store.read(HINT))["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0


class Deletions:
    """Which versions were deleted, ahead of what is written here.

    A late process must not make those versions again that others have removed. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranges: dict[str, list[VersionRanges]] = {}
        """By incarnation, of each change: a table that came back may lose a version twice."""
        self._deleted: dict[str, VersionRanges] = {}
        """By incarnation, all of them together."""

    def announce(self, changes: Iterable[Change]) -> None:
        """Note what changes that come later delete."""
        for change in changes:
            if change.deleted:
                with self._lock:
                    known = self._deleted.get(change.incarnation, ())
                    self._ranges.setdefault(change.incarnation, []).append(change.deleted)
                    self._deleted[change.incarnation] = extended(known, change.deleted)

    def include(self, change: Change) -> bool:
        """Return True if a later change deletes the version that this one makes."""
        return is_in(change.version, self._deleted.get(change.incarnation, ()))

    def forget(self, change: Change) -> None:
        """Forget what a change deletes, which was carried out."""
        with self._lock:
            left = self._ranges.get(change.incarnation, [])
            if change.deleted in left:
                left.remove(change.deleted)
                self._deleted[change.incarnation] = merged(*left)
            if not left:
                self._ranges.pop(change.incarnation, None)
                self._deleted.pop(change.incarnation, None)


def delete_versions(files: TableFiles, change: Change) -> None:
    """Remove the manifests of versions that were deleted; their data files are vacuum's."""
    if not change.deleted or not files.is_live:
        return
    for version, path in manifests_in(files.store):
        if is_in(version, change.deleted):
            files.store.delete(path)


def written_by_others(files: TableFiles) -> int:
    """Return how many pending changes a leader has written, 0 if they are few; raise OSError.

    It writes them in order, so the newest one that is there says it of those before, if it is the
    log's. A standby that looked at each would need two requests where the leader needs one, and
    fall behind for as long as somebody writes.
    """
    count = min(len(files.pending), AHEAD_MAX)
    changes = [files.pending[position][0] for position in range(count)]
    made = list(takewhile(lambda one: one.kind is ChangeKind.VERSION, changes))

    def path_of(number: int) -> str:
        name = manifest_name(made[number - 1].version, files.naming_scheme)
        return f"{VERSIONS_DIRECTORY}/{name}"

    there, beyond = 0, AHEAD_MIN
    while files.naming_scheme and beyond <= len(made) and files.store.size(path_of(beyond)) >= 0:
        there, beyond = beyond, 2 * beyond
    beyond = min(beyond, len(made) + 1)
    while there and beyond - there > 1:
        middle = (there + beyond) // 2
        is_there = files.store.size(path_of(middle)) >= 0
        there, beyond = (middle, beyond) if is_there else (there, middle)
    if not there:
        return 0
    delta = made[there - 1].delta
    try:
        state, _ = decode_manifest(files.store.read(path_of(there)))
    except (CommitLogError, DecodeError, FileNotFoundError):
        return 0
    is_ours = delta is not None and delta.transaction_file == state.transaction_file != ""
    return there if is_ours else 0


NewestInLog = Callable[[str, int], int]
"""Returns the newest version of an incarnation that the log names from an offset on, 0 if none."""


def write_manifest(
    files: TableFiles, change: Change, newest_in_log: NewestInLog, *, is_alone: bool
) -> None:
    """Write the version that a change made, which `files` is at."""
    if not files.naming_scheme or _is_migrated(files, change.version):
        files.naming_scheme = naming_scheme(files.store)
    name = f"{VERSIONS_DIRECTORY}/{manifest_name(change.version, files.naming_scheme)}"
    data = encode_manifest(files.state, change.message or None)
    if files.policy is Policy.LATEST:
        hint_at(files, change.version, is_alone=is_alone)
    # First, so that a copied folder has what its newest manifest names.
    if change.message and (path := transaction_path(files.state)):
        files.store.write_ahead(path, change.message)
    if not files.store.create(name, data):
        resolve_existing(files, name, data, change.version, newest_in_log)


def resolve_existing(
    files: TableFiles, name: str, data: bytes, version: int, newest_in_log: NewestInLog
) -> None:
    """Put a manifest whose canonical name is taken: by ourselves before a crash, or a stranger."""
    try:
        existing = files.store.read(name)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        _displace_large(files, name, version, newest_in_log)
        if not files.store.create(name, data):  # another process was faster
            resolve_existing(files, name, data, version, newest_in_log)
        return
    if existing == data:
        return
    if data.startswith(existing) or not any(existing):
        # Ours, as a power cut left it: cut off, or zeros.
        files.store.write(name, data)
        return
    is_adopted = _is_adopted(files, existing)
    digest = sha256_of(existing)
    if not is_adopted:
        _move_those_ahead(files, name, digest, version, newest_in_log)
    target = quarantined(name, digest)
    # Copied, then replaced: moving it away could take what another process has put there since.
    files.store.create(target, existing)
    files.store.write(name, data)
    if not is_adopted:
        _note_stranger(files, version, target)


def _displace_large(files: TableFiles, name: str, version: int, newest_in_log: NewestInLog) -> None:
    """Move away what is too large for a manifest of the log's, without a copy."""
    digest = files.store.digest(name)
    _move_those_ahead(files, name, digest, version, newest_in_log)
    target = quarantined(name, digest)
    with contextlib.suppress(FileNotFoundError):
        if files.store.set_aside(name, target, digest):
            _note_stranger(files, version, target)


def _is_adopted(files: TableFiles, existing: bytes) -> bool:
    """Return True if the log committed the very transaction that a stranger's version has."""
    try:
        state, _ = decode_manifest(existing)
    except (CommitLogError, DecodeError):
        return False
    return bool(state.transaction_file) and state.transaction_file == files.state.transaction_file


def _move_those_ahead(
    files: TableFiles, name: str, digest: str, version: int, newest_in_log: NewestInLog
) -> None:
    """Move the versions away that a stranger made upon its first one, the newest first.

    A reader by path opens the newest, and would miss what the log answered. Under `every` they are
    foreign for sure: a leader replaces the first one before it writes a later version, and that one
    was still there after the others were read. Under `latest` others may have
    skipped it. Then the log says whose they are: its own have their outcomes before their files.
    A process that is held up here takes none that a later leader has replaced meanwhile.
    """
    found = versions_in(files.store)
    theirs = {}
    for later in takewhile(found.__contains__, count(version + 1)):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            theirs[later] = files.store.digest(found[later])
    if not theirs or files.store.digest(name) != digest:
        return
    if files.policy is Policy.LATEST:
        named = newest_in_log(files.incarnation, files.heard_offset)
        if named > version:
            raise Unavailable(
                f"version {version} was written around the log, which is at version {named} "
                "by now: versions ahead must be read first to know which are the log's own"
            )
    for later, its_digest in reversed(theirs.items()):
        target = quarantined(found[later], its_digest)
        with contextlib.suppress(FileNotFoundError):
            if files.store.set_aside(found[later], target, its_digest):
                _note_stranger(files, later, target)


def quarantined(path: str, sha256: str) -> str:
    """Return where a stranger's manifest with this digest is kept."""
    return f"{QUARANTINE}/{path.rsplit('/', 1)[1]}-{sha256[:16]}"


def _note_stranger(files: TableFiles, version: int, target: str) -> None:
    files.strangers.append((version, target))
    logger.error(
        "table %s: version %d was written around the log; moved to %s/%s",
        format_table_id(files.table),
        version,
        files.location,
        target,
    )


def naming_scheme(store: ObjectStore) -> str:
    """Return how a location's manifests are named: "V1" or "V2" (also where there are none)."""
    for name in store.names(VERSIONS_DIRECTORY):
        stem, _, ending = name.partition(".")
        if ending == "manifest" and stem.isdigit():
            return "V2" if len(stem) == 20 else "V1"
    return "V2"


def _is_migrated(files: TableFiles, version: int) -> bool:
    """Return True if somebody may have renamed the manifests, which Lance does to old names only.

    Lance opens no table whose manifests have names of both kinds.
    """
    if files.naming_scheme != NamingScheme.V1 or version == 1:
        return False
    before = manifest_name(version - 1, NamingScheme.V1)
    return files.store.size(f"{VERSIONS_DIRECTORY}/{before}") < 0


def retry_later(files: TableFiles, error: Exception, now: float) -> None:
    """Note that a table's files cannot be written at present."""
    seconds = RETRY_SECONDS[min(files.failures, len(RETRY_SECONDS) - 1)]
    files.failures += 1
    files.retry_at = now + seconds
    files.trouble = files.trouble or Trouble(now)
    version = files.owed.first if files.owed is not None else files.pending[0][0].version
    what = (
        f"table {format_table_id(files.table)}: version {version} is committed"
        " but its manifest cannot be written"
    )
    files.trouble.failed(what, error, now, seconds)
