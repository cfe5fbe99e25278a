"""A child process that ends with this one, even if this one is killed.

`BrokerProcess` runs a command below the watcher (`watch.py`): signals go to the command itself, its
exit code comes back through the watcher.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import wait  # `select` takes no descriptor above 1,023
from pathlib import Path

from consumers.runtime.patience import START_SECONDS, Patience

LOOK_SECONDS = 1.0
REAP_TIMEOUT_SECONDS = 10.0
COMPILER_NICENESS = 15
TIMERS = ("ExpirationReape", "metrics-meter", "group-coord", "share-", "raft-exp", "client-metr")
"""How the names begin of the broker's threads that look several times a second what is due."""
TIMER_SLACK_NS = 200_000_000
"""How late they may be: the system then wakes them less often, and several at once. Timeouts are
late by this, answers never."""


def environment() -> dict[str, str]:
    """Return the environment of a Java: any path can be opened, and errors are in English."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


class BrokerProcess:
    """One running command; output goes to the end of a file."""

    def __init__(self, command: Sequence[str], *, output: Path, inherited: Sequence[int]) -> None:
        """Start the command; `inherited` descriptors stay open in it and in its watcher."""
        watcher = [sys.executable, "-I", "-S", str(Path(__file__).with_name("watch.py"))]
        with output.open("ab") as sink:
            self._watcher = subprocess.Popen(
                [*watcher, str(os.getpid()), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                bufsize=0,
                pass_fds=inherited,
                # A terminal's Ctrl-C is for the parent, which stops the command in its own order.
                start_new_session=True,
                env=environment(),
            )
        try:
            self.pid = self._read_pid()
        except BaseException:
            self._watcher.kill()
            self._reap()
            raise

    def _read_pid(self) -> int:
        assert self._watcher.stdout is not None
        patience = Patience(START_SECONDS, lambda: None, lambda: [self._watcher.pid])
        ready: list[object] = []
        while not ready and patience.left:
            ready = [*wait([self._watcher.stdout.fileno()], LOOK_SECONDS)]
        line = self._watcher.stdout.readline() if ready else b""
        if not line.strip():
            raise OSError("the broker's process could not be started")
        return int(line)

    def calm_threads(self) -> None:
        """Have threads that answer no requests yield to those that do, and wake less often.

        Java's optimizing compiler is busy for the first minutes, and with few processors every
        commit waited for it. The broker's timers are half of what an idle broker does; to slow
        another process's takes a privilege (CAP_SYS_NICE), without which they stay as they are.
        """
        # Linux alone tells threads by their names, and this many letters of them.
        for thread in Path(f"/proc/{self.pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                name = (thread / "comm").read_text()
                if name.startswith("C2 Compiler"):
                    own = os.getpriority(os.PRIO_PROCESS, self.pid)
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), own + COMPILER_NICENESS)
                elif name.startswith(TIMERS):
                    Path(f"/proc/{thread.name}/timerslack_ns").write_text(str(TIMER_SLACK_NS))

    def poll(self) -> int | None:
        """Exit code, 128 + signal if one ended the command, None while it runs."""
        code = self._watcher.poll()
        return code if code is None or code >= 0 else 128 - code

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for the end; False if the time ran out first."""
        try:
            self._watcher.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return False
        self._close_pipes()
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command; nothing happens if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the command at once and wait until it is gone."""
        self.send(signal.SIGKILL)
        if not self.wait(REAP_TIMEOUT_SECONDS):
            self._watcher.kill()
            self._reap()

    def _reap(self) -> None:
        self.wait(REAP_TIMEOUT_SECONDS)
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._watcher.stdin, self._watcher.stdout):
            if pipe is not None:
                pipe.close()
