"""Clients of Lance that never ask which version their commit became.

Lance 7's library, which Java's users have, takes any answer but 200 for a lost race: it reads the
table again and stages the same transaction once more. If that is committed as another version, it
goes on so for minutes and fails. So its versions are committed as it staged them, or refused.

Java's library sends an empty `context` with each question for a table, and asks it before it
writes. It may write on a connection that it opens for that: then its host tells.
"""

from __future__ import annotations

import time

from commitlog.newest import Newest
from consumers.servers.namespace.call import Call

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
