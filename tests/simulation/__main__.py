"""Runs seeds of the simulation: `python -m tests.simulation --seeds 1000000 --workers 16`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.runner import Total, run_many
from tests.simulation.world import TRANSACTIONS, run_seed


def main() -> int:
    """Run; return 0 if every seed held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--seed", type=int, help="run this one alone and print the whole run")
    parser.add_argument("--transactions", type=int, default=TRANSACTIONS, help="per seed")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: one per core")
    options = parser.parse_args()
    if options.seed is not None:
        report = run_seed(options.seed, transactions=options.transactions, listing=True)
        print("\n".join(report.listing))
        print(f"seed {report.seed}: {report.problem or 'holds'}; trace {report.trace}")
        return 1 if report.problem else 0
    seeds = range(options.start, options.start + options.seeds)
    printed_at = time.monotonic()

    def progress(total: Total) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at > 10 or total.seeds == options.seeds:
            printed_at = time.monotonic()
            hours = total.simulated_seconds / 3600
            print(
                f"{total.seeds} of {options.seeds} seeds, {hours:.2f} simulated hours, "
                f"{len(total.problems)} failed {sorted(total.problems)[:10]}",
                file=sys.stderr,
                flush=True,
            )

    total = run_many(
        seeds,
        workers=options.workers,
        transactions=options.transactions,
        progress=progress,
    )
    print("\n".join(total.lines()))
    return 1 if total.problems else 0


if __name__ == "__main__":
    sys.exit(main())
