"""How fast appends by several writers are, here and now: by the log, and by Lance alone.

Each writer is a thread that appends the same small fragment again and again, and waits until its
version can be opened. `commitlog bench commit` measures it with processes, for longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import pyarrow as pa

if TYPE_CHECKING:
    from commitlog import CommitLog

TABLE = "demo$rates"
WRITERS = 8
SECONDS = 2.0
ROWS = pa.table({"id": list(range(10))})
DONE_SECONDS = 60.0


@dataclass(frozen=True)
class Rate:
    """What the writers of one system made."""

    system: str
    commits: int
    failed: int
    seconds: float
    slowest_ms: float

    @property
    def per_second(self) -> float:
        """Commits a second."""
        return self.commits / self.seconds


def measure(log: CommitLog, folder: Path) -> list[Rate]:
    """Return the rates of Lance alone and of the log, measured one after the other."""
    return [_measured("Lance alone", _native(folder)), _measured("through the log", _ours(log))]


def _native(folder: Path) -> Callable[[], Callable[[], None]]:
    location = str(folder / f"rates-{time.time_ns()}.lance")
    lance.write_dataset(ROWS, location)
    operation = lance.LanceOperation.Append(lance.fragment.write_fragments(ROWS, location))

    def writer() -> Callable[[], None]:
        dataset = lance.dataset(location)

        def commit() -> None:
            nonlocal dataset
            dataset = lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)

        return commit

    return writer


def _ours(log: CommitLog) -> Callable[[], Callable[[], None]]:
    log.create_table(TABLE, ROWS.schema, policy="latest", exist_ok=True)
    info = log.table(TABLE)
    operation = lance.LanceOperation.Append(lance.fragment.write_fragments(ROWS, info.location))

    def commit() -> None:
        log.submit(TABLE, operation, read_version=info.version).result().raise_for_conflict()

    return lambda: commit


def _measured(system: str, writer: Callable[[], Callable[[], None]]) -> Rate:
    took: list[float] = []
    failures: list[Exception] = []
    end = time.monotonic() + SECONDS

    def work(commit: Callable[[], None]) -> None:
        while True:
            began = time.monotonic()
            try:
                commit()
            except Exception as error:  # a lost race counts; the next round tries again
                failures.append(error)
            else:
                took.append(time.monotonic() - began)
            if time.monotonic() >= end:
                return

    threads = [threading.Thread(target=work, args=(writer(),), daemon=True) for _ in range(WRITERS)]
    began = time.monotonic()
    end = began + SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DONE_SECONDS)
    seconds = time.monotonic() - began
    return Rate(
        system=system,
        commits=len(took),
        failed=len(failures),
        seconds=seconds,
        slowest_ms=1000 * max(took, default=0.0),
    )
