"""Services and their parts, each a process that runs for as long as a measurement needs it."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from commitlog.errors import Unavailable
from commitlog.protocol import LOG_NAME_DEFAULT
from consumers.runtime.config import Config

PROGRAM = (sys.executable, "-P", "-m", "consumers.cli")
STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class OwnService:
    """A service that was started for a measurement."""

    servers: str
    """Kafka's HOST:PORT."""
    http: str
    pid: int
    """Of the supervisor, whose descendants are all the others."""
    root: Path


@contextlib.contextmanager
def first_line(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[tuple[int, list[str]]]:
    """Run a program and stop it at the end; yield its process id, and its first line in words.

    A part of a service prints a line once it is ready. Standard error goes into the file `log`.
    """
    with (
        contextlib.nullcontext() if log is None else log.open("wb") as told,
        subprocess.Popen(
            command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=told, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().split()
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def own_service(log: str = LOG_NAME_DEFAULT, *flags: str) -> Iterator[OwnService]:
    """Run `commitlog up` in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        command = [*PROGRAM, "up", "--root", folder, "--log", log, *flags, "--port", "0"]
        with first_line(command) as (pid, ready):
            if len(ready) < 4:
                raise Unavailable("the service did not start: see its output above")
            yield OwnService(ready[3], ready[1], pid, Path(folder))


@contextlib.contextmanager
def service_for(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the servers and the log that the settings name, or those of a service of its own."""
    if config.bootstrap_servers:
        yield config.bootstrap_servers, config.log
        return
    with own_service(config.log) as own:
        yield own.servers, config.log


@contextlib.contextmanager
def maintaining(servers: str, root: Path, log: Path, *flags: str) -> Iterator[int]:
    """Run `commitlog maintain` in a root, its log lines in a file; yield its process id."""
    command = [*PROGRAM, "maintain", "--bootstrap-servers", servers, *flags]
    with first_line(command, cwd=root, log=log) as (pid, _):
        yield pid


REQUEST_SECONDS = 120.0


class HttpService:
    """One connection for requests one after another, with no library; close it."""

    def __init__(self, uri: str) -> None:
        """Connect at the first request."""
        address = urlsplit(uri)
        self._connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=REQUEST_SECONDS
        )

    def get(self, path: str) -> bytes:
        """Return the body of an answer; RuntimeError if the service refuses."""
        return self._ask("GET", path)

    def post(self, path: str, body: Any) -> bytes:
        """Send JSON and return the body of the answer; RuntimeError if the service refuses."""
        return self._ask("POST", path, json.dumps(body), {"Content-Type": "application/json"})

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, *request: Any) -> bytes:
        self._connection.request(*request)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"{request[1]}: {response.status} {answer[:300]!r}")
        return answer
