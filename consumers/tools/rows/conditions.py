"""Evaluates the conditions of upserts in processes of their own.

A condition is SQL of anybody who may write rows, and native code evaluates it: a thousand terms are
too many for its stack, a list of more values than memory ends its process, and functions in each
other may take for ever. So a row writer asks a child, which costs that condition alone.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import weakref
from multiprocessing.connection import Connection

import pyarrow as pa

SECONDS_MAX = 30.0
"""How long a condition may take for a write's rows."""
MEMORY_BYTES_MAX = 4 * 1024**3
"""Of a child; a condition that needs more loses it."""


class ConditionLost(RuntimeError):
    """A child ended at a condition, or was ended: it took too long."""


class Conditions:
    """Children that evaluate conditions, started when they are needed; any threads may ask."""

    def __init__(self) -> None:
        """Have no child yet."""
        self._free: list[_Child] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._end = weakref.finalize(self, _end_all, self._free)

    def fulfilling(self, target: pa.Table, source: pa.Table, condition: str) -> list[int]:
        """Return the numbers of the pairs of rows for which a condition holds.

        Raises RowsUnusable if it can't be evaluated, ConditionLost if that ended its child.
        """
        with self._lock:
            child = self._free.pop() if self._free else None
        child = child or _Child()
        try:
            found, refusal = child.ask((target, source, condition))
        except BaseException as error:
            child.end()
            if not isinstance(error, EOFError | OSError):
                raise
            raise ConditionLost(
                f"the condition {condition[:200]!r} ended the process that evaluated it, or took"
                f" {SECONDS_MAX:.0f} s"
            ) from error
        with self._lock:
            if not self._is_closed:
                self._free.append(child)
                child = None
        if child is not None:
            child.end()
        if refusal is not None:
            raise refusal
        return found

    def close(self) -> None:
        """End the children, those at work once they are done."""
        with self._lock:
            self._is_closed = True
            _end_all(self._free)


def _end_all(children: list[_Child]) -> None:
    while children:
        children.pop().end()


class _Child:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            number = str(theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "consumers.tools.rows.conditions", number],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self._connection = Connection(ours.detach())

    def ask(self, work: tuple[pa.Table, pa.Table, str]) -> tuple[list[int], Exception | None]:
        """Return which pairs a condition holds for, or why it can't be told; EOFError, OSError."""
        self._connection.send(work)
        if not self._connection.poll(SECONDS_MAX):
            raise TimeoutError("it takes too long")
        answer: tuple[list[int], Exception | None] = self._connection.recv()
        return answer

    def end(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


def _answer(connection: Connection) -> None:
    from commitlog.client.rows.row_groups import RowsUnusable, fulfilling

    for kind, most in ((resource.RLIMIT_DATA, MEMORY_BYTES_MAX), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
    with contextlib.suppress(EOFError, OSError):
        while True:
            work = connection.recv()
            # Whoever asked may be gone by then, and nobody else would end this.
            signal.alarm(2 * int(SECONDS_MAX))
            try:
                answer: tuple[list[int], RowsUnusable | None] = fulfilling(*work), None
            except RowsUnusable as refused:
                answer = [], refused
            signal.alarm(0)
            connection.send(answer)


if __name__ == "__main__":
    _answer(Connection(int(sys.argv[1])))
    # Threads of native code would keep it.
    os._exit(0)
