"""Where a figure was taken: the machine, its load, the disk, and the versions of what took part."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "lance-commitlog",
    "pylance",
    "lancedb",
    "deltalake",
    "pyiceberg",
    "pyspark",
    "confluent-kafka",
    "duckdb",
    "protobuf",
    "pyarrow",
)
LOOP_STEPS = 1_000_000
LOOP_ROUNDS = 5
FSYNC_BYTES = 4096
FSYNC_ROUNDS = 200


def environment() -> dict[str, Any]:
    """Return what a figure's reader needs to judge it; JSON-able."""
    return {
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": _cpu(),
        "cores": _cores(),
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "kernel": platform.release(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "load_average": [round(one, 2) for one in os.getloadavg()],
        "versions": {name: found for name in PACKAGES if (found := package(name))},
    }


def package(name: str) -> str:
    """Return an installed distribution's version, empty if it isn't installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def loop_ms() -> float:
    """Return what a bare loop takes of this machine's time: virtual ones change their speed."""
    found = []
    for _ in range(LOOP_ROUNDS):
        before = time.perf_counter()
        for _ in range(LOOP_STEPS):
            pass
        found.append(time.perf_counter() - before)
    return sorted(found)[LOOP_ROUNDS // 2] * 1e3


def fsync_ms(folder: Path, rounds: int = FSYNC_ROUNDS) -> list[float]:
    """Append 4 KiB to a file and fsync it, again and again; return each one's milliseconds, sorted.

    That is the least that a commit costs whose durability is this disk's.
    """
    path, block, found = folder / "fsync", bytes(FSYNC_BYTES), []
    with path.open("ab", buffering=0) as file:
        for _ in range(rounds):
            before = time.perf_counter()
            file.write(block)
            os.fsync(file.fileno())
            found.append((time.perf_counter() - before) * 1000)
    path.unlink()
    return sorted(found)


def service_cpu_seconds(pid: int) -> dict[str, float]:
    """Return the CPU time of a service's parts so far, by their names; empty where /proc isn't.

    `pid` is the supervisor's; what runs below it counts.
    """
    tick = os.sysconf("SC_CLK_TCK")

    def seconds(process: Path) -> float:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        # User and system time are fields 14 and 15 of proc_pid_stat(5); its first two are cut off.
        return (int(fields[11]) + int(fields[12])) / tick

    return _by_part(pid, seconds)


def service_memory_bytes(pid: int) -> dict[str, float]:
    """Return the resident memory of a service's parts, by their names; empty where /proc isn't."""
    page = os.sysconf("SC_PAGE_SIZE")
    return _by_part(pid, lambda one: int((one / "statm").read_text().split()[1]) * page)


def service_switches(pid: int) -> dict[str, float]:
    """Return how often the threads of a service's parts waited so far, by the parts' names.

    Threads that have ended don't count.
    """

    def switches(process: Path) -> int:
        count = 0
        for status in process.glob("task/*/status"):
            with suppress(OSError):
                _, _, rest = status.read_text().partition("\nvoluntary_ctxt_switches:")
                count += int(rest.split()[0])
        return count

    return _by_part(pid, switches)


def _by_part(pid: int, figure: Callable[[Path], float]) -> dict[str, float]:
    """Return the sum of a figure of a service's processes, by the names of its parts."""
    found: dict[str, float] = {}
    for number in (pid, *descendants(pid)):
        process = Path(f"/proc/{number}")
        with suppress(OSError):  # it has ended, or there is no /proc
            name = _part((process / "cmdline").read_bytes().split(b"\0"))
            found[name] = found.get(name, 0.0) + figure(process)
    return found


def _part(words: list[bytes]) -> str:
    """Name a part by its command line."""
    if any(b"kafka" in word for word in words) and b"java" in words[0]:
        return "broker"
    for name in ("committer", "index", "rows", "server", "maintain", "up"):
        if name.encode() in words:
            return name
    return "helpers"


def descendants(pid: int) -> list[int]:
    """Return the processes that run below one, its children first; none where /proc isn't."""
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        for file in Path("/proc").glob(f"{parent}/task/*/children"):
            try:
                children = [int(one) for one in file.read_text().split()]
            except OSError:
                continue
            found += children
            waiting += children
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
