"""The processes of a campaign: a broker behind a proxy, committers, and writers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from commitlog.adapters.kafka import KafkaLog
from commitlog.core.log.chain import Chain
from commitlog.model.records import Outcome
from consumers.broker.embedded import EmbeddedBroker
from consumers.runtime.places import check_place
from tests import forked
from tests.faults.proxy import Proxy

LOG = "commitlog"
START_SECONDS = 300.0
END_SECONDS = 180.0
AGAIN_SECONDS = 0.3
"""How long a process that died stays dead, as under a supervisor."""
STOP_CODE = 5
"""What a process ends with that refuses the log."""


class Violated(AssertionError):
    """Something that must hold doesn't."""


class Child:
    """A process that is started again when it dies, unless it shall be dead."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, **settings: str) -> None:
        """Start it."""
        self.name = name
        self._command = ["-m", *command]
        self._log = (folder / f"{name}.log").open("ab")
        self._environment = {**os.environ, **settings}
        self.is_wanted = True
        self.starts = 0
        self.codes: list[int] = []
        """What it ended with by itself."""
        self.start()

    @property
    def is_alive(self) -> bool:
        """Whether the process exists."""
        return self.process.poll() is None

    def start(self) -> None:
        """Start the process."""
        self.starts += 1
        log = self._log.fileno()
        self.process = forked.start(self._command, stdout=log, stderr=log, env=self._environment)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        self.send(signal.SIGKILL)
        self.process.wait(END_SECONDS)

    def close(self) -> None:
        """End it for good."""
        self.is_wanted = False
        self.kill()
        self._log.close()


class Committer(Child):
    """A committer at a known address; its client id is its name."""

    def __init__(self, name: str, folder: Path, servers: str) -> None:
        """Start it with a root of its own."""
        self.root = folder / name
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.node = f"127.0.0.1:{probe.getsockname()[1]}"
        port = self.node.rpartition(":")[2]
        super().__init__(
            name,
            ["consumers.cli", "committer", "--root", str(self.root), "--socket-port", port],
            folder,
            COMMITLOG_BOOTSTRAP_SERVERS=servers,
            COMMITLOG_LOG=LOG,
            COMMITLOG_KAFKA__CLIENT_ID=name,
        )

    def answers(self) -> bool:
        """Say whether its socket takes a connection."""
        host, _, port = self.node.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            return False
        return True


class Writer(Child):
    """A writer with its journal."""

    def __init__(self, name: str, folder: Path, servers: str) -> None:
        """Start it."""
        self.journal = folder / f"{name}.journal"
        command = ["tests.faults.writer", "--name", name, "--journal", str(self.journal)]
        super().__init__(name, [*command, "--servers", servers], folder)

    def entries(self) -> list[dict[str, Any]]:
        """Return what it wrote down so far; a line that is half written counts for nothing."""
        if not self.journal.exists():
            return []
        lines = self.journal.read_bytes().split(b"\n")[:-1]
        entries = []
        for line in lines:
            # A process that is killed may leave half a line, to which its successor appends.
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
        return entries


class Cluster:
    """Everything that runs."""

    def __init__(self, folder: Path, *, committers: int = 2, writers: int = 2) -> None:
        """Start all of it, on an empty log."""
        self.folder = folder
        self.proxy = Proxy()
        self._settings = {"advertised.listeners": f"PLAINTEXT://{self.proxy.bootstrap_servers}"}
        self.broker = EmbeddedBroker.start(folder, settings=self._settings)
        self.proxy.target_port = self.broker.port
        servers = self.proxy.bootstrap_servers
        self.log = KafkaLog.connect(servers, LOG, {"client.id": "auditor"}, timeout_seconds=60)
        self.genesis = self.log.create(tables_root=str(folder / "tables"))
        check_place(self.log)
        self._outcomes = self.log.read_outcomes(0)
        self._chain = Chain()
        self._decided_by = ""
        self.committers = [Committer(f"c{n}", folder, servers) for n in range(committers)]
        self.writers = [Writer(f"w{n}", folder, servers) for n in range(writers)]
        self._closing = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()

    @property
    def children(self) -> list[Child]:
        """Committers and writers."""
        return [*self.committers, *self.writers]

    def restart_broker(self) -> None:
        """Start the broker again where it was."""
        self.broker = EmbeddedBroker.start(
            self.folder,
            port=self.broker.port,
            settings=self._settings,
            start_seconds=START_SECONDS,
        )

    def leader(self, *, has_decided: bool = False) -> Committer | None:
        """Return the committer of the newest valid term, or of the last valid outcome."""
        end = self._outcomes.end_offset()
        while self._outcomes.position() < end:
            for answered in self._outcomes.poll(timeout_seconds=0.1):
                record = answered.record
                if not self._chain.admit(record) and isinstance(record, Outcome):
                    self._decided_by = record.node
        started = self._chain.leader
        node = self._decided_by if has_decided or started is None else started.node
        return next((c for c in self.committers if c.node == node), None)

    def await_leader(
        self, other_than: Committer | None = None, *, has_decided: bool = False
    ) -> Committer:
        """Wait until somebody leads, or has decided something."""
        found: list[Committer] = []

        def leads() -> bool:
            leader = self.leader(has_decided=has_decided)
            found[:] = [leader] if leader is not None else []
            return bool(found) and found[0] is not other_than

        wait_for(leads, START_SECONDS, "a leader")
        return found[0]

    def await_standby(self) -> None:
        """Wait until every committer runs so far that it could take over."""
        wait_for(lambda: all(c.answers() for c in self.committers), START_SECONDS, "a standby")

    def standbys(self) -> list[Committer]:
        """Return the committers that don't lead."""
        leader = self.leader()
        return [committer for committer in self.committers if committer is not leader]

    def close(self) -> None:
        """End all of it."""
        self._closing.set()
        self._supervisor.join(END_SECONDS)
        for child in self.children:
            child.send(signal.SIGCONT)
            child.close()
        self._outcomes.close()
        self.log.close()
        self.broker.kill()
        self.proxy.close()

    def _supervise(self) -> None:
        dead_since: dict[str, float] = {}
        while not self._closing.wait(0.05):
            now = time.monotonic()
            for child in self.children:
                if child.is_alive or not child.is_wanted:
                    dead_since.pop(child.name, None)
                elif now - dead_since.setdefault(child.name, now) > AGAIN_SECONDS:
                    code = child.process.wait(0)
                    if code >= 0:
                        child.codes.append(code)
                    if code != STOP_CODE:
                        child.start()


def wait_for(holds: Callable[[], bool], timeout_seconds: float, what: str) -> float:
    """Wait until something holds; return how many seconds it took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() > began + timeout_seconds:
            raise Violated(f"{what}: not within {timeout_seconds:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - began
