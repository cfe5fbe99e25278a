"""Versions that somebody wrote around the log: found, and taken over or moved out of the way.

A client plans its next version from the files that it sees, so a foreign file ahead of the head
would make every client miss the next version. Our own files appear after the head that writers are
told. So a file is foreign if it was there before the head was asked for, is ahead of it, and this
process still led after it looked: another leader writes its own files. If the log reaches that
version meanwhile, its file is written again from the log.

The table's property `commitlog.bypass` says what becomes of such a version:
`quarantine`, the default, keeps the file in `_quarantine/`; `adopt` commits it through the log, as
if its writer had asked, and quarantines what the log refuses.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from google.protobuf.message import DecodeError

from commitlog.adapters.lance_refs import manifest_in, manifests_in
from commitlog.adapters.storage import store_for
from commitlog.codecs.manifest_file import (
    decode_manifest,
    manifest_name,
)
from commitlog.core.conflicts.write_sets import kind_of
from commitlog.core.log.attribution import attributed
from commitlog.errors import CommitLogError, Unavailable
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.operations import CreateTableVersion
from commitlog.model.records import Transaction
from commitlog.model.table import format_table_id
from commitlog.ports import Log
from consumers.partition.files.catalogue import Head
from consumers.partition.files.table_files import quarantined

PROPERTY = "commitlog.bypass"
ADOPT = "adopt"
PRINCIPAL = "commitlog"
ADOPT_SECONDS = 30.0
ADOPTED_AT_ONCE = 1_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bypass:
    """A version that was written around the log, and what became of it."""

    table: str
    version: int
    became: str
    """`adopted`, or where it was moved."""


def quarantine_foreign(
    head: Head, ask_head: Callable[[], Head], write_again: Callable[[Head, int], object]
) -> list[str]:
    """Move canonical manifests ahead of the head into quarantine; return where they are now.

    `head` is a head that the table had, which says where to look.
    """
    location = head.location
    store = store_for(location)
    found: dict[str, tuple[int, str]] = {}
    for version, path in manifests_in(store):
        if version > head.version:
            with contextlib.suppress(FileNotFoundError):
                found[path] = version, store.digest(path)
    # A name that was read before this, and is ahead of the head, isn't the log's.
    head = ask_head()
    moved: list[str] = []
    for path, (version, digest) in sorted(found.items()):
        if head.location != location or version <= head.version:
            continue
        target = quarantined(path, digest)
        try:
            if not store.set_aside(path, target, digest):
                continue  # the log came to that version meanwhile, and this is its file
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


def foreign_path(head: Head) -> str:
    """Return the path of a file under the name of the version after a head, empty if none.

    A commit around the log takes the next version number, so no other name is looked for.
    """
    return manifest_in(store_for(head.location), head.version + 1) or ""


class BypassScan:
    """Looks through tables of a partition that this process leads, one after the other."""

    def __init__(
        self,
        log: Log,
        partition: int,
        *,
        heads: Iterable[Head],
        ask_head: Callable[[Head], Head],
        write_again: Callable[[Head, int], object],
        status_of: Callable[[str], str | None],
    ) -> None:
        """Take the heads to look at; `ask_head` raises unless this process leads as it returns.

        `status_of` says how a transaction id ended, None while it hasn't.
        """
        self._log, self._partition = log, partition
        self._heads, self._ask_head = heads, ask_head
        self._write_again, self._status_of = write_again, status_of

    def run(self, stop: threading.Event) -> list[Bypass]:
        """Look at each table; return what was found. A table that fails stops no other."""
        found: list[Bypass] = []
        for head in self._heads:
            if stop.is_set():
                break
            if not head.version:
                continue
            try:
                found += self._look(head, stop)
            except (OSError, CommitLogError) as error:
                name = format_table_id(head.table)
                logger.warning("table %s was not checked: %s", name, error)
        return found

    def _look(self, head: Head, stop: threading.Event) -> list[Bypass]:
        found: list[Bypass] = []
        name = format_table_id(head.table)
        while len(found) < ADOPTED_AT_ONCE:
            path = foreign_path(head)
            if not path:
                return found
            now = self._ask_head(head)
            if (now.version, now.location) != (head.version, head.location):
                return found
            if dict(head.properties).get(PROPERTY) != ADOPT or not self._adopt(head, path, stop):
                ask = partial(self._ask_head, head)
                moved = quarantine_foreign(now, ask, self._write_again)
                return found + [Bypass(name, head.version + 1, target) for target in moved]
            found.append(Bypass(name, head.version + 1, "adopted"))
            logger.error("%s: version %d, written around the log, was adopted", name, now.version)
            head = self._ask_head(head)
        return found

    def _adopt(self, head: Head, path: str, stop: threading.Event) -> bool:
        """Commit a foreign version; return whether the log took it."""
        transaction = adoption(head, path)
        if transaction is None:
            return False
        if self._status_of(transaction.transaction_id) is None:
            with contextlib.closing(self._log.transactions_writer()) as writer:
                writer.append(transaction, partition=self._partition)
                writer.flush(ADOPT_SECONDS)
        deadline = time.monotonic() + ADOPT_SECONDS
        while not stop.is_set() and time.monotonic() < deadline:
            status = self._status_of(transaction.transaction_id)
            if status not in (None, "committed"):
                return False
            # Decided isn't acknowledged yet: the head says when it is.
            if status is not None and self._ask_head(head).version > head.version:
                return True
            time.sleep(0.02)
        raise Unavailable(f"whether {path} of {head.location} was adopted isn't known yet")


def adoption(head: Head, path: str) -> Transaction | None:
    """Return the transaction that takes a foreign version over; None if it cannot be read."""
    store = store_for(head.location)
    try:
        data = store.read(path)
        state, message = decode_manifest(data)
        if message is None:
            message = store.read(f"_transactions/{state.transaction_file}")
        kind = kind_of(LanceTransaction.FromString(message))
    except (OSError, CommitLogError, DecodeError):
        return None
    digest = hashlib.sha256(data).digest()
    operation = CreateTableVersion(
        head.table,
        head.version + 1,
        path,
        len(data),
        naming_scheme="V2" if len(path.rsplit("/", 1)[1]) == len(manifest_name(1)) else "V1",
        sha256=digest,
        message=message,
        operation=kind,
        incarnation=head.incarnation,
        adopt=True,
    )
    # The same file asks under the same id, however often it is found.
    name = f"{head.incarnation}/{head.version + 1}/{digest.hex()}"
    transaction_id = str(uuid.uuid5(uuid.NAMESPACE_URL, name))
    return attributed(Transaction(transaction_id, (operation,), principal=PRINCIPAL))
