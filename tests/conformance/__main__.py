"""What pylance and the grid say of the same pairs, as a report: `python -m tests.conformance`.

Names what differs and isn't in the strict list, and ends with 1 then.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import lance

from commitlog.adapters.lance_builder import OVERLAYS_ENABLED_BY
from tests.conformance.test_grid_oracle import (
    CURRENT,
    OTHER,
    STRICTER,
    base_in,
    compared,
    differing,
)


def main() -> int:
    """Compare all pairs, with row addresses and with stable row ids; print the report."""
    os.environ[OVERLAYS_ENABLED_BY] = "1"
    agreed, unexpected = Counter[str](), 0
    pairs = 2 * len(OTHER) * len(CURRENT)
    print(f"pylance {lance.__version__}: {len(OTHER)} committed x {len(CURRENT)} asking x 2")
    for stable_row_ids in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            base = base_in(Path(folder), stable_row_ids=stable_row_ids)
            for other in OTHER:
                verdicts = compared(base, other)
                different = differing(verdicts)
                agreed.update(ours for name, (ours, _) in verdicts.items() if name not in different)
                expected = dict.fromkeys(STRICTER.get(other, {}), ("retryable", "compatible"))
                for name in sorted(different.keys() | expected.keys()):
                    if different.get(name) != expected.get(name):
                        unexpected += 1
                        print(f"DIFFERS: {other} | {name}: {verdicts[name]}")
    verdicts_agreed = ", ".join(f"{count} {name}" for name, count in sorted(agreed.items()))
    print(f"{pairs} pairs compared, {agreed.total()} verdicts agree: {verdicts_agreed}")
    print("stricter than Lance (retryable, where Lance says compatible), with and without:")
    for other, currents in STRICTER.items():
        for name, reason in currents.items():
            print(f"  {other} | {name}: {reason}")
    print(f"{unexpected} unexpected differences")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
