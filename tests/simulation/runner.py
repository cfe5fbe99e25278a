"""Runs many seeds, in several processes, and adds up what they came to.

A seed and its number of transactions decide a run; `seeds.txt` names the runs that are made with
every change.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.faults import FATES
from tests.simulation.world import TRANSACTIONS, Report, run_seed

FAULTS = (
    *FATES,
    "acknowledgement after a hole",
    "answer lost",
    "answer twice",
    "acknowledged twice",
    "acknowledged without an offset",
    "an application's sequence again",
    "append while cut off",
    "archivist killed at a file",
    "attempt overtaken by a newer one",
    "broker's clock errs",
    "begun with files owed",
    "build refused",
    "checkpoint owes files",
    "client connected",
    "client cut off from the log",
    "client fell back to the log",
    "client told to wait",
    "clock jump",
    "compaction beside writers",
    "compaction during a bootstrap",
    "connection cut",
    "cut off from the log",
    "disk full",
    "equal, late or far epoch",
    "file shows up late",
    "fork of the chain",
    "held back records land late",
    "id with other content",
    "index killed",
    "kill",
    "leader of another version",
    "leader's socket is away",
    "log upgraded",
    "maintenance killed",
    "manifest written around the log",
    "manifests thinned",
    "new rules",
    "offset without a record",
    "older program stops at the record",
    "older program stops on a newer checkpoint",
    "one id a thousand times",
    "one id many times",
    "one location fails for a while",
    "outcome twice in the topic",
    "pause",
    "poison outcome",
    "poison transaction",
    "preempt",
    "producer failed for good",
    "program installed",
    "protocol upgraded",
    "record sent to the leader",
    "record too large",
    "request cancelled",
    "request timed out",
    "row writer killed",
    "rows deleted under a compaction",
    "row writer was late",
    "rows written",
    "stale list",
    "store error after the effect",
    "store error before the effect",
    "store hangs",
    "store without put-if-absent",
    "stray tombstone",
    "table dropped, renamed or made again",
    "torn write",
    "transaction given up to the archive",
    "two leaders",
    "unneeded files removed",
    "version tagged or held",
    "versions expired",
    "weeks pass",
    "writer killed",
    "writers asked to pause",
    "zombie",
)
"""Every kind of fault; over a suite none may have happened 0 times."""
SEEDS_FILE = Path(__file__).with_name("seeds.txt")


@dataclass(frozen=True, slots=True)
class Run:
    """A seed and how many transactions its run has."""

    seed: int
    transactions: int = TRANSACTIONS


def runs_of(text: str) -> list[Run]:
    """Return the runs that lines of `SEED[-LAST] TRANSACTIONS # comment` name."""
    runs = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            first, _, last = words[0].partition("-")
            seeds = range(int(first), int(last or first) + 1)
            runs += [Run(seed, int(words[1])) for seed in seeds]
    return runs


@dataclass
class Total:
    """What the seeds came to so far."""

    seeds: int = 0
    transactions: int = 0
    outcomes: int = 0
    simulated_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    cpu_seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    problems: dict[int, str] = field(default_factory=dict)
    """By seed."""
    was_interrupted: bool = False
    faults_in_long_runs: list[int] = field(default_factory=list)
    """How many faults each run of 200 transactions or more had."""

    def add(self, report: Report) -> None:
        """Add a seed."""
        self.seeds += 1
        self.transactions += report.transactions
        self.outcomes += report.outcomes
        self.simulated_seconds += report.simulated_seconds
        self.cpu_seconds += report.cpu_seconds
        self.statuses += report.statuses
        self.counters += report.counters
        if report.problem:
            self.problems[report.seed] = report.problem
        elif report.transactions >= TRANSACTIONS:
            self.faults_in_long_runs.append(sum(report.counters[name] for name in FAULTS))

    def lines(self) -> Iterator[str]:
        """Say it."""
        per_hour = 3600 * self.seeds / max(self.elapsed_seconds, 1e-9)
        faster = self.simulated_seconds / max(self.elapsed_seconds, 1e-9)
        yield (
            f"{self.seeds:,} seeds, {self.transactions:,} transactions, {self.outcomes:,} outcomes,"
            f" {self.simulated_seconds / 3600:.2f} simulated hours, in {self.elapsed_seconds:.0f} s"
            f" and {self.cpu_seconds:.0f} CPU seconds: {per_hour:,.0f} seeds an hour, {faster:.0f}"
            f" times real time{', interrupted' if self.was_interrupted else ''}"
        )
        yield "outcomes: " + ", ".join(f"{n} {name}" for name, n in self.statuses.most_common())
        injected = {name: self.counters[name] for name in FAULTS}
        yield "faults: " + ", ".join(f"{n} {name}" for name, n in sorted(injected.items()))
        answers = {n: c for n, c in sorted(self.counters.items()) if n.startswith("answer: ")}
        yield "answers: " + ", ".join(f"{c} {n[8:]}" for n, c in answers.items())
        endings = {n: c for n, c in sorted(self.counters.items()) if n.startswith("ending: ")}
        yield "endings: " + ", ".join(f"{c} {n[8:]}" for n, c in endings.items())
        for seed, problem in sorted(self.problems.items()):
            yield f"seed {seed}: {problem}"


def run_quietly(run: Run) -> Report:
    """Run a seed; what the program logs about its troubles is not wanted."""
    logging.disable(logging.CRITICAL)
    began = time.process_time()
    try:
        report = run_seed(run.seed, transactions=run.transactions)
    finally:
        logging.disable(logging.NOTSET)
    report.cpu_seconds = time.process_time() - began
    report.entries, report.told, report.rows = [], {}, {}
    return report


def run_many(
    runs: Iterable[Run],
    *,
    jobs: int = 0,
    progress: Callable[[Total], None] = lambda total: None,
) -> Total:
    """Make all runs, in so many processes (0: one per core); an interrupt ends it before."""
    total, started = Total(), time.monotonic()
    # What is imported is no garbage: it isn't looked through at each world's end.
    with multiprocessing.get_context("spawn").Pool(
        jobs or os.cpu_count() or 1, initializer=gc.freeze
    ) as pool:
        try:
            for report in pool.imap_unordered(run_quietly, runs, chunksize=8):
                total.add(report)
                total.elapsed_seconds = time.monotonic() - started
                progress(total)
        except KeyboardInterrupt:
            total.was_interrupted = True
    return total
