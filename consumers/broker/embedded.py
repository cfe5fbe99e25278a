"""One Kafka node on loopback as a child of this process.

`EmbeddedBroker.start` returns a broker that answers Kafka's protocol, or raises the error that says
what to do. A root belongs to one broker at a time, keeps its data, cluster id and port over
restarts, and takes up again where a kill left it. The broker ends with the process that started it.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from commitlog.java import Java
from consumers.broker import ports
from consumers.broker.child import BrokerProcess, environment
from consumers.broker.configuration import HOST, JVM_FLAGS
from consumers.broker.errors import BrokerError, PortInUse, failure, port_in_use
from consumers.broker.home import Home, check_path, full_disk_named, new_id
from consumers.broker.jars import ensure_jars
from consumers.broker.java import find_java
from consumers.broker.prepared import QuickStart, ensure_prepared
from consumers.broker.readiness import wait_until_ready
from consumers.runtime import locks
from consumers.runtime.patience import START_SECONDS, Patience

FORMAT_LOOK_SECONDS = 1.0
ARCHIVE_TIMEOUT_SECONDS = 120.0
START_TRIES = 3
LOG_TAIL_BYTES, LOG_TAIL_LINES = 64 * 1024, 200
NOT_FORMATTED = (
    *("log.cleaner.", "log.initial.", "log.retention.", "log.segment."),
    *("listeners", "listener.", "advertised.listeners", "inter.broker.listener."),
    *("sasl.", "ssl.", "authorizer.", "super.users", "allow.everyone.", "auto.create."),
    "controller.quorum.voters",
)
"""How the names of settings begin that change no formatted data: how topics are cleaned, where the
broker listens, and whom it lets in."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What every try of a start has in common."""

    home: Home
    java: Java
    jars: Path
    lock: int
    fsync: bool
    settings: Mapping[str, str]
    start_seconds: float
    cluster_id: str
    """What data that is made now is formatted with."""
    prepared: QuickStart | None
    archiving: tuple[str, ...]
    """Flags that read the prepared classes, or write them."""


class EmbeddedBroker:
    """A running broker; made by `start`."""

    def __init__(self, home: Home, child: BrokerProcess, port: int, log_start: int) -> None:
        """Wrap a process that was just started."""
        self._home = home
        self._child = child
        self._log_start = log_start
        self._is_stopping = False
        self.port = port
        self.pid = child.pid
        self.cluster_id = ""
        self.java: Java | None = None

    @classmethod
    def start(
        cls,
        root: Path,
        *,
        port: int = 0,
        fsync: bool = False,
        settings: Mapping[str, str] | None = None,
        start_seconds: float = START_SECONDS,
        cluster_id: str = "",
        on_progress: Callable[[str], None] | None = None,
    ) -> Self:
        """Start a broker on a root and wait until it is ready.

        Port 0 is the port that this root had before, or a free one the first time. With `fsync`
        every record is on disk before it is acknowledged. `settings` are server properties that win
        over ours. A root without data gets the identity `cluster_id`, or one of its own if none is
        named. A start that makes no progress for `start_seconds` is given up; loading a long
        log, on a loaded machine, is progress.

        Raises:
            RootUnsuitable, NoJava, JarsUnavailable, JarMismatch, BrokerRunning, PortInUse,
                DiskFull, BrokerFailed: each tells what to do; the root is as it was.
        """
        home = Home(root.expanduser().absolute())
        check_path(home.root)
        tell = on_progress or (lambda message: None)
        with full_disk_named(home.root):
            home.folder.mkdir(parents=True, exist_ok=True)
            lock = home.lock()
            try:
                java = find_java()
                jars = ensure_jars(java, on_progress=on_progress)
                prepared = ensure_prepared(java, jars, partial(_prepare, java, jars), on_progress)
                tell(f"starting Kafka with Java {java.version} ({java.source})")
                plan = _Plan(
                    home=home,
                    java=java,
                    jars=jars,
                    lock=lock,
                    fsync=fsync,
                    settings=settings or {},
                    start_seconds=start_seconds,
                    cluster_id=cluster_id or new_id(),
                    prepared=prepared,
                    archiving=_reading(prepared),
                )
                _format_once(plan)
                broker = cls._start_somewhere(plan, port)
                locks.sign(lock, broker.pid)
                home.keep_port(broker.port)
            finally:
                # From here on the broker's own process holds the lock.
                os.close(lock)
        broker.java = java
        return broker

    @classmethod
    def _start_somewhere(cls, plan: _Plan, port: int) -> Self:
        fixed = port or plan.home.kept_port()
        for tries_left in reversed(range(START_TRIES)):
            chosen = fixed or ports.pick()
            if not ports.is_free(chosen):
                raise port_in_use(chosen)
            try:
                return cls._start_on(plan, chosen, ports.pick(but_not=chosen))
            except PortInUse as error:
                # Somebody took a port between our look and the broker's bind. Ours to choose:
                # choose another.
                if error.port == fixed or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    @classmethod
    def _start_on(cls, plan: _Plan, port: int, controller_port: int) -> Self:
        home = plan.home
        home.configure(
            port=port, controller_port=controller_port, fsync=plan.fsync, settings=plan.settings
        )
        command = [str(plan.java.path), *JVM_FLAGS, *plan.archiving]
        command += [f"-XX:ErrorFile={home.folder / 'crash-%p.log'}"]
        command += [f"-Dlog4j2.configurationFile={home.log_properties.as_uri()}"]
        command += ["-cp", f"{plan.jars}/*", "kafka.Kafka", str(home.server_properties)]
        log_start = home.log.stat().st_size if home.log.exists() else 0
        child = BrokerProcess(command, output=home.log, inherited=(plan.lock,))
        broker = cls(home, child, port, log_start)
        try:
            found = wait_until_ready(
                HOST,
                port,
                patience=Patience(plan.start_seconds, broker._log_size, lambda: [child.pid]),
                has_ended=lambda: child.poll() is not None,
            )
            if found is None:
                raise broker._why("start")
            if found != home.cluster_id():
                raise port_in_use(port)
        except BaseException:
            child.kill()
            raise
        broker.cluster_id = found
        child.calm_threads()
        return broker

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to, "127.0.0.1:PORT"."""
        return f"{HOST}:{self.port}"

    @property
    def log_path(self) -> Path:
        """The broker's log."""
        return self._home.log

    def _log_size(self) -> int:
        with contextlib.suppress(OSError):
            return self._home.log.stat().st_size
        return 0

    def poll(self) -> int | None:
        """Exit code, 128 + signal if one ended it, None while it runs."""
        return self._child.poll()

    def failure(self) -> BrokerError | None:
        """Why the broker ended without being asked to; None if it runs or was stopped."""
        return None if self._is_stopping or self.poll() is None else self._why("run")

    def last_log_lines(self) -> list[str]:
        """The last lines that the broker logged since this start."""
        try:
            with self._home.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                # Smaller than at our start: it was rolled, and all of it is ours.
                first = self._log_start if size >= self._log_start else 0
                file.seek(max(first, size - LOG_TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        return text.splitlines()[-LOG_TAIL_LINES:]

    def stop(self, timeout_seconds: float = 10) -> None:
        """Stop cleanly, or by force when the time runs out; does nothing if it has ended."""
        self._is_stopping = True
        self._child.send(signal.SIGTERM)
        self._child.send(signal.SIGCONT)
        if not self._child.wait(timeout_seconds):
            self._child.kill()

    def kill(self) -> None:
        """End it at once (kill -9), as a crash would, and wait until it is gone."""
        self._is_stopping = True
        self._child.kill()

    def __enter__(self) -> Self:
        """Use the broker; it is stopped at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _why(self, doing: str) -> BrokerError:
        return _why(self._home, self.last_log_lines(), self.poll(), doing)


def _why(home: Home, lines: Sequence[str], exit_code: int | None, doing: str) -> BrokerError:
    free_bytes = shutil.disk_usage(home.folder).free
    return failure(lines, root=home.root, exit_code=exit_code, doing=doing, free_bytes=free_bytes)


def _reading(prepared: QuickStart | None) -> tuple[str, ...]:
    if prepared is None or not prepared.classes.is_file():
        return ()
    return (f"-XX:SharedArchiveFile={prepared.classes}",)


def _prepare(java: Java, jars: Path, root: Path, into: QuickStart) -> None:
    """Run a broker on a throwaway root, and keep what later starts can use."""
    home = Home(root)
    home.folder.mkdir(parents=True)
    lock = home.lock()
    try:
        plan = _Plan(
            home=home,
            java=java,
            jars=jars,
            lock=lock,
            fsync=False,
            settings={},
            start_seconds=START_SECONDS,
            cluster_id=new_id(),
            prepared=None,
            archiving=(f"-XX:ArchiveClassesAtExit={into.classes}",),
        )
        _format_once(plan)
        shutil.copytree(home.data, into.data)
        for path in into.data.rglob("*"):
            # Kafka keeps some to itself; a cache may have been filled by another user.
            path.chmod(path.stat().st_mode | 0o444)
        EmbeddedBroker._start_somewhere(plan, 0).stop(ARCHIVE_TIMEOUT_SECONDS)
    finally:
        os.close(lock)


def _format_once(plan: _Plan) -> None:
    home = plan.home
    if home.cluster_id() is not None:
        return
    # Any other setting may be one that formatting writes down.
    if plan.prepared is not None and all(name.startswith(NOT_FORMATTED) for name in plan.settings):
        home.copy_formatted(plan.prepared.data, plan.cluster_id)
        return
    home.configure(port=1, controller_port=2, fsync=False, settings={})
    with home.being_formatted(plan.settings) as configuration:
        command = [str(plan.java.path), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += [f"-Dlog4j2.configurationFile={home.log_properties.as_uri()}"]
        command += ["-cp", f"{plan.jars}/*", "kafka.tools.StorageTool", "format"]
        command += ["--cluster-id", plan.cluster_id, "--config", str(configuration)]
        formatting = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
        )
        patience = Patience(plan.start_seconds, lambda: None, lambda: [formatting.pid])
        said, code = _await_end(formatting, patience)
        if code != 0:
            raise _why(home, said.decode(errors="replace").splitlines(), code, "format its data")


def _await_end(process: subprocess.Popen[bytes], patience: Patience) -> tuple[bytes, int | None]:
    """Return what a process said and its exit code; None if it was ended for being stuck."""
    try:
        while patience.left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=FORMAT_LOOK_SECONDS)[0], process.returncode
    except BaseException:
        process.kill()
        process.wait()
        raise
    process.kill()
    return process.communicate()[0], None
