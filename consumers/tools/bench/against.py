"""`commitlog bench against`: this tree beside another one, in turns, by what a commit costs each.

A machine that others use too halves its speed from one minute to the next, so durations of two runs
say little. Here each pair of rounds runs the one tree and then the other, the next pair the other
way around; each round has a service of its own, started from its tree, with writers of that tree.
What is compared is CPU per commit, process by process, and voluntary switches; the ratios are those
of each pair, and their median is what is told.

`cold` is the first seconds after `ready`, `warm` what follows once the broker's virtual machine has
compiled what it runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from commitlog.errors import InvalidRequest, Unavailable
from consumers.tools.bench.environment import service_cpu_seconds, service_switches
from consumers.tools.bench.measure import Report
from consumers.tools.bench.service import PROGRAM, first_line

HERE = Path(__file__).resolve().parents[3]
WRITER = Path(__file__).with_name("against_writer.py")
ROUND_SECONDS_MAX = 300.0
WARM_UP_SECONDS = 10.0
SIDES = ("other", "this")
PHASES = ("cold", "warm")


@dataclass(frozen=True, slots=True)
class Cost:
    """What the commits of one round cost."""

    phase: str
    pair: int
    commits: int
    seconds: float
    p50_ms: float
    p99_ms: float
    cpu_ms: dict[str, float]
    """Per commit, by process: `writers` and the service's parts."""
    switches: dict[str, float]
    """Voluntary ones per commit, by the service's parts."""

    def figures(self) -> dict[str, float]:
        """Return all that is compared, by name."""
        found = {"commits/s": self.commits / self.seconds}
        found |= {"p50 ms": self.p50_ms, "p99 ms": self.p99_ms}
        found |= {f"CPU ms, {name}": value for name, value in self.cpu_ms.items()}
        found["CPU ms, all"] = sum(self.cpu_ms.values())
        return found | {f"switches, {name}": value for name, value in self.switches.items()}


def run(
    ref: str, *, writers: int = 32, pairs: int = 5, seconds: float = 5.0, report: Report = print
) -> dict[str, Any]:
    """Measure and return a JSON-able report; `report` is called with each round as it ends."""
    costs: dict[str, list[Cost]] = {side: [] for side in SIDES}
    # What a round leaves is removed after the last one: without a journal ext4 looks at each file
    # that was removed within minutes before it makes a new one, which then takes ten times as long.
    with tree_of(ref) as other, tempfile.TemporaryDirectory(prefix="commitlog-against-") as roots:
        trees = {"other": other, "this": HERE}
        for pair in range(pairs):
            for side in SIDES if pair % 2 else SIDES[::-1]:
                root = Path(roots, f"{pair}-{side}")
                for cost in _rounds(trees[side], root, pair, writers, seconds):
                    costs[side].append(cost)
                    report(line(side, cost))
    return {
        "against": ref,
        "writers": writers,
        "pairs": pairs,
        "summary": summary(costs["this"], costs["other"]),
    }


def line(side: str, cost: Cost) -> str:
    """Describe a round in one line."""
    parts = "  ".join(f"{name} {value:.3f}" for name, value in cost.cpu_ms.items())
    rate = cost.commits / cost.seconds
    return f"{side:5} {cost.phase} {rate:6.0f} commits/s  p99 {cost.p99_ms:.0f} ms  CPU ms: {parts}"


def summary(this: Sequence[Cost], other: Sequence[Cost]) -> list[dict[str, Any]]:
    """Compare figure by figure: medians of both sides, and the median of the pairs' ratios."""
    rows = []
    for phase in PHASES:
        ours = {one.pair: one.figures() for one in this if one.phase == phase}
        theirs = {one.pair: one.figures() for one in other if one.phase == phase}
        both = sorted(ours.keys() & theirs.keys())
        for figure in dict.fromkeys(name for pair in both for name in ours[pair]):
            found = [
                (ours[pair][figure], theirs[pair][figure])
                for pair in both
                if figure in ours[pair] and figure in theirs[pair]
            ]
            ratios = sorted(mine / its for mine, its in found if its)
            if not ratios:
                continue
            rows.append(
                {
                    "phase": phase,
                    "figure": figure,
                    "this": statistics.median(mine for mine, _ in found),
                    "other": statistics.median(its for _, its in found),
                    "ratio": statistics.median(ratios),
                    "least": ratios[0],
                    "greatest": ratios[-1],
                    "pairs": len(ratios),
                }
            )
    return rows


@contextlib.contextmanager
def tree_of(ref: str) -> Iterator[Path]:
    """Yield the folder of another checkout, or of a commit of this repository's, unpacked.

    Raises InvalidRequest if there is neither.
    """
    folder = Path(ref)
    if (folder / "commitlog" / "__init__.py").is_file():
        yield folder.resolve()
        return
    command = ["git", "archive", "--format=tar", ref]
    is_option = ref.startswith("-")
    archive = None if is_option else subprocess.run(command, cwd=HERE, capture_output=True)
    if archive is None or archive.returncode:
        raise InvalidRequest(
            f"{ref!r} is neither a folder with this program nor a commit of this repository",
            field="ref",
            value=ref,
            advice="Name a branch, a tag, a commit, or the folder of another checkout",
        )
    with tempfile.TemporaryDirectory(prefix="commitlog-against-") as unpacked:
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
            tar.extractall(unpacked, filter="data")
        yield Path(unpacked)


def _rounds(tree: Path, root: Path, pair: int, writers: int, seconds: float) -> Iterator[Cost]:
    """Run a service of a tree; measure its first seconds, and some that come later."""
    with _service(tree, root) as (pid, servers):
        yield _round(tree, "cold", pair, pid, servers, writers, seconds)
        _write(tree, servers, writers, WARM_UP_SECONDS)
        yield _round(tree, "warm", pair, pid, servers, writers, seconds)


def _round(
    tree: Path, phase: str, pair: int, pid: int, servers: str, writers: int, seconds: float
) -> Cost:
    cpu, switches = service_cpu_seconds(pid), service_switches(pid)
    told = _write(tree, servers, writers, seconds)
    after, commits = service_cpu_seconds(pid), max(told["all_commits"], 1)
    parts = {name: (found - cpu.get(name, 0.0)) / commits * 1e3 for name, found in after.items()}
    return Cost(
        phase=phase,
        pair=pair,
        commits=told["commits"],
        seconds=told["seconds"],
        p50_ms=told["p50_ms"],
        p99_ms=told["p99_ms"],
        cpu_ms={"writers": told["cpu_seconds"] / max(told["commits"], 1) * 1e3, **parts},
        switches={
            name: (found - switches.get(name, 0)) / commits
            for name, found in service_switches(pid).items()
        },
    )


@contextlib.contextmanager
def _service(tree: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Run `commitlog up` of a tree; yield the supervisor's process id and Kafka's address."""
    command = [*PROGRAM, "up", "--root", str(root), "--port", "0"]
    # Compaction would be measured with whichever tree it falls on.
    settings = {"COMMITLOG_MAINTAIN": "false"}
    with first_line(command, cwd=tree, env=_environment(tree) | settings) as (pid, ready):
        if len(ready) < 4:
            raise Unavailable(f"the service of {tree} did not start; it said why above")
        yield pid, ready[3]


def _write(tree: Path, servers: str, writers: int, seconds: float) -> dict[str, Any]:
    """Run writers of a tree for some seconds; return what they tell."""
    command = [sys.executable, "-P", str(WRITER), servers, str(writers), str(seconds)]
    done = subprocess.run(
        command,
        cwd=tree,
        env=_environment(tree),
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds + ROUND_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise Unavailable(f"the writers of {tree} failed; they said why above")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _environment(tree: Path) -> dict[str, str]:
    """Return the environment in which a program of a tree runs: its own modules come first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COMMITLOG_")}
    return kept | {"PYTHONPATH": str(tree)}
