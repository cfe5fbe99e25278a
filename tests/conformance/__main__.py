"""What pylance and the grid say of the same pairs, as a report: `python -m tests.conformance`.

Names what differs and isn't in the strict list, and ends with 1 then. `--save FILE` keeps what was
found; `--against FILE` lists, by pair, which verdicts, manifests and rows differ from what was
kept: run by two releases of pylance, that is what the newer one changed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance

from commitlog.adapters.lance_builder import OVERLAYS_ENABLED_BY
from tests.conformance.test_grid_oracle import (
    CURRENT,
    OTHER,
    STRICTER,
    Look,
    base_in,
    differing,
    looked_at,
)

Found = dict[str, dict[str, Any]]


def main() -> int:
    """Compare all pairs, with row addresses and with stable row ids; print the report."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.conformance")
    parser.add_argument("--save", type=Path, help="keep what was found in this file")
    parser.add_argument("--against", type=Path, help="compare with what such a file has")
    parser.add_argument("--other", action="append", help="only behind this commit")
    asked = parser.parse_args()
    os.environ[OVERLAYS_ENABLED_BY] = "1"
    agreed, unexpected, kept = Counter[str](), 0, dict[str, Any]()
    others = asked.other or list(OTHER)
    pairs = 2 * len(others) * len(CURRENT)
    print(f"pylance {lance.__version__}: {len(others)} committed x {len(CURRENT)} asking x 2")
    for pair, look in _all_pairs(others):
        stable, other, name = pair
        kept[" | ".join(pair)] = look._asdict()
        difference = _difference(other, name, look)
        if difference:
            unexpected += 1
            print(f"DIFFERS: {stable} | {other} | {name}: {difference}")
        elif look.ours == look.theirs:
            agreed[look.ours] += 1
    verdicts_agreed = ", ".join(f"{count} {name}" for name, count in sorted(agreed.items()))
    print(f"{pairs} pairs compared, {agreed.total()} verdicts agree: {verdicts_agreed}")
    print("stricter than Lance (retryable, where Lance says compatible), with and without:")
    for other, currents in STRICTER.items():
        for name, reason in currents.items():
            print(f"  {other} | {name}: {reason}")
    print(f"{unexpected} unexpected differences")
    if asked.save:
        found = {"pylance": lance.__version__, "pairs": kept}
        asked.save.write_text(json.dumps(found, indent=1), encoding="utf-8")
    changed = _print_changes(asked.against, kept) if asked.against else 0
    return 1 if unexpected or changed else 0


def _all_pairs(others: list[str]) -> Iterator[tuple[tuple[str, str, str], Look]]:
    for stable_row_ids in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            base = base_in(Path(folder), stable_row_ids=stable_row_ids)
            stable = "stable row ids" if stable_row_ids else "row addresses"
            for other in others:
                for name, look in looked_at(base, other).items():
                    yield (stable, other, name), look


def _difference(other: str, name: str, look: Look) -> str:
    """Return what pylance and the log disagree about, beyond what is meant."""
    pair = (look.ours, look.theirs)
    if name in STRICTER.get(other, {}):
        return "" if pair == ("retryable", "compatible") else f"verdicts {pair}"
    if differing({name: pair}):
        return f"verdicts {pair}"
    is_different = look.ours == "compatible" and look.manifest != "same"
    return f"manifests: {look.manifest}" if is_different else ""


def _print_changes(before: Path, now: Found) -> int:
    """Print what differs from what was found before; return in how many pairs."""
    kept = json.loads(before.read_text(encoding="utf-8"))
    print(f"pylance {kept['pylance']} -> {lance.__version__}, by pair:")
    changed = 0
    for pair, look in now.items():
        old = kept["pairs"].get(pair, {})
        differs = [part for part in look if old.get(part) != look[part]]
        changed += bool(differs)
        for part in differs:
            shown = "" if part == "rows" else f" {old.get(part, 'not asked')} -> {look[part]}"
            print(f"CHANGED: {pair}: {part}{shown}")
    print(f"{changed} of {len(now)} pairs changed")
    return changed


if __name__ == "__main__":
    sys.exit(main())
