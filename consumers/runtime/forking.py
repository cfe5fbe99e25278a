"""Processes that are forked: what all of them need is imported once, and its memory shared.

A template is a process that imports, forks when asked, and never uses what it imported: native
libraries start their threads at their first use, and those don't survive a fork. The few that
start before that (numpy's, jemalloc's) know how to be forked. What it forks is a child of the
process that asked, as one that was started by a command line is, and outlives the template.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

START_SECONDS = 120.0
"""How long imports may take."""
CAN_FORK = sys.platform == "linux"
"""Apple's libraries forbid that a fork goes on with them."""
REQUEST_BYTES_MAX = 1 << 20
DESCRIPTORS_MAX = 16
_POLL_SECONDS = 0.01
_NUMBER = struct.Struct("!q")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_COMMAND_LINE = slice(45, 47)
"""Its start and end in memory, among the words of /proc/self/stat behind the name (proc(5))."""
_adopting = threading.Lock()


class _Asked(NamedTuple):
    """What is asked of a template."""

    function: str
    argument: Any
    inherited: list[int]
    """The numbers that the descriptors sent beside have in the new process."""
    shown: list[str]
    parent: int


class Forked:
    """A child of this process, with the methods of subprocess.Popen; any thread may use it."""

    def __init__(self, pid: int) -> None:
        """Know it by its id, which nobody else gets before it was found ended."""
        self.pid = pid
        self._code: int | None = None
        self._looking = threading.Lock()

    def poll(self) -> int | None:
        """Return how it ended: its status, or minus a signal; None if it runs."""
        with self._looking:
            return self._look()

    def _look(self) -> int | None:
        if self._code is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        with self._looking:
            if self._look() is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """Return how it ended; subprocess.TimeoutExpired after so many seconds."""
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_SECONDS)
        return code


class Template:
    """A process that forks others, as its parent knows it; any thread may ask it."""

    def __init__(self, imports: Sequence[str], *, is_fork: bool = False) -> None:
        """Have it begin to import modules; OSError.

        `is_fork`: it has what this process has imported, which must have used none of it yet and
        have no other thread.
        """
        self._awaiting, self._asking = threading.Lock(), threading.Lock()
        self._has_imported = False
        self._process: Forked | subprocess.Popen[bytes]
        # Its messages have ends.
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(START_SECONDS)
        shown = ["-P", "-m", __name__, str(theirs.fileno()), *imports]
        with theirs:
            if not is_fork:
                self._process = subprocess.Popen(
                    [sys.executable, *shown],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # standard error
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
                return
            parent, pid = os.getpid(), _forked()
            if not pid:
                _run_apart(lambda: _be_template(parent, theirs, imports, shown))
            self._process = Forked(pid)

    @property
    def is_running(self) -> bool:
        """Whether it can fork."""
        return self._process.poll() is None

    def fork(
        self, function: str, argument: Any, *, inherited: Sequence[int], shown: Sequence[str]
    ) -> Forked:
        """Have a child call "module:function" with an argument that JSON can express, and end.

        It has these descriptors by their numbers, and shows `shown` as its command line. It is
        killed when this process ends. Raises OSError, EOFError.
        """
        asked = _Asked(function, argument, list(inherited), list(shown), os.getpid())
        self._await_imports()
        with self._asking, _adopting_orphans():
            try:
                socket.send_fds(self._socket, [json.dumps(asked).encode()], inherited)
                answer = self._socket.recv(_NUMBER.size)
            except OSError:  # a later answer would be taken for that to the next question
                self._process.kill()
                raise
        if not answer:
            raise EOFError("the process that forks others has ended")
        return Forked(_NUMBER.unpack(answer)[0])

    def _await_imports(self) -> None:
        with self._awaiting:
            if not self._has_imported and not self._socket.recv(_NUMBER.size):
                raise EOFError("the process that forks others ended while it imported")
            self._has_imported = True

    def close(self) -> None:
        """End it; what it forked goes on."""
        with self._asking:  # nothing is forked that nobody would be told of
            self._process.kill()
            self._process.wait(START_SECONDS)
        with self._awaiting:
            self._socket.close()


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Have a process below this one, whose parent ends, become a child of this one."""
    library = ctypes.CDLL(None)
    with _adopting:
        library.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            yield
        finally:
            library.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _forked() -> int:
    with warnings.catch_warnings():
        # Nothing imported here was used yet.
        warnings.filterwarnings("ignore", "lance is not fork-safe", UserWarning)
        warnings.filterwarnings("ignore", ".* is multi-threaded", DeprecationWarning)
        return os.fork()


def _run_apart(work: Callable[[], object]) -> NoReturn:
    """Do a forked process's work and end it, whatever happens, but not as its parent would end."""
    code: object = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:  # reported by exit
        traceback.print_exc()
    if not (code is None or isinstance(code, int)):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Threads of native code would keep it.
    os._exit(code or 0)


def _be_template(
    parent: int, control: socket.socket, imports: Sequence[str], shown: Sequence[str]
) -> None:
    """Be a template in a process that was forked from the one that asks."""
    _end_with(parent)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # whoever reads the parent's output waits for its end
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != control.fileno():
            with contextlib.suppress(OSError):
                os.close(int(name))
    _name_process(shown)
    _serve(control, imports)


def _serve(control: socket.socket, imports: Sequence[str]) -> None:
    """Fork what is asked for until the parent ends."""
    for name in imports:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection would write to pages that all children share
    try:
        control.sendall(_NUMBER.pack(0))
    except BrokenPipeError:  # the parent has ended: its settings were refused, say
        return
    while True:
        asked, received, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, DESCRIPTORS_MAX)
        if not asked:
            return
        control.sendall(_NUMBER.pack(_fork(_Asked(*json.loads(asked)), control, received)))
        for number in received:
            os.close(number)


def _fork(asked: _Asked, control: socket.socket, received: list[int]) -> int:
    """Fork a process and give it away; return its id when it is the child of who asked."""
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
        _run_apart(lambda: _be_forked(asked, received, between))
    os.close(telling)
    with open(told, "rb") as file:
        said = file.read(_NUMBER.size)
    os.waitpid(between, 0)
    return int(_NUMBER.unpack(said)[0])


def _be_forked(asked: _Asked, received: list[int], between: int) -> None:
    while os.getppid() == between:
        time.sleep(0.001)
    _end_with(asked.parent)
    _put_in_place(received, asked.inherited)
    _name_process(asked.shown)
    module, _, name = asked.function.partition(":")
    getattr(importlib.import_module(module), name)(asked.argument)


def _end_with(parent: int) -> None:
    """Have this process end with its parent, but not by a terminal's Ctrl-C, which is for that."""
    os.setsid()
    die_with_parent()
    if os.getppid() != parent:  # it has ended already
        os._exit(0)


def die_with_parent(how: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, how)


def _put_in_place(received: list[int], wanted: list[int]) -> None:
    """Give descriptors the numbers by which the new process is told of them."""
    above = max(wanted, default=0) + 1
    spare = [fcntl.fcntl(number, fcntl.F_DUPFD, above) for number in received]
    for number in received:
        os.close(number)
    for number, place in zip(spare, wanted, strict=True):
        os.dup2(number, place)
        os.close(number)


def _name_process(shown: Sequence[str]) -> None:
    """Show Python's command line to `ps`, as far as there is room for it."""
    try:
        behind = Path("/proc/self/stat").read_text().rpartition(")")[2]
    except OSError:  # nobody looks there either
        return
    start, end = map(int, behind.split()[_COMMAND_LINE])
    for program in (sys.executable, os.path.basename(sys.executable)):
        line = b"\0".join(os.fsencode(word) for word in (program, *shown))
        if len(line) < end - start:
            break
    if start:  # which only who may trace this process is told
        ctypes.memmove(start, line[: end - start - 1].ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
