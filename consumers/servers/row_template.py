"""A process that has imported what work on rows needs, and forks: a start takes a twentieth of it.

It never uses what it imported: native libraries start their threads at their first use, and those
don't survive a fork. The few that start before that (numpy's, jemalloc's) know how to be forked.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import warnings
from typing import NoReturn

from consumers.servers import row_process

START_SECONDS = 120.0
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.01
_NUMBER = struct.Struct("!q")
_FORK = 0
"""What is asked beside a child's connection; its id is the answer. Else an id asks how it ended."""
_RUNS = 1 << 32


class Template:
    """The process, as its parent knows it; any thread may ask it."""

    def __init__(self, imports: tuple[str, ...]) -> None:
        """Start it; OSError, EOFError."""
        self._asking = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(START_SECONDS)
        with theirs:
            number = str(theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "consumers.servers.row_template", number, *imports],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether it can fork."""
        return self._process.poll() is None

    def fork(self, connection: socket.socket) -> Forked:
        """Have it fork a child that answers on a connection; OSError, EOFError."""
        return Forked(self, self._ask(_FORK, [connection.fileno()]))

    def poll(self, pid: int) -> int | None:
        """Return how a child ended, None if it runs; it ends with the template."""
        try:
            code = self._ask(pid, [])
        except (EOFError, OSError):
            return -signal.SIGKILL
        return code if code != _RUNS else None

    def _ask(self, number: int, beside: list[int]) -> int:
        with self._asking:
            try:
                socket.send_fds(self._socket, [_NUMBER.pack(number)], beside)
                answer = self._socket.recv(_NUMBER.size)
            except OSError:  # a later answer would be taken for that to the next question
                self._process.kill()
                raise
        if not answer:
            raise EOFError("the process that forks them ended")
        return int(_NUMBER.unpack(answer)[0])

    def close(self) -> None:
        """End it, and its children with it."""
        self._process.kill()
        self._process.wait()
        with self._asking:
            self._socket.close()


class Forked:
    """A child of the template."""

    def __init__(self, template: Template, pid: int) -> None:
        """Know it by its id, which nobody else gets before it was found ended."""
        self.pid = pid
        self._template = template
        self._code: int | None = None
        self._looking = threading.Lock()

    def poll(self) -> int | None:
        """Return how it ended: its status, or minus a signal; None if it runs."""
        with self._looking:
            if self._code is None:
                self._code = self._template.poll(self.pid)
            return self._code

    def kill(self) -> None:
        """End it, if it runs."""
        with self._looking, contextlib.suppress(ProcessLookupError):
            if self._code is None:
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> int:
        """Wait until it ends, and return how; TimeoutError."""
        until = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(_POLL_SECONDS)
        return code


def main() -> None:
    """Fork until the parent ends."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    warnings.filterwarnings("ignore", ".* is multi-threaded", DeprecationWarning)
    warnings.filterwarnings("ignore", "lance is not fork-safe", UserWarning)  # see above
    if _forks_whole():
        for name in sys.argv[2:]:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # a collection would write to pages that all children share
    while True:
        asked, connections, _, _ = socket.recv_fds(control, _NUMBER.size, 1)
        if not asked:
            return
        (number,) = _NUMBER.unpack(asked)
        answer = _fork(control, connections[0]) if number == _FORK else _status(number)
        control.sendall(_NUMBER.pack(answer))


def _forks_whole() -> bool:
    """Return whether a fork may go on with what was imported: Apple's libraries forbid that."""
    return sys.platform == "linux"


def _fork(control: socket.socket, connection: int) -> int:
    child = os.fork()
    if not child:
        control.close()
        _be_child(connection)
    os.close(connection)
    return child


def _status(pid: int) -> int:
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status) if found else _RUNS


def _be_child(connection: int) -> NoReturn:
    try:
        os.setsid()
        if _forks_whole():
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            row_process.answer(socket.socket(fileno=connection))
            os._exit(0)  # threads of native code would keep it
        os.set_inheritable(connection, True)
        command = [sys.executable, "-P", "-m", "consumers.servers.row_process", str(connection)]
        os.execv(command[0], command)
    except BaseException:  # reported by exit
        traceback.print_exc()
    os._exit(1)


if __name__ == "__main__":
    main()
