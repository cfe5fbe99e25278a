"""The published index kept open: one connection per snapshot, a cursor per question.

Opening costs tens of milliseconds, so a connection is kept until another file is published under
the name. Questions that began on the old snapshot end on it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import duckdb

from commitlog.errors import Unavailable
from consumers import history
from consumers.history import Ask

MEMORY_LIMIT = "1GB"
"""What all questions of the page may use together."""

Found = TypeVar("Found")


@dataclass(slots=True)
class _Snapshot:
    signature: str
    connection: duckdb.DuckDBPyConnection
    users: int = 0
    is_current: bool = True

    def close_if_unused(self) -> None:
        if self.users == 0 and not self.is_current:
            self.connection.close()


class Asking:
    """A question under way, which may be given up. Thread-safe."""

    def __init__(self) -> None:
        """Nothing is asked yet."""
        self._lock = threading.Lock()
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._is_over = False

    def give_up(self) -> None:
        """End the query that runs, and ask no other one."""
        with self._lock:
            self._is_over = True
            if self._cursor is not None:
                self._cursor.interrupt()

    @contextlib.contextmanager
    def on(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[Ask]:
        """Ask on a cursor until the block ends; Unavailable once it is given up."""

        def ask(sql: str, parameters: Sequence[object]) -> history.Rows:
            if self._is_over:
                raise Unavailable("nobody waits for the answer any more")
            return history.ask(cursor, sql, parameters)

        with self._lock:
            self._cursor = cursor
        try:
            yield ask
        finally:
            with self._lock:
                self._cursor = None


class Snapshots:
    """Questions to the newest published index under a root. Thread-safe."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Open nothing yet: the index may be published later."""
        self._root = Path(root).absolute()
        self._lock = threading.Lock()
        self._current: _Snapshot | None = None

    def signature(self) -> str:
        """Return what tells the published file from the next one; Unavailable if there is none."""
        try:
            found = (self._root / "index.duckdb").stat()
        except FileNotFoundError:
            raise Unavailable(
                "there is no version index yet; check that `commitlog index` is "
                "running, and its log"
            ) from None
        return f"{found.st_ino:x}-{found.st_mtime_ns:x}"

    def read(self, question: Callable[[Ask], Found], asking: Asking | None = None) -> Found:
        """Answer a question from one snapshot; Unavailable if the index can't be read."""
        asking = asking or Asking()
        try:
            return self._read(question, asking)
        except duckdb.IOException:
            # A segment was merged away under a snapshot that is older than its grace.
            self.close()
        try:
            return self._read(question, asking)
        except duckdb.IOException as error:
            raise Unavailable(f"the version index cannot be read: {error}") from error

    def _read(self, question: Callable[[Ask], Found], asking: Asking) -> Found:
        with self._used() as connection, connection.cursor() as cursor:
            cursor.execute("USE commitlog")
            with asking.on(cursor) as ask:
                return question(ask)

    @contextlib.contextmanager
    def _used(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._lock:
            snapshot = self._newest()
            snapshot.users += 1
        try:
            yield snapshot.connection
        finally:
            with self._lock:
                snapshot.users -= 1
                snapshot.close_if_unused()

    def _newest(self) -> _Snapshot:
        # The name is looked at before the file is opened: at worst it is opened once too often.
        signature = self.signature()
        current = self._current
        if current is None or current.signature != signature:
            connection = history.connect(self._root)
            connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
            self._replace(_Snapshot(signature, connection))
        assert self._current is not None
        return self._current

    def close(self) -> None:
        """Close what is open, as soon as nobody uses it."""
        with self._lock:
            self._replace(None)

    def _replace(self, snapshot: _Snapshot | None) -> None:
        former, self._current = self._current, snapshot
        if former is not None:
            former.is_current = False
            former.close_if_unused()
