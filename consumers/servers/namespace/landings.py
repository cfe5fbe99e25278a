"""Commits that became another version than their clients asked for, until the clients know.

A client stages version N, but another commit may take N first. The client's operation (an append,
an index, a compaction, renamed columns) commits all the same, as version M: the leader builds it
again over the head. The answer can't be 200, since Lance would then keep its staged manifest under
M's name. After any other answer, Lance describes version N twice: first to learn whether its staged
manifest lost, and then to compare the transaction at N with its own. If that is its own, it
continues with the manifest that it found. So the second description of N, and only for this client,
names M's manifest. With its staged manifest, Lance removes the transaction file, so M's manifest
names another file.

The server tells clients apart by their connections. A client opens another one if its own isn't
idle again yet. So the answer redirects it to a path with a token, and any connection that brings
the token is the client's. So are those on which one transaction was staged. A connection that only
asked for N may be a reader's, who must not get M for N. A client that isn't recognized gets N
described. An appending one sends the same transaction again, seconds later, and gets the same
answer again. Any other operation conflicts with its own commit and fails.

A client with a single connection may ask next on one that it just opened. Such a
connection begins with the question for N; a reader's begins with the table. So the question is the
client's if the staged manifest existed at its first question and is gone at the next. If it
was gone at the first question, the client may still ask on a known connection, within
milliseconds; the server waits a moment for that. If several clients have staged N, the server
also waits a moment until all but one of them have asked on known connections: the question is that
one's. And it redirects a client with a single connection a few more times; by then the client has
nearly always used its new connection.

An older connection waits longer if it asks for an N whose client doesn't come back, once the staged
manifest is gone. If the client asks on a known connection, the other one is a reader's. If no other
connection asks, it is the client's. If a second unknown one asks, the server can't tell which is
the client's, and neither waits. So one server thread at most waits for one commit, and few for all,
however many readers ask. If an appending client asks for a version that doesn't exist yet, it gets
an answer whichever client it seems to be: if the version were missing, Lance would give up.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from lance_namespace.errors import ErrorCode

from commitlog.adapters.storage import store_for
from commitlog.newest import Newest
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.status import HttpError
from consumers.servers.server_heads import REQUESTS

ASKS_WITHIN_SECONDS = 5.0
"""How long a client may take to ask; a later one comes back with its transaction."""
LANDINGS_MAX = 10_000
UNKNOWN_WAITS_SECONDS = 1.0
"""How long an unknown connection waits for a known one to ask (normally milliseconds)."""
NEW_WAITS_SECONDS = 0.3
"""The same for a connection that was just opened, if the client comes back otherwise."""
WAITING_MAX = 8
"""How many unknown connections may wait at once; each occupies a thread of the server."""
SHOWN_MAX = 6
"""How often a client with one known connection is redirected, until it shows another one. Lance's
client follows ten redirects at most."""
_CLIENT = "namespace.client"
_FIRST = "namespace.first"


_Asked = tuple[str, int]
"""An incarnation and a version of it."""


class Landed(HttpError):
    """The transaction is committed, but as another version than requested: 303, no failure."""

    def __init__(self, version: int, location: str = "") -> None:
        """Take the version, and the path that the client requests before it asks."""
        headers = {"Location": location} if location else {}
        message = f"the transaction is committed as version {version}"
        super().__init__(303, message, ErrorCode.CONCURRENT_MODIFICATION, **headers)


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
    """Its client doesn't know of it yet."""
    comes_back: bool = True
    """Whether a client that gets no answer sends the same transaction again."""
    unknown: int = 0
    """How many requests for it came on connections that aren't known to be its client's."""
    client: Client = field(default_factory=lambda: Client())
    """The client that is to learn of it, once it is added."""
    token: str = ""
    """The token that its client shows next, if any."""
    shown: int = 0
    """How many tokens it has shown."""

    @property
    def key(self) -> _Asked:
        """What its client asks for."""
        return self.incarnation, self.asked

    @property
    def is_due(self) -> bool:
        """Whether its client may still ask."""
        return self.is_open and self.expires > time.monotonic()


@dataclass(slots=True, eq=False)
class Client:
    """The client behind one connection, or several."""

    landings: list[Landing] = field(default_factory=list)
    connections: int = 1


@dataclass(slots=True)
class _First:
    """The first version that was asked for on a connection, and how often."""

    key: _Asked
    standing: set[Landing]
    """Those whose staged manifests existed at the first question."""
    asks: int = 0


class Landings:
    """Commits of which clients are still to learn. Thread-safe."""

    def __init__(self) -> None:
        """Begin without commits."""
        self._lock = threading.Lock()
        self._is_told = threading.Condition(self._lock)
        self._known: Newest[str, Landing] = Newest(LANDINGS_MAX)
        self._due: OrderedDict[_Asked, list[Landing]] = OrderedDict()
        """Those that their clients don't know yet, by the version that they ask for."""
        self._tokens: Newest[str, Landing] = Newest(LANDINGS_MAX)
        """Those whose tokens clients haven't shown yet."""
        self._waiting = 0
        """Connections that wait in `_of_unknown`."""

    def version_of(self, transaction_id: str, incarnation: str) -> int | None:
        """Return the version that a transaction became through this process, if it is known."""
        found = self._known.get(transaction_id)
        return found.version if found is not None and found.incarnation == incarnation else None

    def add(self, connection: MutableMapping[str, Any], landing: Landing) -> None:
        """Note what a client will ask for on this connection, or on another of its own."""
        with self._lock:
            client = client_of(connection)
            assert client is not None
            before = self._known.pop(landing.transaction_id, None)
            if before is not None:
                before.is_open = False
                client = _join(connection, before.client)
            landing.client = client
            self._known[landing.transaction_id] = landing
            self._give_token(landing)
            landing.expires = time.monotonic() + ASKS_WITHIN_SECONDS
            client.landings[:] = [one for one in client.landings if one.is_due]
            client.landings.append(landing)
            while self._due and not any(one.is_due for one in next(iter(self._due.values()))):
                self._due.popitem(last=False)
            self._due.setdefault(landing.key, []).append(landing)
            self._due.move_to_end(landing.key)

    def show(self, connection: MutableMapping[str, Any], token: str) -> Landing | None:
        """Note that a token's client uses this connection; return the token's commit.

        If the client is to show one more token, the commit has it.
        """
        with self._lock:
            landing = self._tokens.pop(token, None)
            if landing is not None:
                landing.client = _join(connection, landing.client)
                landing.shown += 1
                landing.token = ""
                if landing.client.connections == 1 and landing.shown < SHOWN_MAX:
                    self._give_token(landing)
            return landing

    def _give_token(self, landing: Landing) -> None:
        landing.token = secrets.token_hex(16)
        self._tokens[landing.token] = landing

    def awaited(
        self, connection: MutableMapping[str, Any] | None, asked: int | None
    ) -> Landing | None:
        """Return the commit of which this connection's client is to learn when it asks."""
        client = client_of(connection)
        for landing in client.landings if client is not None else ():
            if landing.asked == asked and landing.is_due:
                return landing
        return None

    def find(
        self, connection: MutableMapping[str, Any] | None, incarnation: str, asked: int, head: int
    ) -> int | None:
        """Return the version that answers a client's question for `asked`.

        None: the version `asked` itself.
        """
        client = client_of(connection)
        if connection is None or client is None:
            return None
        key, mine = (incarnation, asked), False
        for landing in list(client.landings):
            if landing.key != key:
                continue
            mine = True
            if not landing.is_due:
                continue
            is_second = not _exists(landing)
            if is_second:
                self._close(landing)
            if is_second or asked > head:
                return landing.version
        if mine:
            return None
        due = [one for one in self._due.get(key, ()) if one.is_due]
        removed = [one for one in due if not _exists(one)]
        first = connection.setdefault(_FIRST, _First(key, set(due) - set(removed)))
        first.asks += first.key == key
        is_new = first.key == key and first.asks == connection.get(REQUESTS)
        its = [one for one in removed if is_new and one in first.standing]
        if len(its) == 1:
            self._close(its[0])
            return self._told(connection, its[0])
        if its:
            told = self._of_unknown(connection, its, is_its_client=True)
        elif is_new and first.asks == 1:
            told = self._of_unknown(connection, removed)
        else:
            told = self._of_unknown(connection, [one for one in removed if not one.comes_back])
        if told is not None:
            return told
        ahead = next((one for one in due if one.version < asked), None) if asked > head else None
        if ahead is None:
            return None
        # No other client asks for a version before it exists; if it got a 404, Lance would give up.
        ahead.is_open = _exists(ahead)
        return ahead.version

    def _close(self, landing: Landing) -> None:
        with self._is_told:
            landing.is_open = False
            self._is_told.notify_all()

    def _of_unknown(
        self,
        connection: MutableMapping[str, Any],
        candidates: list[Landing],
        is_its_client: bool = False,
    ) -> int | None:
        """Return the version of the only commit whose client an unknown connection can be.

        The other clients show up on their known connections meanwhile. So may that of the last
        commit, unless it is known that a client asks.
        """
        if not candidates:
            return None
        returns = all(one.comes_back for one in candidates)
        seconds = NEW_WAITS_SECONDS if returns else UNKNOWN_WAITS_SECONDS
        until = min(time.monotonic() + seconds, *(one.expires for one in candidates))

        def undecided() -> list[Landing]:
            return [one for one in candidates if one.is_open]

        def is_over() -> bool:
            # Who else asks for one of them makes that one nobody's.
            return all(one.unknown > 1 for one in undecided())

        with self._is_told:
            for one in candidates:
                one.unknown += 1
            if is_over() or self._waiting >= WAITING_MAX:
                self._is_told.notify_all()
                return None
            self._is_told.notify_all()
            self._waiting += 1
            self._is_told.wait_for(
                lambda: is_over() or (is_its_client and len(undecided()) == 1),
                until - time.monotonic(),
            )
            self._waiting -= 1
            left = undecided()
            if len(left) != 1 or is_over():
                return None
            left[0].is_open = False
            self._is_told.notify_all()
        return self._told(connection, left[0])

    def _told(self, connection: MutableMapping[str, Any], landing: Landing) -> int:
        """Note the connection on which a client got its version."""
        with self._lock:
            _join(connection, landing.client)
        return landing.version


def _join(connection: MutableMapping[str, Any], client: Client) -> Client:
    """Note that a connection is another one of a client's; return the client."""
    other = client_of(connection)
    if other is not None and other is not client:
        client.landings.extend(other.landings)
        client.connections += 1
        connection[_CLIENT] = client
    return client


def client_of(connection: MutableMapping[str, Any] | None) -> Client | None:
    """Return the client behind a connection, None if that isn't known."""
    if connection is None:
        return None
    found: Client = connection.setdefault(_CLIENT, Client())
    return found


def _exists(landing: Landing) -> bool:
    """Return True while a client hasn't removed its staged manifest."""
    return store_for(landing.location).size(landing.staged_path) >= 0


# Clients of Lance that never ask which version their commit became.
#
# Lance 7's library, which Java's users have, takes any answer but 200 for a lost race: it reads the
# table again and stages the same transaction once more. If that is committed as another version, it
# goes on so for minutes and fails. So its versions are committed as it staged them, or refused.
#
# Java's library sends an empty `context` with each question for a table, and asks it before it
# writes. It may write on a connection that it opens for that: then its host tells.

PEER = "namespace.peer"
_IS_OLDER = "namespace.is_older"
REMEMBERED_SECONDS = 600.0
_HOSTS_MAX = 10_000


class OlderClients:
    """Tells them from others, by connection and host. Thread-safe."""

    def __init__(self) -> None:
        """Know nobody."""
        self._seen: Newest[str, float] = Newest(_HOSTS_MAX)

    def note(self, call: Call) -> None:
        """Learn from a question for a table which client has its connection."""
        if (kept := call.connection) is not None:
            kept[_IS_OLDER] = call.fields.get("context") == {}
            if kept[_IS_OLDER]:
                self._seen[str(kept.get(PEER))] = time.monotonic()

    def asks_what_landed(self, call: Call) -> bool:
        """Return True if a call's client asks what its commit became, as Lance's newer ones do."""
        if call.connection is None or call.key is not None:
            return False
        if (is_older := call.connection.get(_IS_OLDER)) is not None:
            return not is_older
        seen = self._seen.get(str(call.connection.get(PEER)))
        return seen is None or time.monotonic() - seen > REMEMBERED_SECONDS
