"""Runs seeds of the simulation: `python -m tests.simulation --seeds 17000 --transactions 60`.

These are a million transactions. Without `--seeds` it makes the runs of `seeds.txt`, as the tests
do. Progress goes to standard error, and the report to standard output, also after Ctrl-C. A seed
that fails is printed as soon as it is known; `--seed N` with the same `--transactions` makes its
run again, line by line.
`--broken` runs the broken programs instead, and notes in `caught.txt` which seeds catch them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.simulation.broken import BROKEN_PROGRAMS, catch_all, remember
from tests.simulation.runner import SEEDS_FILE, Run, Total, run_many, runs_of
from tests.simulation.world import run_seed

PROGRESS_SECONDS = 10.0


def main() -> int:
    """Run; return 0 if every seed held."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first one")
    parser.add_argument("--seed", type=int, help="run this one alone and print the whole run")
    parser.add_argument("--transactions", type=int, default=40, help="per seed (%(default)s)")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0: one per core")
    parser.add_argument("--broken", action="store_true", help="find seeds for broken programs")
    options = parser.parse_args()
    if options.broken:
        return _catch(options.jobs)
    if options.seed is not None:
        report = run_seed(options.seed, transactions=options.transactions, listing=True)
        print("\n".join(report.listing))
        print(f"seed {report.seed}: {report.problem or 'holds'}; trace {report.trace}")
        return 1 if report.problem else 0
    if options.seeds is None:
        runs = runs_of(SEEDS_FILE.read_text(encoding="utf-8"))
    else:
        seeds = range(options.first, options.first + options.seeds)
        runs = [Run(seed, options.transactions) for seed in seeds]
    total = run_many(runs, jobs=options.jobs, progress=_Progress(len(runs)))
    print("\n".join(total.lines()))
    return 1 if total.problems else 0


def _catch(jobs: int) -> int:
    found = catch_all(jobs or os.cpu_count() or 1)
    remember(found)
    for one in found:
        print(f"{one.cpu_seconds:6.1f} s, {one.tried:3} tried: {one.name}: seed {one.seed}")
    caught = {one.name for one in found if one.seed is not None}
    print(f"{len(caught)} of {len(BROKEN_PROGRAMS)} broken programs caught")
    for name in BROKEN_PROGRAMS.keys() - caught:
        print(f"not caught: {name}")
    return 0 if caught == BROKEN_PROGRAMS.keys() else 1


class _Progress:
    """Says on standard error how far it is."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._said_at = time.monotonic()
        self._failed: set[int] = set()

    def __call__(self, total: Total) -> None:
        for seed in total.problems.keys() - self._failed:
            self._failed.add(seed)
            self._say(f"seed {seed}: {total.problems[seed]}")
        if time.monotonic() - self._said_at > PROGRESS_SECONDS:
            self._said_at = time.monotonic()
            per_hour = 3600 * total.seeds / total.elapsed_seconds
            self._say(
                f"{total.seeds:,} of {self._runs:,} seeds, {per_hour:,.0f} an hour, "
                f"{total.transactions:,} transactions, {len(total.problems)} failed"
            )

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
