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
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.synchronize import Barrier
from typing import Any

PRELOAD = ["consumers.tools.bench.preload"]
START_SECONDS = 120.0
END_SECONDS = 180.0

Report = Callable[[str], None]
"""Is told in a line how a suite gets on."""


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
    seconds: float = 0.0
    commits: int = 0
    failures: int = 0
    failure: str = ""
    commits_per_second: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    slowest_writer: int = 0
    fastest_writer: int = 0
    writer_cpu_ms: float = 0.0
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

    @property
    def is_right(self) -> bool:
        """Whether what the round left was compared with its commits, and is what they make."""
        return self.verified.startswith("verified")

    def judged(self, fits: bool, found: str) -> Round:
        """Return the round with the verdict on what it left."""
        return replace(self, verified=f"{'verified' if fits else 'WRONG'}: {found}")

    def to_json(self) -> dict[str, Any]:
        """Return the round as JSON."""
        return {**asdict(self), "fairness": self.fairness}

    def __str__(self) -> str:
        """Describe the round in one line."""
        return (
            f"{self.system:26} {self.writers:3} writers {self.commits_per_second:8.1f} commits/s  "
            f"p50 {self.p50_ms:7.2f}  p99 {self.p99_ms:8.2f}  max {self.max_ms:8.1f} ms  "
            f"failed {self.failures} of {self.commits + self.failures}  "
            f"slowest:fastest {self.slowest_writer}:{self.fastest_writer}  "
            f"writers' CPU {self.writer_cpu_ms:.2f} ms/commit  {self.verified}"
            + (f"  executed again {self.redone}" if self.redone else "")
            + (f"  first failure: {self.failure}" if self.failure else "")
        )


Commit = Callable[[], int | None]
"""Commits once and waits for it; may return how often it executed its work again. StopIteration
says that nothing is left for this writer to do, before its time is over."""
Prepare = Callable[..., Commit]
"""Runs in the writer's process: connects, and returns what commits."""


def run_round(
    system: str, writers: int, seconds: float, prepare: Prepare, *arguments: Any
) -> Round:
    """Run one round in processes of its own."""
    work = [partial(_writer, prepare, (*arguments, n), seconds) for n in range(writers)]
    done = in_processes(work, START_SECONDS + seconds + END_SECONDS)
    failed = [one for one in done if isinstance(one, str)]
    if failed:
        raise RuntimeError(f"{len(failed)} of {writers} writers did not start: {failed[0]}")
    return _summarize(system, done)


def in_processes(work: Sequence[Callable[[Barrier, Any], None]], timeout: float) -> list[Any]:
    """Do each work in a process of its own; return what each put into the queue that it was given.

    They meet at the barrier that they were given.
    """
    # Forked from a server that has imported everything: 64 writers would take a minute to do that.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    barrier, results = context.Barrier(len(work)), context.Queue()
    processes = [context.Process(target=one, args=(barrier, results), daemon=True) for one in work]
    for process in processes:
        process.start()
    try:
        return [results.get(timeout=timeout) for _ in processes]
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def _writer(
    prepare: Prepare, arguments: tuple[Any, ...], seconds: float, barrier: Barrier, results: Any
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
        except StopIteration:
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
    except StopIteration:
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


def medians(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return what rounds of one system with the same writers come to."""
    rates = spread([one.commits_per_second for one in rounds])
    p50, p99 = spread([one.p50_ms for one in rounds]), spread([one.p99_ms for one in rounds])
    commits, failures = sum(one.commits for one in rounds), sum(one.failures for one in rounds)
    redone = sum(one.redone for one in rounds)
    return {
        "system": rounds[0].system,
        "writers": rounds[0].writers,
        "commits_per_second": rates["median"],
        "commits_per_second_spread": rates,
        "p50_ms": p50["median"],
        "p50_ms_spread": p50,
        "p99_ms": p99["median"],
        "p99_ms_spread": p99,
        "commits": commits,
        "failures": failures,
        "tried": commits + failures,
        "redone": redone,
        "redone_per_commit": redone / max(commits, 1),
        "fairness": max(one.fairness for one in rounds),
        "writer_cpu_ms": statistics.median(one.writer_cpu_ms for one in rounds),
        "wrong": sum(not one.is_right for one in rounds),
    }


def compared(
    measured: Sequence[Round], times: str, peer_of: Callable[[str], str]
) -> list[dict[str, Any]]:
    """Return medians per system and number of writers: ratios in this run, nothing else.

    In `times` each has how many times the commits of its peer it makes, None without one.
    """
    by_load: dict[tuple[str, int], list[Round]] = {}
    for one in measured:
        by_load.setdefault((one.system, one.writers), []).append(one)
    rows = {load: medians(rounds) for load, rounds in by_load.items()}
    for (system, writers), row in rows.items():
        peer = rows.get((peer_of(system), writers), {}).get("commits_per_second")
        row[times] = row["commits_per_second"] / peer if peer else None
    return list(rows.values())


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the least, the median and the greatest of some values."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def quantiles(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99 of some milliseconds, as `NAME_p50_ms` and `NAME_p99_ms`."""
    ordered, prefix = sorted(values), f"{name}_" if name else ""
    shares = {"p50_ms": 0.50, "p99_ms": 0.99}
    return {f"{prefix}{key}": percentile(ordered, share) for key, share in shares.items()}


def percentile(ordered: list[float], share: float) -> float:
    """Return the value below which `share` of an ordered list lies; 0 for an empty one."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
