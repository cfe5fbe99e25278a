"""Commits that became another version than their clients asked for, until the clients know.

A client stages version N; by the time its request is carried out others may have committed N. What
it did (an append, an index, a compaction, other names of columns) commits all the same, as version
M, for the leader builds it again over the head. The answer
cannot be 200: Lance would keep the manifest that it staged, under M's name. Whatever else it is,
Lance then describes version N twice: first to learn whether its staged manifest lost, which it
removes, and again to compare the transaction at N with its own. If it finds its own, it continues
with the manifest that it found. So the second time, and only for this client, N's description
names M's manifest. With its staged manifest, Lance removes the file of its transaction, so M's
manifest names a file of another name.

Clients are told apart by their connections. A client opens another one whenever its own isn't idle
again yet, so those on which one transaction was staged count as one client's. A connection on which
N was only asked for may be a reader's, who must not get M for N. A client that isn't recognized
gets N described; an appending one comes back with the same transaction, seconds later, and is
answered the same way again. With any other operation it finds its own commit in its way and fails.
So an unknown connection that asks for such an N, once the staged manifest is gone, waits for a
moment: if the client asks on a known connection, the other one is a reader. If no other connection
asks, it is the client. If a second unknown one asks, it can't be told which is the client, and
neither waits: however many readers ask, one thread of the server waits for one commit, and few for
all. If an appending client asks for a version that doesn't exist yet, it is
answered whichever client it seems to be: told that the version is missing, Lance would give up.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from lance_namespace.errors import ErrorCode

from commitlog.adapters.storage import store_for
from consumers.servers.namespace.status import HttpError

ASKS_WITHIN_SECONDS = 5.0
"""How long a client may take to ask; one that is later comes back with its transaction."""
LANDINGS_MAX = 10_000
UNKNOWN_WAITS_SECONDS = 1.0
"""How long an unknown connection waits for a known one to ask, which takes milliseconds."""
WAITING_MAX = 8
"""So many unknown connections may wait at once; each holds a thread of the server."""
_CLIENT = "namespace.client"


class Landed(HttpError):
    """The transaction is committed, as another version than was asked for: 303, and no failure."""

    def __init__(self, message: str) -> None:
        """Say which version it is."""
        super().__init__(303, message, ErrorCode.CONCURRENT_MODIFICATION)


@dataclass(slots=True, eq=False)
class Landing:
    """One commit that became another version."""

    transaction_id: str
    location: str
    incarnation: str
    asked: int
    version: int
    staged_path: str
    expires: float = field(default_factory=lambda: time.monotonic() + ASKS_WITHIN_SECONDS)
    is_open: bool = True
    """Its client wasn't told of it yet."""
    comes_back: bool = True
    """A client that isn't told sends the same transaction again."""
    unknown: int = 0
    """How many asked for it on connections that aren't known to be its client's."""


@dataclass(slots=True, eq=False)
class Client:
    """The client behind one connection, or several."""

    landings: list[Landing] = field(default_factory=list)


class Landings:
    """What clients have to be told. Thread-safe."""

    def __init__(self) -> None:
        """Nothing has landed."""
        self._lock = threading.Lock()
        self._is_told = threading.Condition(self._lock)
        self._known: OrderedDict[str, tuple[Landing, Client]] = OrderedDict()
        self._ahead: dict[tuple[str, int], Landing] = {}
        """By incarnation and version, clients that asked again for a version that isn't there."""
        self._once: dict[tuple[str, int], list[Landing]] = {}
        """By incarnation and version, those whose clients don't come back."""
        self._waiting = 0
        """Connections that wait in `_of_unknown`."""

    def version_of(self, transaction_id: str, incarnation: str) -> int | None:
        """Return the version that a transaction became through this process, if it is known."""
        found = self._known.get(transaction_id)
        if found is None or found[0].incarnation != incarnation:
            return None
        return found[0].version

    def add(self, connection: MutableMapping[str, Any], landing: Landing) -> None:
        """Note what a client will ask for on this connection, or on another of its own."""
        with self._lock:
            client = client_of(connection)
            assert client is not None
            before = self._known.pop(landing.transaction_id, None)
            if before is not None:
                before[0].is_open = False
                if before[1] is not client:
                    before[1].landings.extend(client.landings)
                    client = connection[_CLIENT] = before[1]
            now = time.monotonic()
            client.landings[:] = [
                one for one in client.landings if one.is_open and one.expires > now
            ]
            client.landings.append(landing)
            self._ahead = {
                key: one for key, one in self._ahead.items() if one.is_open and one.expires > now
            }
            for key, several in list(self._once.items()):
                several[:] = [one for one in several if one.is_open and one.expires > now]
                if not several:
                    del self._once[key]
            if not landing.comes_back:
                self._once.setdefault((landing.incarnation, landing.asked), []).append(landing)
            if landing.version < landing.asked:
                self._ahead[landing.incarnation, landing.asked] = landing
            self._known[landing.transaction_id] = (landing, client)
            if len(self._known) > LANDINGS_MAX:
                self._known.popitem(last=False)

    def awaited(
        self, connection: MutableMapping[str, Any] | None, asked: int | None
    ) -> Landing | None:
        """Return the commit that this connection's client is to hear of when it asks."""
        client = client_of(connection)
        now = time.monotonic()
        for landing in client.landings if client is not None else ():
            if landing.asked == asked and landing.is_open and landing.expires > now:
                return landing
        return None

    def find(
        self, connection: MutableMapping[str, Any] | None, incarnation: str, asked: int, head: int
    ) -> int | None:
        """Return the version that a client is to hear of when it asks for `asked`.

        None: of the one that it asks for.
        """
        client = client_of(connection)
        if client is None:
            return None
        now, mine = time.monotonic(), False
        for landing in list(client.landings):
            if (landing.incarnation, landing.asked) != (incarnation, asked):
                continue
            mine = True
            if not landing.is_open or landing.expires <= now:
                continue
            is_second = not _exists(landing)
            if is_second:
                self._close(landing)
            if is_second or asked > head:
                return landing.version
        if mine:
            return None
        once = self._once.get((incarnation, asked), ())
        if len(once) == 1:
            return self._of_unknown(once[0])
        ahead = self._ahead.get((incarnation, asked)) if asked > head else None
        if ahead is None or not ahead.is_open or ahead.expires <= now:
            return None
        # No other client asks for a version before it is there; told that it isn't, Lance gives up.
        ahead.is_open = _exists(ahead)
        return ahead.version

    def _close(self, landing: Landing) -> None:
        with self._is_told:
            landing.is_open = False
            self._is_told.notify_all()

    def _of_unknown(self, landing: Landing) -> int | None:
        """Return the version if who asks on an unknown connection can only be the client."""
        if _exists(landing):
            return None
        until = min(time.monotonic() + UNKNOWN_WAITS_SECONDS, landing.expires)
        with self._is_told:
            landing.unknown += 1
            if landing.unknown > 1 or self._waiting >= WAITING_MAX:
                self._is_told.notify_all()
                return None
            self._waiting += 1
            left = until - time.monotonic()
            self._is_told.wait_for(lambda: not landing.is_open or landing.unknown > 1, left)
            self._waiting -= 1
            if not landing.is_open or landing.unknown > 1:
                return None
            landing.is_open = False
            return landing.version


def client_of(connection: MutableMapping[str, Any] | None) -> Client | None:
    """Return who is behind a connection, None if that isn't known."""
    if connection is None:
        return None
    found: Client = connection.setdefault(_CLIENT, Client())
    return found


def _exists(landing: Landing) -> bool:
    """Say whether a client hasn't removed yet what it staged."""
    return store_for(landing.location).size(landing.staged_path) >= 0
