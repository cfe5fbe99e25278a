"""The command line of random histories that live until a time is over."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable

Run = Callable[[float, int, Callable[[str], None]], Counter[str]]
"""Takes seconds, the first seed, and where to report; returns what was tried."""


def command(program: str, run: Run) -> int:
    """Run by the arguments of a program, and print what was tried."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    tally = run(given.seconds, given.seed, lambda text: print(text, file=sys.stderr, flush=True))
    print(", ".join(f"{count} {what}" for what, count in sorted(tally.items())))
    return 0
