"""A stand-in for `CommitLog` as the Spark sink uses it: a directory of Lance tables and a journal.

The first commit of an (application id, sequence) wins, as in the log. A file `crash` in the
directory kills the JVM at a commit: with the committing process before or after it is made, or
when Spark was answered and has not noted the batch.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from commitlog.codecs.lance_schema import schema_fields
from commitlog.lancepb.file_pb2 import Field
from commitlog.model.records import Application, Outcome, Status
from commitlog.spark import CommitLogDataSource
from commitlog.spark.options import Connection, parse_write
from commitlog.spark.sink import StreamSink

STOPPED_SECONDS = 0.5
"""What the JVM's threads need to stand still, and the commit's process to answer."""


@dataclass(frozen=True)
class FakeTable:
    """What planning asks of a table."""

    location: str
    schema: pa.Schema
    data_storage_version: str
    version: int
    name: str
    lance_schema: Any
    primary_key: tuple[str, ...] = ()
    deleted: tuple[tuple[int, int], ...] = ()

    @property
    def field_ids(self) -> dict[int, Field]:
        """Return all fields by id."""
        return {field.id: field for field in schema_fields(self.lance_schema)[0]}

    def top_level_ids(self, names: list[str]) -> tuple[int, ...]:
        """Return the ids of no columns: there is no key."""
        assert not names
        return ()


@dataclass(frozen=True)
class FakeTicket:
    """An answer that is already there."""

    outcome: Outcome

    def result(self, timeout: float = 30, wait: str = "readable") -> Outcome:
        """Return the outcome."""
        assert timeout > 0
        assert wait in ("readable", "committed")
        return self.outcome


class FakeLog:
    """Commits by pylance, one at a time over all processes."""

    def __init__(self, root: Path) -> None:
        """Use the tables in `root`."""
        self.root = root

    def create_table(self, table: str, schema: pa.Schema) -> None:
        """Make an empty table."""
        lance.write_dataset(schema.empty_table(), self.root / f"{table}.lance")

    def table(self, table: str) -> FakeTable:
        """Return where a table is and what it holds."""
        dataset = self.open(table)
        return FakeTable(
            str(dataset.uri),
            dataset.schema,
            dataset.data_storage_version,
            dataset.version,
            table,
            dataset.lance_schema,
        )

    @property
    def opened(self) -> FakeLog:
        """Return what opens tables."""
        return self

    def plain(self, info: FakeTable, version: int) -> lance.LanceDataset:
        """Open a version."""
        return self.open(info.name, version)

    def runtime(self) -> None:
        """Return nothing: versions are found by number here."""

    def open(self, table: str, version: int | None = None) -> lance.LanceDataset:
        """Open a table."""
        return lance.dataset(self.root / f"{table}.lance", version=version)

    def submit(
        self,
        table: str,
        operation: Any,
        *,
        read_version: int | None = None,
        application: Application | None = None,
        inserted_keys: object = None,
        properties: object = (),
    ) -> FakeTicket:
        """Commit, unless this application and sequence did."""
        assert read_version is None, "the stand-in's columns stay what they are"
        assert inserted_keys is None, "the stand-in's tables have no keys"
        with self._alone():
            for entry in self.journal():
                if application and entry["key"] == [table, *_key(application)]:
                    return FakeTicket(_committed(entry["version"]))
            made_so_far = len(self.journal())
            self._crash("before", made_so_far)
            head = self.open(table)
            made = lance.LanceDataset.commit(head, operation, read_version=head.version)
            entry = {
                "key": [table, *_key(application)] if application else None,
                "run": application.run if application else None,
                "operation": type(operation).__name__,
                "version": made.version,
                "pid": os.getpid(),
            }
            with (self.root / "journal.jsonl").open("a") as journal:
                journal.write(json.dumps(entry) + "\n")
            self._crash("after", made_so_far)
            return FakeTicket(_committed(made.version))

    def journal(self) -> list[dict[str, Any]]:
        """Return every commit so far."""
        path = self.root / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def crash_at(self, when: str, commit: int) -> None:
        """Kill the JVM `before` or `after` a commit, from 0, or once that was `answered`."""
        (self.root / "crash").write_text(f"{when} {commit}")

    def stop_before_noting(self, commit: int) -> None:
        """Let the JVM be answered, if so ordered, but never act on it."""
        if self._is_ordered("answered", commit):
            jvm = self._jvm()
            # Stopped, it finds the answer in its socket and notes nothing; then it is killed.
            os.kill(jvm, signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS)
            threading.Timer(STOPPED_SECONDS, os.kill, (jvm, signal.SIGKILL)).start()

    def _crash(self, when: str, commit: int) -> None:
        if self._is_ordered(when, commit):
            os.kill(self._jvm(), signal.SIGKILL)
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_ordered(self, when: str, commit: int) -> bool:
        order = self.root / "crash"
        if not order.exists() or order.read_text() != f"{when} {commit}":
            return False
        order.unlink()
        return True

    def _jvm(self) -> int:
        return int((self.root / "jvm.pid").read_text())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class FakeDataSource(CommitLogDataSource):
    """Format `commitlog` over the stand-in: the bootstrap server is its directory."""

    @staticmethod
    def connect(connection: Connection) -> FakeLog:
        """Open the stand-in."""
        return FakeLog(Path(connection.bootstrap_servers))

    def streamWriter(self, schema: StructType, overwrite: bool) -> FakeSink:  # noqa: N802
        """Return the sink itself, which may be killed once it has committed."""
        options = parse_write(self.options, streaming=True)
        checkpoint = self.options.get("checkpointLocation", "")
        return FakeSink(options, schema, overwrite, self.connect, checkpoint)


class FakeSink(StreamSink):
    """The sink, and the last point at which a batch can be lost to Spark."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit one micro-batch, and crash where that is ordered."""
        super().commit(messages, batchId)
        self.connect(self.options.connection).stop_before_noting(batchId)


def _key(application: Application) -> list[str | int]:
    return [application.application_id, application.sequence]


def _committed(version: int) -> Outcome:
    return Outcome(0, "", 0, Status.COMMITTED, message=str(version))
