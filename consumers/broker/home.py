"""A broker's files under a root: `ROOT/kafka`, its lock, its kept port, its cluster's identity.

The holder of the lock owns the folder. The lock is on an open file that the broker's process
inherits, so it is held as long as a broker runs, even if the process that started it has died.
"""

import base64
import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from consumers.broker.configuration import log_configuration, parse_properties, server_properties
from consumers.broker.errors import NO_ROOM, BrokerRunning, RootUnsuitable, disk_full
from consumers.runtime import locks

META = "meta.properties"
"""What tells which cluster a data folder is of."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a root's broker keeps its things."""

    root: Path

    @property
    def folder(self) -> Path:
        """All of it."""
        return self.root / "kafka"

    @property
    def data(self) -> Path:
        """Kafka's own data: metadata log, partitions."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """What the broker tells, log and last words alike."""
        return self.folder / "broker.log"

    @property
    def server_properties(self) -> Path:
        """The configuration of the latest start."""
        return self.folder / "server.properties"

    @property
    def log_properties(self) -> Path:
        """The configuration of the broker's logging."""
        return self.folder / "log4j2.properties"

    def kept_port(self) -> int | None:
        """The port of the last successful start."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self.folder / "port").read_text())
        return None

    def keep_port(self, port: int) -> None:
        """Remember the port for the next start."""
        if self.kept_port() != port:
            replacement = self.folder / "port.new"
            replacement.write_text(f"{port}\n")
            replacement.replace(self.folder / "port")

    def cluster_id(self) -> str | None:
        """The identity that formatting gave the data, None before."""
        try:
            text = (self.data / META).read_text()
        except FileNotFoundError:
            return None
        return parse_properties(text).get("cluster.id")

    def configure(
        self, *, port: int, controller_port: int, fsync: bool, settings: Mapping[str, str]
    ) -> None:
        """Write what the broker reads when it starts."""
        text = server_properties(
            port=port,
            controller_port=controller_port,
            data=self.data,
            fsync=fsync,
            settings=settings,
        )
        self.server_properties.write_text(text)
        self.log_properties.write_text(log_configuration(self.log))

    @contextlib.contextmanager
    def being_formatted(self, settings: Mapping[str, str]) -> Iterator[Path]:
        """A configuration that formats a folder aside, which becomes the data in one rename."""
        configuration = self.folder / "format.properties"
        try:
            with self._aside() as aside:
                properties = server_properties(
                    port=1, controller_port=2, data=aside, fsync=False, settings=settings
                )
                configuration.write_text(properties)
                yield configuration
        finally:
            configuration.unlink(missing_ok=True)

    def copy_formatted(self, formatted: Path, cluster_id: str) -> None:
        """Begin with a copy of formatted data, under ids of its own, in one rename."""
        with self._aside() as aside:
            shutil.copytree(formatted, aside)
            properties = parse_properties((aside / META).read_text())
            properties |= {"cluster.id": cluster_id, "directory.id": new_id()}
            lines = [f"{name}={value}\n" for name, value in properties.items()]
            (aside / META).write_text("".join(lines))

    @contextlib.contextmanager
    def _aside(self) -> Iterator[Path]:
        aside = self.folder / "data.new"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            yield aside
            aside.rename(self.data)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def lock(self) -> int:
        """Take the root; the descriptor returned holds it.

        Raises:
            BrokerRunning: a broker runs on this root.
        """
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not locks.inherited(descriptor):
                raise self._running(locks.owner(descriptor, 1))
            locks.sign(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _running(self, broker_pid: int | None) -> BrokerRunning:
        whose = f" (process {broker_pid})" if broker_pid else ""
        port = self.kept_port()
        return BrokerRunning(
            f"a broker is already running on {self.root}{whose}: use it"
            + (f" with --bootstrap-servers 127.0.0.1:{port}" if port else "")
            + ", stop it, or choose another root"
        )


def new_id() -> str:
    """A random id in Kafka's own form: 22 characters, the first not a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def check_path(root: Path) -> None:
    """Raise RootUnsuitable if Kafka would take the root's path for several folders."""
    if "," in str(root):
        raise RootUnsuitable(
            f"the embedded broker cannot run on {root}: Kafka splits the path at its comma;"
            " choose a root without one, or use a cluster (--bootstrap-servers)"
        )


@contextlib.contextmanager
def full_disk_named(root: Path) -> Iterator[None]:
    """Turn the system's "no space" into the error that says whose disk it is."""
    try:
        yield
    except OSError as error:
        # The copy of a folder has the errors of all its files, and no number.
        is_copy = isinstance(error, shutil.Error) and any(sign in str(error) for sign in NO_ROOM)
        if is_copy or error.errno in (errno.ENOSPC, errno.EDQUOT):
            place = root if error.filename is None else Path(os.fsdecode(error.filename))
            raise disk_full(place if root not in place.parents else root) from error
        raise
