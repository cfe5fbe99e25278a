"""The parts that `commitlog up` runs: each a child process, started again when it dies.

A part that dies is started again after a pause that doubles, up to a number of times within a
while. One that ends with a code that says "this will fail again" is not.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from consumers.commands.exit_codes import ExitCode, is_final
from consumers.runtime.config import PREFIX
from consumers.runtime.forking import Forked, Template
from consumers.runtime.process import LIFELINE, ending
from consumers.runtime.roots import PartFailed

RESTARTS_MAX = 6
RESTARTS_WITHIN_SECONDS = 120.0
PAUSE_SECONDS = 0.25
PAUSE_SECONDS_MAX = 8.0
KILLED_SECONDS = 1.0
"""A busy machine, or a disk that hangs, keeps what was killed for longer."""
LAST_WORDS_BYTES = 4096
PROGRAM = "consumers.cli"
"""The module of the command line, which has a function `run`, and can be run itself."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Restarts:
    """How often something died lately, and how long to wait before it is started again."""

    name: str
    deaths: deque[float] = field(default_factory=deque)

    def after_death(self, now: float, *, is_waiting: bool = False) -> float:
        """Note a death; return the pause in seconds.

        A part that dies because it waits for another one `is_waiting`, and is started again for as
        long as that takes. Raises PartFailed if there were too many other deaths.
        """
        self.deaths.append(now)
        while self.deaths and self.deaths[0] < now - RESTARTS_WITHIN_SECONDS:
            self.deaths.popleft()
        count = len(self.deaths)
        if count > RESTARTS_MAX and not is_waiting:
            raise PartFailed(
                f"{self.name} died {count} times within {RESTARTS_WITHIN_SECONDS:.0f} s: "
                "see its log in the root"
            )
        return min(PAUSE_SECONDS * 2.0 ** min(count - 1, 10), PAUSE_SECONDS_MAX)


class CommandProcess:
    """One `commitlog` command as a child process."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        inherited: Sequence[int],
    ) -> None:
        """Describe the part; `inherited` descriptors stay open in it."""
        self.name = name
        self._arguments = tuple(arguments)
        # -P: a folder `consumers` in the working directory is not ours.
        self._command = [sys.executable, "-P", "-m", PROGRAM, *arguments]
        self._environment = environment
        self._inherited = tuple(inherited)
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._lifeline: socket.socket | None = None
        self._restarts = Restarts(name)
        self._start_at = 0.0
        self._said = b""

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None else None

    @property
    def address(self) -> str:
        """What it said when it was ready, "" before."""
        if self._lifeline is not None and b"\n" not in self._said:
            with contextlib.suppress(BlockingIOError, OSError):
                self._said += self._lifeline.recv(256)
        line, newline, _ = self._said.partition(b"\n")
        return line.decode() if newline else ""

    def start(self, template: Template | None = None) -> None:
        """Start it, by a template if that can; call from the main thread, with which it ends."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                self._process = self._started(theirs.fileno(), template)
        except BaseException:
            ours.close()
            raise
        self._lifeline, self._said = ours, b""

    def _started(
        self, lifeline: int, template: Template | None
    ) -> subprocess.Popen[bytes] | Forked:
        environment = {**self._environment, LIFELINE: str(lifeline)}
        inherited = (lifeline, *self._inherited)
        if template is not None:
            what, shown = [self._arguments, environment], self._command[1:]
            try:
                return template.fork(f"{__name__}:_be", what, inherited=inherited, shown=shown)
            except (OSError, EOFError) as error:
                logger.warning("%s is started by its command line: %s", self.name, error)
        return subprocess.Popen(
            self._command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            pass_fds=inherited,
            # A terminal's Ctrl-C is for the supervisor, which stops its parts in order.
            start_new_session=True,
        )

    def check(self, now: float) -> None:
        """Start it again if it died and its pause is over.

        Raises:
            PartFailed: another start would end the same way, or it died too often.
        """
        if self._process is None:
            if now >= self._start_at:
                self.start()
            return
        code = self._process.poll()
        if code is None:
            return
        self._forget()
        how = ending(code)
        if is_final(code):
            raise PartFailed(f"{self.name} ended with {how}: see its output above", code=code)
        pause = self._restarts.after_death(now, is_waiting=code == ExitCode.UNAVAILABLE)
        logger.warning(
            "%s ended with %s%s; restarting in %.2g s", self.name, how, self._last_words(), pause
        )
        self._start_at = now + pause

    def _last_words(self) -> str:
        """Return what the part said as it ended, from its log in the root."""
        log = Path(self._environment.get(f"{PREFIX}ROOT", "")) / f"{self.name}.log"
        try:
            with log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        _, said, why = (lines[-1] if lines else "").partition(" ends: ")
        return f" ({why})" if said else ""

    def ask_to_end(self) -> None:
        """Send it SIGTERM."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    def end(self, deadline: float) -> bool:
        """Wait for its end, until the deadline; then kill it. Return True if it ended by itself."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
            ended = True
        except subprocess.TimeoutExpired:
            logger.warning("%s didn't end in time; killing it", self.name)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            try:
                self._process.wait(KILLED_SECONDS)
            except subprocess.TimeoutExpired:
                logger.warning("%s is still there; it ends once the machine lets it", self.name)
            ended = False
        self._forget()
        return ended

    def _forget(self) -> None:
        self._process = None
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None


def _be(what: tuple[Sequence[str], Mapping[str, str]]) -> None:
    """Be a part, in a process that was forked for that."""
    arguments, environment = what
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["commitlog", *arguments]
    importlib.import_module(PROGRAM).run()
