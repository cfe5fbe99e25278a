"""A campaign of real faults: `python -m tests.faults --rounds 200 --seed 1`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.faults.rounds import FAULTS, run_campaign


def main() -> int:
    """Run; return 0 if every round held."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="order and moments (%(default)s)")
    parser.add_argument(
        "--kind",
        action="append",
        choices=list(FAULTS),
        metavar="KIND",
        help=f"play only this one; may be repeated (all: {', '.join(FAULTS)})",
    )
    parser.add_argument("--root", type=Path, help="a folder to keep; else a temporary one")
    options = parser.parse_args()
    kinds = options.kind or list(FAULTS)
    if options.root is not None:
        options.root.mkdir(parents=True, exist_ok=True)
        return run_campaign(options.root, kinds, rounds=options.rounds, seed=options.seed)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        return run_campaign(Path(folder), kinds, rounds=options.rounds, seed=options.seed)


if __name__ == "__main__":
    sys.exit(main())
