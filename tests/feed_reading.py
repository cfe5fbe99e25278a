"""Reads a feed up to the log's present end, however slow the machine is."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from typing import Any

from commitlog import CommitLog
from commitlog.client.history.feed_events import FeedEvent, token_starts

WAIT_SECONDS = 180.0


def told(log: CommitLog, tables: Any, start: Any, *, refused: bool = False) -> list[FeedEvent]:
    """Return the events from `start` to the end of a log with one partition."""
    end = int(log.runtime().request(0, "status")["sequence"])
    log_id = log.runtime().genesis.log_id
    deadline = time.monotonic() + WAIT_SECONDS
    found: list[FeedEvent] = []
    with log.subscribe(tables, start, refused=refused) as feed:
        while token_starts(feed.token, log_id, 1)[0].place.sequence < end:
            found += feed.poll(0.2)
            assert time.monotonic() < deadline
    return found


class HttpFollower:
    """A plain HTTP client of a table's feed, which comes back with `Last-Event-ID` at each end."""

    def __init__(self, port: int, table: str) -> None:
        """Follow from the log's beginning on."""
        self.sequences: list[int] = []
        self.refused = ""
        self.port = port
        self._table = table
        self._last_id = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up; events that come meanwhile are dropped."""
        self._is_over.set()
        with contextlib.suppress(AttributeError, OSError):  # there is none just now
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _follow(self) -> None:
        while not self._is_over.is_set() and not self.refused:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
            self._connection = connection
            headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
            path = f"/v1/log/feed?table={self._table}&from=beginning&seconds=2"
            try:
                connection.request("GET", path, headers=headers)
                with connection.getresponse() as response:
                    self._read(response)
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            self._is_over.wait(0.1)

    def _read(self, response: http.client.HTTPResponse) -> None:
        if response.status not in (200, 503):
            self.refused = f"{response.status} {response.read()[:500]!r}"
        fields: dict[str, str] = {}
        while response.status == 200 and (line := response.readline().decode()):
            if self._is_over.is_set():
                return
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value
            # Only an empty line ends a message: what was cut off before it has not been told.
            if line != "\n":
                continue
            if fields.get("event") != "error":
                self._last_id = fields.get("id", self._last_id)
                if "data" in fields:
                    self.sequences.append(json.loads(fields["data"])["data"]["sequence"])
            fields = {}
