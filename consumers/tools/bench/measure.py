"""What a round of concurrent writers is measured by, and how the processes are run.

A round has every writer commit once, which opens what it opens lazily, starts all of them at one
barrier, lets each commit one after another until its time is over, and keeps every latency. Ratios
are taken between rounds that ran next to each other.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

PRELOAD = ["consumers.tools.bench.preload"]
START_SECONDS = 120.0
END_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Writer:
    """What one writer process did."""

    latencies: list[float]
    """Seconds, one per acknowledged commit."""
    failures: list[str]
    started: float
    ended: float
    cpu_seconds: float
    """Of this process, all threads, between the two."""
    redone: int = 0
    """How often work was executed again before it was committed."""
    unmeasured: int = 0
    """Commits before the start."""


@dataclass(frozen=True, slots=True)
class Round:
    """All writers of one round."""

    system: str
    writers: int
    seconds: float
    commits: int
    failures: int
    failure: str
    commits_per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    slowest_writer: int
    fastest_writer: int
    writer_cpu_ms: float
    """CPU time of the writers' processes per commit."""
    verified: str = ""
    redone: int = 0
    """How often writers executed work again because of others."""
    unmeasured: int = 0
    """Commits before the start: each writer's first one."""

    @property
    def landed(self) -> int:
        """All commits that were acknowledged, measured or not."""
        return self.commits + self.unmeasured

    @property
    def fairness(self) -> float:
        """How many times the slowest writer's commits the fastest made."""
        if not self.fastest_writer:
            return 1.0
        return self.fastest_writer / self.slowest_writer if self.slowest_writer else float("inf")

    def to_json(self) -> dict[str, Any]:
        """Return the round as JSON."""
        return {**asdict(self), "fairness": self.fairness}


Commit = Callable[[], int | None]
"""Commits once and waits for it; may return how often it executed its work again."""
Prepare = Callable[..., Commit]
"""Runs in the writer's process: connects, and returns what commits."""


class NothingLeft(Exception):
    """A writer has done all that there was for it to do, before its time was over."""


def run_round(
    system: str, writers: int, seconds: float, prepare: Prepare, *arguments: Any
) -> Round:
    """Run one round in processes of its own."""
    # Forked from a server that has imported everything: 64 writers would take a minute to do that.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    barrier = context.Barrier(writers)
    results: Any = context.Queue()
    processes = [
        context.Process(
            target=_writer,
            args=(prepare, (*arguments, number), barrier, seconds, results),
            daemon=True,
        )
        for number in range(writers)
    ]
    for process in processes:
        process.start()
    try:
        done = [results.get(timeout=START_SECONDS + seconds + END_SECONDS) for _ in processes]
        failed = [one for one in done if isinstance(one, str)]
        if failed:
            raise RuntimeError(f"{len(failed)} of {writers} writers did not start: {failed[0]}")
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
    return _summarize(system, done)


def _writer(
    prepare: Prepare, arguments: tuple[Any, ...], barrier: Barrier, seconds: float, results: Any
) -> None:
    latencies: list[float] = []
    failures: list[str] = []
    redone = 0
    try:
        commit = prepare(*arguments)
        unmeasured = _commit_first(commit, failures)
        barrier.wait(START_SECONDS)
    except Exception as error:
        # The others stop waiting for this one.
        barrier.abort()
        results.put(f"{type(error).__name__}: {error}")
        return
    cpu_before = time.process_time()
    started = before = time.perf_counter()
    while before - started < seconds:
        try:
            redone += commit() or 0
        except NothingLeft:
            break
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}"[:300])
            before = time.perf_counter()
        else:
            after = time.perf_counter()
            latencies.append(after - before)
            before = after
    cpu_seconds = time.process_time() - cpu_before
    ended = time.perf_counter()
    results.put(
        Writer(
            latencies=latencies,
            failures=failures,
            started=started,
            ended=ended,
            cpu_seconds=cpu_seconds,
            redone=redone,
            unmeasured=unmeasured,
        )
    )


def _commit_first(commit: Commit, failures: list[str]) -> int:
    """Commit once, so that a handle is warm; return how many commits were acknowledged."""
    try:
        commit()
    except NothingLeft:
        return 0
    except Exception as error:
        failures.append(f"{type(error).__name__}: {error}"[:300])
        return 0
    return 1


def _summarize(system: str, done: list[Writer]) -> Round:
    latencies = sorted(latency for writer in done for latency in writer.latencies)
    seconds = max(writer.ended for writer in done) - min(writer.started for writer in done)
    failures = [failure for writer in done for failure in writer.failures]
    counts = [len(writer.latencies) for writer in done]
    return Round(
        system=system,
        writers=len(done),
        seconds=seconds,
        commits=len(latencies),
        failures=len(failures),
        failure=failures[0] if failures else "",
        commits_per_second=len(latencies) / seconds,
        p50_ms=percentile(latencies, 0.50) * 1000,
        p99_ms=percentile(latencies, 0.99) * 1000,
        max_ms=(latencies[-1] if latencies else 0.0) * 1000,
        slowest_writer=min(counts),
        fastest_writer=max(counts),
        writer_cpu_ms=sum(writer.cpu_seconds for writer in done) / max(1, len(latencies)) * 1000,
        redone=sum(writer.redone for writer in done),
        unmeasured=sum(writer.unmeasured for writer in done),
    )


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the least, the median and the greatest of some values."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def percentile(ordered: list[float], share: float) -> float:
    """Return the value below which `share` of an ordered list lies; 0 for an empty one."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
