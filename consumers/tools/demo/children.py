"""The demo's processes: the service, the stream, the desks.

Each says what it does on stdout, line by line, and writes the rest to a file. One that dies
before it is done is started again: that is how `kill -9` in the middle looks from here. All of
them end with the demo, even if that was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from consumers.runtime.forking import die_with_parent

STARTS_MAX = 6
RESTART_SECONDS = 1.0
STOP_SECONDS = 15.0
TAIL_LINES = 15
POLL_SECONDS = 0.5

Fact = dict[str, Any]


class ChildFailed(Exception):
    """A process of the demo ended too often, or said something unexpected."""


class _Child:
    """A program of this Python that is started again when it dies before it is done."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self.log, self.starts = name, log, 0

    def _run(self, *arguments: str) -> IO[str]:
        """Start it once more; return its standard output."""
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        return self.process.stdout

    def stop(self) -> None:
        """End it as a user would, by force if it takes long."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_SECONDS)

    def _failed(self, problem: str) -> ChildFailed:
        """Return the error of a child that can't go on, with what it last said."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        said = "\n".join(f"  {line}" for line in lines)
        return ChildFailed(f"{self.name} {problem}:\n{said}")


class DemoProcess(_Child):
    """One process, started again when it dies before it is done."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, log: Path, on_fact: Callable[[Fact], None]
    ) -> None:
        """Start it; `arguments` are those of `python`."""
        super().__init__(name, log)
        self._arguments = list(arguments)
        self._on_fact = on_fact
        self._start()

    def _start(self) -> None:
        told = self._run("-u", *self._arguments)
        self._reader = threading.Thread(target=self._read, args=(told,), daemon=True)
        self._reader.start()

    def _read(self, told: IO[str]) -> None:
        for line in told:
            if line.startswith("{"):
                with contextlib.suppress(ValueError):
                    self._on_fact(json.loads(line))

    def check(self) -> bool:
        """Return True if it is done; start it again if it died.

        Raises:
            ChildFailed: it died too often; the message ends with what it last said.
        """
        code = self.process.poll()
        if code is None:
            return False
        self._reader.join(STOP_SECONDS)
        if code == 0:
            return True
        if self.starts >= STARTS_MAX:
            raise self._failed(f"ended {self.starts} times, last with {code}")
        time.sleep(RESTART_SECONDS)
        self._start()
        return False


class DemoService(_Child):
    """`commitlog up` on a root, started again when it dies."""

    def __init__(self, root: Path, *, log: Path) -> None:
        """Start it and wait until it is ready."""
        super().__init__("`commitlog up`", log)
        self.root = root
        self.http = self.kafka = ""
        self._start()

    def _start(self) -> None:
        up = ["-P", "-m", "consumers.cli", "up", "--root", str(self.root), "--port", "0"]
        told = self._run("-m", "consumers.tools.demo.children", sys.executable, *up)
        line = told.readline().split()
        if line[:1] != ["ready"] or len(line) < 6:
            self.stop()
            raise self._failed("did not become ready")
        self.http, self.kafka = line[1], line[3]

    def check(self) -> None:
        """Start it again if it died; its Kafka port stays."""
        if self.process.poll() is None:
            return
        if self.starts >= STARTS_MAX:
            raise self._failed(f"ended {self.starts} times")
        time.sleep(RESTART_SECONDS)
        self._start()


def end_with_parent() -> None:
    """Be terminated when the parent is gone: by the kernel on Linux, else by looking."""
    expected = os.getppid()
    if sys.platform == "linux":
        die_with_parent(signal.SIGTERM)
        if os.getppid() != expected:
            os.kill(os.getpid(), signal.SIGTERM)
        return
    threading.Thread(target=_watch, args=(expected,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the command in the arguments, which then ends with this process's parent."""
    if sys.platform == "linux":
        end_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
