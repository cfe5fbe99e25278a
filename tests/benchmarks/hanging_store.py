"""What one table's commits cost while another table's store hangs, is slow or fails.

    python -m tests.benchmarks.hanging_store [COMMITS]

Blocks with and without the fault alternate in one run, in one process with the log in memory, so
that both have the same machine. The aim: a p99 within 1.5 times the one without.
"""

from __future__ import annotations

import errno
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.storage import LocalStore
from tests.service import SCHEMA, Service, rows, service

BLOCKS = 10
SLOW_SECONDS = 0.2


class Fault:
    """What happens to calls into the stores of the tables whose name begins with `bad`."""

    def __init__(self, how: str) -> None:
        self.how, self.is_on = how, False
        self.met = 0
        self._may_go_on = threading.Event()

    def call(self, real: Callable[..., Any], store: LocalStore, *arguments: Any) -> Any:
        """Make a call, or what the fault makes of it."""
        if self.is_on and "/bad" in store._root:
            self.met += 1
            if self.how == "hangs":
                self._may_go_on.wait(60)
            elif self.how == "is slow":
                time.sleep(SLOW_SECONDS)
            else:
                raise OSError(errno.EIO, "the store fails")
        return real(store, *arguments)

    def end(self) -> None:
        """Let the calls that hang go on, and meet no other."""
        self.is_on = False
        self._may_go_on.set()
        self._may_go_on = threading.Event()


def percentile(times: list[float], share: float) -> float:
    """Return what this share of the times is at most, in milliseconds."""
    return 1000 * sorted(times)[min(len(times) - 1, int(share * len(times)))]


def measure(made: Service, fault: Fault, commits: int) -> tuple[list[float], list[float]]:
    """Return how long commits took without the fault, and with it."""
    client, other = made.client, CommitLog(lambda: MemoryLog(made.cluster))
    client.create_table("good", SCHEMA, policy="latest")
    fragments = lance.fragment.write_fragments(rows(1), client.open("good"))
    took: tuple[list[float], list[float]] = ([], [])
    for block in range(2 * BLOCKS):
        fault.is_on = block % 2 == 1
        if fault.is_on:
            name = f"bad{block}"
            fault.is_on = False
            other.create_table(name, SCHEMA)
            fault.is_on = True
            update = lance.LanceOperation.UpdateMap({"a": "b"}, replace=False)
            config = lance.LanceOperation.UpdateConfig(table_metadata_updates=update)
            other.submit(name, config, read_version=1)
        for _ in range(max(1, commits // BLOCKS)):
            began = time.perf_counter()
            client.submit("good", lance.LanceOperation.Append(fragments)).result(60)
            took[fault.is_on].append(time.perf_counter() - began)
        fault.end()
    other.close()
    return took


def main(commits: int) -> None:
    """Print both figures for each fault."""
    for how in ("hangs", "is slow", "fails"):
        fault = Fault(how)
        real = {name: getattr(LocalStore, name) for name in ("create", "size", "read", "names")}
        for name, method in real.items():

            def guarded(store: LocalStore, *given: Any, _real: Any = method) -> Any:
                return fault.call(_real, store, *given)  # noqa: B023 - used in this round only

            setattr(LocalStore, name, guarded)
        try:
            with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as made:
                without, beside = measure(made, fault, commits)
        finally:
            for name, method in real.items():
                setattr(LocalStore, name, method)
        figures = [percentile(one, share) for share in (0.5, 0.99) for one in (without, beside)]
        print(
            f"another table's store {how} ({fault.met} calls met it): {len(without)} commits "
            "without, {} beside; p50 {:.1f} and {:.1f} ms, p99 {:.1f} and {:.1f} ms: "
            "{:.2f} times".format(len(beside), *figures, figures[3] / figures[2]),
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
