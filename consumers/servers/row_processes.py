"""Work that may take a process down, in processes of their own.

Pylance is native code: one of its panics, or one request for too much memory, ends the process that
it is in. So such work is done in children, one piece at a time in each. A child that dies costs the
piece that it was at, and the next piece starts another one.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from commitlog.errors import CommitLogError, Unavailable

START_SECONDS = 120.0
END_SECONDS = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """How many children there are, and what each may take."""

    processes: int = 4
    memory_bytes: int = 2 * 1024**3
    wait_seconds: float = 30.0
    """How long a piece of work waits for a free child."""


class WorkLost(CommitLogError):
    """A child ended before it answered; what it was at may have been done."""


class RowProcesses:
    """Children that all do the same kind of work. Thread-safe."""

    def __init__(self, factory: str, argument: Any, settings: ProcessSettings) -> None:
        """Have each child make its handler by `factory`, "module:function", of `argument`."""
        self._settings = settings
        self._children = [
            _Child(factory, argument, settings.memory_bytes) for _ in range(settings.processes)
        ]
        self._lock = threading.Lock()
        self._free = list(self._children)
        """The last one used has the most in its caches."""
        self._waiting: deque[queue.SimpleQueue[_Child]] = deque()
        """Who waits for a free child, in their order: nobody is passed over."""

    @property
    def count(self) -> int:
        """How many children there are."""
        return len(self._children)

    def warm(self) -> None:
        """Start a child in the background: the first piece of work need not wait for that."""
        threading.Thread(target=self._warm, name="row-process", daemon=True).start()

    def ask(self, work: Any, seconds: float) -> Any:
        """Return the answer to a piece of work.

        Raises WorkLost if its child died, or took longer than that and was ended; Unavailable if
        no child was free, and nothing was done.
        """
        child = self._take(self._settings.wait_seconds)
        if child is None:
            raise Unavailable("other work on rows is being done; send it again in a while")
        try:
            return child.ask(work, seconds)
        finally:
            self._give_back(child)

    def pids(self) -> list[int]:
        """Return the ids of the children that run."""
        return [child.pid for child in self._children if child.pid is not None]

    def close(self) -> None:
        """End the children."""
        for child in self._children:
            child.end()

    def _warm(self) -> None:
        child = self._take(0)
        if child is None:
            return
        try:
            child.start()
        except Unavailable as error:
            logger.warning("%s", error)
        finally:
            self._give_back(child)

    def _take(self, wait_seconds: float) -> _Child | None:
        """Return a free child, None if there is none in time."""
        with self._lock:
            if self._free and not self._waiting:
                return self._free.pop()
            if not wait_seconds:
                return None
            place: queue.SimpleQueue[_Child] = queue.SimpleQueue()
            self._waiting.append(place)
        with contextlib.suppress(queue.Empty):
            return place.get(timeout=wait_seconds)
        with self._lock:
            if place in self._waiting:
                self._waiting.remove(place)
                return None
        return place.get()  # it came just now

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().put(child)
            else:
                self._free.append(child)


class _Child:
    """One process and the connection to it; one thread at a time uses it."""

    def __init__(self, factory: str, argument: Any, memory_bytes: int) -> None:
        self._made_of = (factory, argument, memory_bytes)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._is_over = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start it unless it runs; Unavailable if it can't."""
        if self.pid is not None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "consumers.servers.row_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        connection = self._connection = Connection(ours.detach())
        problem = "the server ends" if self._is_over else ""
        try:
            if not problem:
                connection.send(self._made_of)
                problem = _received(connection, START_SECONDS)
        except (EOFError, OSError, TimeoutError) as error:
            problem = f"it ended as it started, or took over {START_SECONDS:g} s: {error}"
        if problem:
            self.close()
            raise Unavailable(f"the process for work on rows can't start: {problem}")

    def ask(self, work: Any, seconds: float) -> Any:
        """Return its answer; WorkLost if there is none in time."""
        self.start()
        connection = self._connection
        try:
            if connection is None:
                raise EOFError
            connection.send(work)
            return _received(connection, seconds)
        except TimeoutError:
            self.close()
            raise WorkLost(f"it took over {seconds:g} s and was ended; ask for less") from None
        except (EOFError, OSError) as error:
            reason = self._ended()
            self.close()
            logger.error("a process for work on rows ended: %s", reason)
            raise WorkLost(f"the process that was at it ended: {reason}") from error

    def end(self) -> None:
        """Kill it for good, whatever it is at, and though it may be starting just now."""
        self._is_over = True
        self.close()

    def close(self) -> None:
        """Kill it."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)

    def _ended(self) -> str:
        process = self._process
        if process is None:
            return "the server ends"
        try:
            code = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        if code >= 0:
            return f"it exited with {code}"
        with contextlib.suppress(ValueError):
            return f"by {signal.Signals(-code).name}"
        return f"by signal {-code}"


def _received(connection: Connection, seconds: float) -> Any:
    if not connection.poll(seconds):
        raise TimeoutError
    return connection.recv()
