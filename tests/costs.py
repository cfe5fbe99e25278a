"""Where the suite's time goes: CPU of the tests and of all that they started, by module.

    python -m pytest -p tests.costs --costs costs.jsonl tests/integration
    python -m tests.costs costs.jsonl

Durations say little on a machine that others use too; seconds of CPU are nearly the same each day.
A process is counted by its parent: what outlives that, as the JVM of a killed Spark driver may, is
missing. A phase may be below zero, and the next above, where it may not read /proc meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", help="append each test's CPU and duration to this file")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    yield from _measured(item, "setup")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield from _measured(item, "call")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield from _measured(item, "teardown")


def _measured(item: pytest.Item, phase: str) -> Iterator[None]:
    path = item.config.getoption("--costs")
    if path is None:
        return (yield)
    (user, system), wall = tree_seconds(), time.monotonic()
    try:
        return (yield)
    finally:
        user_now, system_now = tree_seconds()
        line = {
            "test": item.nodeid,
            "phase": phase,
            "cpu": round(user_now - user + system_now - system, 3),
            "system": round(system_now - system, 3),
            "wall": round(time.monotonic() - wall, 3),
        }
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")


def tree_seconds(pid: int | None = None) -> tuple[float, float]:
    """Return the CPU of a process, of its descendants and of those it has waited for.

    It is in seconds: of the programs themselves, and of the kernel for them.
    """
    user, system, left = 0, 0, [os.getpid() if pid is None else pid]
    while left:
        folder = Path("/proc", str(left.pop()))
        # A process that ended meanwhile left its seconds to its parent, a thread its children.
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            own, kernel, waited_own, waited_kernel = map(int, fields[11:15])
            user, system = user + own + waited_own, system + kernel + waited_kernel
            for task in (folder / "task").iterdir():
                with suppress(OSError):
                    left += [int(child) for child in (task / "children").read_text().split()]
    return user / _TICKS, system / _TICKS


def main(path: str) -> None:
    """Print the seconds by module, then the most expensive single phases."""
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    cpu: Counter[str] = Counter()
    system: Counter[str] = Counter()
    wall: Counter[str] = Counter()
    for line in lines:
        module = line["test"].partition("::")[0]
        cpu[module] += line["cpu"]
        system[module] += line["system"]
        wall[module] += line["wall"]
    total, kernel, passed = sum(cpu.values()), sum(system.values()), sum(wall.values())
    print(f"{total:8.1f} s of CPU, {kernel:8.1f} of it the kernel's, {passed:8.1f} s in all")
    for module, seconds in cpu.most_common():
        print(f"{seconds:8.1f} {system[module]:8.1f} {wall[module]:8.1f}  {module}")
    print()
    for line in sorted(lines, key=lambda line: -line["cpu"])[:80]:
        shown = f"{line['cpu']:8.1f} {line['system']:8.1f} {line['wall']:8.1f}"
        print(f"{shown}  {line['phase']:8} {line['test']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
