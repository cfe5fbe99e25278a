"""Python programs that a test runs to their end, forked from a process that has imported much.

A command of ours takes half a second to more than one of CPU to start, and most of that is imports.
What is forked has them: it is a process as any other, with arguments, environment, output and exit
code of its own, and may be killed. The process that forks runs nothing itself, and ends with the
test's.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

REPOSITORY = Path(__file__).resolve().parents[1]
IMPORTS = (
    "commitlog.adapters.lean_import",  # before what imports that library
    *("commitlog.client.native", "consumers.commands.app", "consumers.commands.options"),
    *("consumers.tools.cleaning", "consumers.tools.doctor", "consumers.tools.replay"),
    *("consumers.tools.verify", "consumers.views.version_index"),
)
START_SECONDS = 180.0
REQUEST_BYTES_MAX = 1 << 17
_PR_SET_PDEATHSIG = 1
_NUMBER = struct.Struct("!q")


def run(
    arguments: Sequence[str], *, timeout: float = 600, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS`, which begin with `-m` or `-c`, as `subprocess.run` would.

    Raises subprocess.TimeoutExpired after so many seconds.
    """
    command = [sys.executable, *arguments]
    if sys.platform != "linux":  # Apple's libraries forbid that a fork goes on with them
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=timeout, check=False
        )
    environment = dict(os.environ if env is None else env)
    asked = {"arguments": list(arguments), "environment": environment, "folder": os.getcwd()}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        told, theirs = socket.socketpair()
        with told:
            with theirs:
                numbers = [out.fileno(), errors.fileno(), theirs.fileno()]
                _template().ask(json.dumps(asked).encode(), numbers)
            told.settimeout(START_SECONDS)
            pid = _number(told)
            told.settimeout(timeout)
            try:
                code = _number(told)
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                if isinstance(error, TimeoutError):
                    raise subprocess.TimeoutExpired(command, timeout) from None
                raise
        said = []
        for file in (out, errors):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(command, code, *said)


def _number(told: socket.socket) -> int:
    found = told.recv(_NUMBER.size)
    if not found:
        raise EOFError("the process that forks has ended")
    return int(_NUMBER.unpack(found)[0])


class _Template:
    """The process that forks, as the test's knows it."""

    def __init__(self) -> None:
        """Start it."""
        self._asking = threading.Lock()
        # Its messages have ends.
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.forked", str(number)],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(number,),
                start_new_session=True,
            )
        atexit.register(self.close)

    def ask(self, request: bytes, descriptors: list[int]) -> None:
        """Have it fork."""
        assert len(request) < REQUEST_BYTES_MAX
        with self._asking:
            socket.send_fds(self._socket, [request], descriptors)

    def close(self) -> None:
        """End it, and with it what it forked."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


@cache
def _template() -> _Template:
    return _Template()


def main() -> NoReturn:
    """Fork until the test's process ends."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    for name in IMPORTS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection would write to pages that all children share
    while True:
        asked, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 3)
        if not asked:
            os._exit(0)  # what was imported has much to say about its end
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not os.fork():
            control.close()
            _keep(asked, *descriptors)
        for number in descriptors:
            os.close(number)


def _keep(asked: bytes, out: int, errors: int, told: int) -> NoReturn:
    """Fork the program, and tell its id, and how it ended."""
    _end_with_parent()
    pid = os.fork()
    if not pid:
        _be(asked, out, errors, told)
    with contextlib.suppress(OSError), socket.socket(fileno=told) as teller:
        teller.sendall(_NUMBER.pack(pid))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        teller.sendall(_NUMBER.pack(code))  # to nobody, if it took too long
    os._exit(0)


def _be(asked: bytes, out: int, errors: int, told: int) -> NoReturn:
    """Run the program."""
    os.close(told)
    _end_with_parent()
    for number, standard in ((out, 1), (errors, 2)):
        os.dup2(number, standard)
        os.close(number)
    request = json.loads(asked)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    how, what, *sys.argv[1:] = request["arguments"]
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    code: object = 1
    try:
        if how == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:  # reported by exit
        traceback.print_exc()
    if not (code is None or isinstance(code, int)):
        print(code, file=sys.stderr)
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code or 0)  # threads of native code would keep it


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
