"""Writes `FAULTS.md`, the table of faults, from `faults.toml`: `python -m infra.faults`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.toml")
TABLE = Path(__file__).with_name("FAULTS.md")

HEAD = """\
# Faults, what is injected for each, and where

Made from `faults.toml` by `python -m infra.faults`; the tests compare the two, and look for every
name in them. What the tests inject holds, or they would fail.

- **simulation**: `python -m tests.simulation` counts each by name, over all seeds of `make test`;
  none may be zero. What ends a run ("ending") is played by every twelfth seed.
- **real**: rounds of `python -m tests.faults` on a real broker (a marked * one was not played yet).
- **test**: single tests.

One campaign, `python -m tests.faults --rounds 200 --seed 1` on two cores, held to its end: each of
the 21 kinds that there were then nine or ten times, 11,365 outcomes of 82 terms, 1,063,313 answers
compared with the log; from kill -9 of the leader to the next commit 0.26, 0.49, 1.14 s (least,
median, most of ten).
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and what is done about it."""

    number: int
    what: str
    holds: str
    simulation: tuple[str, ...] = ()
    rounds: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    missing: str = ""

    @property
    def is_injected(self) -> bool:
        """Whether something injects it, if only in part."""
        return bool(self.simulation or self.tests or played() & set(self.rounds))


def played() -> frozenset[str]:
    """Return the rounds that were played and held."""
    return frozenset(tomllib.loads(SOURCE.read_text(encoding="utf-8"))["played"])


def read() -> list[Fault]:
    """Return the faults in order."""
    stored = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["fault"]
    plural = ("simulation", "rounds", "tests")
    return [
        Fault(**{**one, **{name: tuple(one.get(name, ())) for name in plural}}) for one in stored
    ]


def table(faults: list[Fault]) -> str:
    """Return the page."""
    injected = sum(fault.is_injected for fault in faults)
    partly = sum(fault.is_injected and bool(fault.missing) for fault in faults)
    count = (
        f"Of {len(faults)} faults {injected} are injected, {partly} of these in part; "
        f"{len(faults) - injected} are not."
    )
    rows = [
        f"| {fault.number} | {fault.what} | {fault.holds} | {'<br>'.join(_where(fault))} |"
        for fault in faults
    ]
    lines = [HEAD, count, "", "| | fault | what must hold | where |", "|---|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _where(fault: Fault) -> Iterator[str]:
    if fault.simulation:
        yield f"simulation: {', '.join(fault.simulation)}"
    if fault.rounds:
        were_played = played()
        yield f"real: {', '.join(n if n in were_played else f'{n}*' for n in fault.rounds)}"
    for test in fault.tests:
        yield f"test: `{test.partition('::')[2].removeprefix('test_')}`"
    if fault.missing:
        yield f"**not injected**: {fault.missing}"


def main() -> None:
    """Write the page."""
    TABLE.write_text(table(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
