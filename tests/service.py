"""A whole service in one process: a log in memory, committers on threads, a client.

Everything but Kafka is real: sockets, files, pylance.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.ports import Log
from consumers.partition import feeding
from consumers.servers import committer
from consumers.servers.committer import Committer, CommitterOptions
from consumers.tools.archive.log import with_archive
from consumers.tools.rows.writer import RowWriter, RowWriterOptions
from tests.waiting import meanwhile

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
READY_SECONDS = 180.0

# After so long an idle committer sees that it is to stop. Thousands of tests wait for one's end.
committer.IDLE_SECONDS, feeding.READ_SECONDS = 0.05, 0.02


def rows(*ids: int, name: str = "a") -> pa.Table:
    """Return rows of `SCHEMA` with these ids."""
    return pa.table({"id": list(ids), "name": [name] * len(ids)}, schema=SCHEMA)


def ids_of(dataset: lance.LanceDataset) -> list[int]:
    """Return a table's ids, sorted."""
    return sorted(dataset.to_table(columns=["id"]).column("id").to_pylist())


def with_bytes(word: bytes, *folders: Path) -> list[str]:
    """Return the files that hold a word, of those that stay while they are read."""
    found = []
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        with suppress(FileNotFoundError):
            if word in path.read_bytes():
                found.append(str(path))
    return found


class Running:
    """One committer on a thread."""

    def __init__(self, log: Log, root: Path, **options: Any) -> None:
        """Start it; it stands by while another one leads."""
        self._stop = threading.Event()
        self.leads = threading.Event()
        self.failure: BaseException | None = None
        made = CommitterOptions(root, **options)
        self.committer = Committer(log, made, on_ready=lambda node: self.leads.set())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.committer.run(self._stop)
        except BaseException as error:
            self.failure = error

    def await_leading(self) -> Running:
        """Wait until it leads."""
        assert self.leads.wait(READY_SECONDS), self.failure
        return self

    def await_end(self) -> None:
        """Wait until it ended by itself."""
        self._thread.join(READY_SECONDS)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        """End it cleanly."""
        self._stop.set()
        self.committer._answers.wake()
        self._thread.join(READY_SECONDS)
        assert not self._thread.is_alive()


@contextmanager
def leading(log: Log, root: Path, **options: Any) -> Iterator[Running]:
    """Have a committer lead meanwhile."""
    running = Running(log, root, **options)
    try:
        yield running.await_leading()
    finally:
        running.stop()


def on_memory(cluster: MemoryCluster, root: Path) -> Running:
    """Start a committer that often writes a checkpoint, and reads the root's archive too."""
    return Running(with_archive(MemoryLog(cluster), root), root, checkpoint_seconds=0.5)


class Service:
    """A cluster in memory, folders, and whoever runs on them."""

    def __init__(self, root: Path) -> None:
        """Make the log."""
        self.root = root
        self.cluster = MemoryCluster()
        self.log = MemoryLog(self.cluster)
        self.log.create(tables_root=str(root / "tables"))
        self.running: list[Running] = []
        self.client = CommitLog(lambda: MemoryLog(self.cluster))

    def start(self, root: Path | None = None) -> Running:
        """Start a committer with its checkpoints below `root`."""
        running = on_memory(self.cluster, root or self.root)
        self.running.append(running)
        return running

    def location(self, table: str) -> Path:
        """Return where a table lies."""
        return Path(self.client.table(table).location)

    def close(self) -> None:
        """End all."""
        self.client.close()
        for running in self.running:
            running.stop()


@contextmanager
def applying(client: CommitLog, **options: Any) -> Iterator[RowWriter]:
    """Run a row writer, whose client this is, on threads of its own."""
    writer = RowWriter(client, RowWriterOptions(**options))
    with meanwhile(writer.run):
        yield writer


@contextmanager
def service(root: Path) -> Iterator[Service]:
    """Run a service with one leading committer."""
    made = Service(root)
    try:
        made.start().await_leading()
        yield made
    finally:
        made.close()
