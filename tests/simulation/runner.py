"""Runs many seeds, in several processes, and adds up what they came to."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from tests.simulation.faults import FATES
from tests.simulation.world import TRANSACTIONS, Report, run_seed

FAULTS = (
    *FATES,
    "acknowledgement after a hole",
    "answer lost",
    "answer twice",
    "append while cut off",
    "build refused",
    "clock jump",
    "compaction during a bootstrap",
    "cut off from the log",
    "equal, late or far epoch",
    "file shows up late",
    "fork of the chain",
    "held back records land late",
    "id with other content",
    "kill",
    "manifest written around the log",
    "new rules",
    "one id many times",
    "one location fails for a while",
    "outcome twice in the topic",
    "pause",
    "poison outcome",
    "poison transaction",
    "preempt",
    "stale list",
    "store error after the effect",
    "store error before the effect",
    "store without put-if-absent",
    "stray tombstone",
    "torn write",
    "two leaders",
    "zombie",
)
"""Every kind of fault; over a suite none may have happened 0 times."""
RARE_FAULTS = ("record too large",)
"""Costly ones, in one seed of fifty."""


@dataclass
class Total:
    """What the seeds came to so far."""

    seeds: int = 0
    transactions: int = 0
    outcomes: int = 0
    simulated_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    problems: dict[int, str] = field(default_factory=dict)
    fewest_faults: int = 1 << 62
    fewest_transactions: int = 1 << 62

    def add(self, report: Report) -> None:
        """Add a seed."""
        self.seeds += 1
        self.transactions += report.transactions
        self.outcomes += report.outcomes
        self.simulated_seconds += report.simulated_seconds
        self.statuses += report.statuses
        self.counters += report.counters
        if report.problem:
            self.problems[report.seed] = report.problem
            return
        faults = sum(report.counters[name] for name in (*FAULTS, *RARE_FAULTS))
        self.fewest_faults = min(self.fewest_faults, faults)
        self.fewest_transactions = min(self.fewest_transactions, report.transactions)

    def lines(self) -> Iterator[str]:
        """Say it."""
        rate = self.seeds / max(self.elapsed_seconds, 1e-9)
        yield (
            f"{self.seeds} seeds, {self.transactions} transactions, {self.outcomes} outcomes, "
            f"{self.simulated_seconds / 3600:.2f} simulated hours in {self.elapsed_seconds:.0f} s "
            f"({rate:.1f} seeds/s, {self.simulated_seconds / max(self.elapsed_seconds, 1e-9):.0f} "
            "times real time)"
        )
        yield "outcomes: " + ", ".join(f"{n} {name}" for name, n in self.statuses.most_common())
        injected = {name: self.counters[name] for name in (*FAULTS, *RARE_FAULTS)}
        yield "faults: " + ", ".join(f"{n} {name}" for name, n in sorted(injected.items()))
        endings = {n: c for n, c in sorted(self.counters.items()) if n.startswith("ending: ")}
        yield "endings: " + ", ".join(f"{c} {n[8:]}" for n, c in endings.items())
        yield (
            f"a run has at least {self.fewest_transactions} transactions and "
            f"{self.fewest_faults} faults"
        )
        for seed, problem in sorted(self.problems.items()):
            yield f"seed {seed}: {problem}"


def run_quietly(seed: int, *, transactions: int = TRANSACTIONS) -> Report:
    """Run a seed; what the program logs about its troubles is not wanted."""
    logging.disable(logging.CRITICAL)
    try:
        report = run_seed(seed, transactions=transactions)
    finally:
        logging.disable(logging.NOTSET)
    report.entries, report.told, report.rows = [], {}, {}
    return report


def run_many(
    seeds: Iterable[int],
    *,
    workers: int = 0,
    transactions: int = TRANSACTIONS,
    seconds_max: float = float("inf"),
    progress: Callable[[Total], None] = lambda total: None,
) -> Total:
    """Run seeds until they are through or time is up."""
    total, started = Total(), time.monotonic()
    with contextlib.ExitStack() as stack:
        run = partial(run_quietly, transactions=transactions)
        count = workers or os.cpu_count() or 1
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(count))
        for report in pool.imap_unordered(run, seeds):
            total.add(report)
            total.elapsed_seconds = time.monotonic() - started
            progress(total)
            if total.elapsed_seconds > seconds_max:
                pool.terminate()
                break
    return total
