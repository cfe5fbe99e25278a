"""Starts the parts of `commitlog up` by forking: what they import is read once, as Kafka starts.

The starter is forked from the supervisor before that has any thread, and ends when the parts run.
It never uses what it imports: native libraries start their threads at their first use, and those
don't survive a fork. A part is the supervisor's own child, as one started by its command line is.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import logging
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

PROGRAM = "consumers.cli"
"""The module of the command line, which has a function `run`, and can be run itself."""
START_SECONDS = 60.0
"""How long imports may take; then parts are started by their command lines."""
REQUEST_BYTES_MAX = 1 << 20
DESCRIPTORS_MAX = 16
_POLL_SECONDS = 0.02
_NUMBER = struct.Struct("!q")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_COMMAND_LINE = slice(45, 47)
"""Its start and end in memory, among the words of /proc/self/stat behind the name (proc(5))."""

logger = logging.getLogger(__name__)


class _Asked(NamedTuple):
    """What is asked of the starter: a part's command, and its descriptors' numbers."""

    arguments: list[str]
    environment: dict[str, str]
    inherited: list[int]


class ForkedPart:
    """A forked part, with the methods of subprocess.Popen that a supervisor needs."""

    def __init__(self, pid: int) -> None:
        """Know a child of this process."""
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return how it ended: its status, or minus a signal; None if it runs."""
        if self._code is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def terminate(self) -> None:
        """Send it SIGTERM, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def wait(self, timeout: float) -> int:
        """Return how it ended; subprocess.TimeoutExpired after so many seconds."""
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_SECONDS)
        return code


def starter_of(imports: Sequence[str]) -> Starter | None:
    """Fork a starter that imports these modules, where a fork may go on with them.

    Apple's libraries forbid that, and no thread may hold a lock meanwhile.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return None
    try:
        return Starter(imports)
    except OSError as error:
        logger.info("the parts are started one by one: %s", error)
        return None


class Starter:
    """The process that forks parts, as its parent knows it."""

    def __init__(self, imports: Sequence[str]) -> None:
        """Fork it, from a process that has no other thread; OSError."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(START_SECONDS)
        with theirs:
            # A process whose parent ends becomes a child of this one.
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
            self._pid = _forked()
            if not self._pid:
                self._socket.close()
                _run_apart(lambda: _serve(theirs, imports))

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], inherited: Sequence[int]
    ) -> ForkedPart:
        """Start a part that has these descriptors by their numbers; OSError, EOFError."""
        asked = _Asked(list(arguments), dict(environment), list(inherited))
        socket.send_fds(self._socket, [json.dumps(asked).encode()], inherited)
        answer = self._socket.recv(_NUMBER.size)
        if not answer:
            raise EOFError("the process that starts parts has ended")
        return ForkedPart(_NUMBER.unpack(answer)[0])

    def close(self) -> None:
        """End it; the parts go on."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _run_apart(work: Callable[[], None]) -> NoReturn:
    """Do a forked process's work and end it, whatever happens, but not as its parent would end."""
    code: object = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:  # reported by exit
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(bool(code)))


def _forked() -> int:
    with warnings.catch_warnings():
        # Nothing imported here was used yet.
        warnings.filterwarnings("ignore", "lance is not fork-safe", UserWarning)
        return os.fork()


def _serve(control: socket.socket, imports: Sequence[str]) -> None:
    """Fork what is asked for until the parent ends."""
    os.setsid()  # a terminal's Ctrl-C is for the supervisor
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # whoever reads the supervisor's output waits for its end
    for name in imports:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection would write to pages that all parts share
    while True:
        asked, received, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, DESCRIPTORS_MAX)
        if not asked:
            return
        control.sendall(_NUMBER.pack(_fork(_Asked(*json.loads(asked)), control, received)))
        for number in received:
            os.close(number)


def _fork(asked: _Asked, control: socket.socket, received: list[int]) -> int:
    """Fork a part and give it away; return its id when it is the supervisor's child."""
    told, telling = os.pipe()
    between = _forked()
    if not between:
        between = os.getpid()
        pid = _forked()
        if pid:
            os.write(telling, _NUMBER.pack(pid))
            os._exit(0)
        control.close()
        os.close(told)
        os.close(telling)
        _run_apart(lambda: _be_part(asked, received, between))
    os.close(telling)
    with open(told, "rb") as file:
        said = file.read(_NUMBER.size)
    os.waitpid(between, 0)
    return int(_NUMBER.unpack(said)[0])


def _be_part(asked: _Asked, received: list[int], parent: int) -> None:
    """Run a part's command in this process."""
    while os.getppid() == parent:  # whose end would be taken for the supervisor's
        time.sleep(0.001)
    os.setsid()
    _put_in_place(received, asked.inherited)
    os.environ.clear()
    os.environ.update(asked.environment)
    sys.argv = ["commitlog", *asked.arguments]
    _name_process(asked.arguments)
    importlib.import_module(PROGRAM).run()


def _put_in_place(received: list[int], wanted: list[int]) -> None:
    """Give descriptors the numbers by which the part is told of them."""
    above = max(wanted, default=0) + 1
    spare = [fcntl.fcntl(number, fcntl.F_DUPFD, above) for number in received]
    for number in received:
        os.close(number)
    for number, place in zip(spare, wanted, strict=True):
        os.dup2(number, place)
        os.close(number)


def _name_process(arguments: Sequence[str]) -> None:
    """Show this process's own command line to `ps`, as far as there is room for it."""
    behind = Path("/proc/self/stat").read_text().rpartition(")")[2]
    start, end = map(int, behind.split()[_COMMAND_LINE])
    for command in ((sys.executable, "-P", "-m", PROGRAM), ("commitlog",)):
        shown = b"\0".join(os.fsencode(word) for word in (*command, *arguments))
        if len(shown) < end - start:
            break
    ctypes.memmove(start, shown[: end - start - 1].ljust(end - start, b"\0"), end - start)
