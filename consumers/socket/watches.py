"""The requests for outcomes, by transaction id, that aren't answered yet.

Owned by the socket's thread.
"""

from __future__ import annotations

from commitlog.wire import Watch
from consumers.socket.connections import WriterConnection
from consumers.socket.remembered import Answer


class Watches:
    """The watches of all writers."""

    def __init__(self) -> None:
        self._watchers: dict[str, list[tuple[WriterConnection, Watch]]] = {}
        self.committed_wanted = 0
        """How many don't wait for files."""

    def clear(self) -> None:
        """Forget all."""
        self._watchers.clear()
        self.committed_wanted = 0

    def add(self, connection: WriterConnection, watch: Watch) -> None:
        """Keep a watch until it is satisfied."""
        self.committed_wanted += not watch.readable
        connection.watches.add(watch.transaction_id)
        self._watchers.setdefault(watch.transaction_id, []).append((connection, watch))

    def satisfied(self, answer: Answer) -> list[WriterConnection]:
        """Take the watches that an answer satisfies away; return whom to send it to."""
        transaction_id = answer.outcome.transaction_id
        waiting = self._watchers.get(transaction_id)
        if waiting is None:
            return []
        left = [(c, w) for c, w in waiting if not answer.satisfies(w)]
        due = []
        for connection, watch in waiting:
            if answer.satisfies(watch):
                due.append(connection)
                connection.watches.discard(transaction_id)
                self.committed_wanted -= not watch.readable
        for connection, _ in left:
            connection.watches.add(transaction_id)
        self._keep(transaction_id, left)
        return due

    def left(self, connection: WriterConnection) -> None:
        """Forget a writer's watches."""
        for transaction_id in connection.watches:
            waiting = self._watchers.get(transaction_id, [])
            gone = [watch for who, watch in waiting if who is connection]
            self.committed_wanted -= sum(not watch.readable for watch in gone)
            self._keep(transaction_id, [one for one in waiting if one[0] is not connection])

    def _keep(self, transaction_id: str, left: list[tuple[WriterConnection, Watch]]) -> None:
        if left:
            self._watchers[transaction_id] = left
        else:
            self._watchers.pop(transaction_id, None)
