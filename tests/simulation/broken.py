"""Runs broken programs until a seed catches each: `python -m tests.simulation --broken`.

What a seed does changes with the program, so none catches a broken one for good. Tried first is the
seed that did last, by `caught.txt`, which the command writes anew; then those whose runs have the
same parts, maintenance for one; then all others. Each process has its broken programs to itself:
what others left in one, threads, caches or a large heap, neither changes a run nor slows it.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tests.simulation.archivist import has_archive
from tests.simulation.broken_clients import BROKEN_CLIENTS
from tests.simulation.broken_programs import PROGRAM_MUTANTS
from tests.simulation.broken_tools import BROKEN_TOOLS
from tests.simulation.broken_upkeep import BROKEN_UPKEEP
from tests.simulation.faults import is_costly
from tests.simulation.maintainer import is_maintained
from tests.simulation.more_broken_programs import ADDED, OF_THE_REVIEW
from tests.simulation.row_writers import has_row_writers
from tests.simulation.versions import has_two_versions
from tests.simulation.world import run_seed

BROKEN_PROGRAMS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    **PROGRAM_MUTANTS,
    **OF_THE_REVIEW,
    **ADDED,
    **BROKEN_CLIENTS,
    **BROKEN_TOOLS,
    **BROKEN_UPKEEP,
}
TRANSACTIONS = 60
SEEDS_MAX = 100
"""So many seeds may a broken program be tried with."""
SECONDS_MAX = 1200.0
"""So long may all of them take: one that hangs is named, and not waited for."""
CAUGHT_FILE = Path(__file__).with_name("caught.txt")
_HEADING = """\
# The seeds that caught the broken programs last. They are tried first, which saves time and is all
# that they do: `python -m tests.simulation --broken` finds and writes them anew.
"""


@dataclass(frozen=True, slots=True)
class Caught:
    """How it went with a broken program."""

    name: str
    seed: int | None
    """The one that caught it."""
    tried: int
    """How many were tried."""
    problem: str
    cpu_seconds: float


def remembered() -> dict[str, int]:
    """Return the seeds that caught the broken programs last, by their names."""
    found = {}
    for line in CAUGHT_FILE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            seed, _, name = line.strip().partition(" ")
            found[name] = int(seed)
    return found


def remember(found: Iterable[Caught]) -> None:
    """Write the seeds that caught them."""
    seeds = remembered() | {one.name: one.seed for one in found if one.seed is not None}
    lines = [f"{seeds[name]} {name}\n" for name in BROKEN_PROGRAMS if name in seeds]
    CAUGHT_FILE.write_text(_HEADING + "".join(lines), encoding="utf-8")


def seeds_to_try(last: int) -> list[int]:
    """Return the seeds to try, by the one that caught the program last."""

    def parts(seed: int) -> tuple[bool, ...]:
        kinds = (has_archive, has_two_versions, has_row_writers, is_maintained)
        return tuple(has(seed) for has in kinds)

    others = sorted(range(SEEDS_MAX), key=lambda one: (is_costly(one), parts(one) != parts(last)))
    return list(islice(dict.fromkeys([last, *others]), SEEDS_MAX))


def catch(name: str) -> Caught:
    """Run a broken program until a run of it shows a problem."""
    logging.disable(logging.CRITICAL)
    began = time.process_time()
    seeds = seeds_to_try(remembered().get(name, 0))
    for tried, seed in enumerate(seeds, 1):
        with BROKEN_PROGRAMS[name]():
            problem = run_seed(seed, transactions=TRANSACTIONS).problem
        if problem:
            return Caught(name, seed, tried, problem, time.process_time() - began)
    return Caught(name, None, len(seeds), "", time.process_time() - began)


def catch_all(jobs: int = 2, seconds_max: float = SECONDS_MAX) -> list[Caught]:
    """Try all broken programs, in so many processes; return how it went, as far as they came."""
    found = []
    deadline = time.monotonic() + seconds_max
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        results = pool.imap_unordered(catch, BROKEN_PROGRAMS)
        try:
            for _ in BROKEN_PROGRAMS:
                found.append(results.next(max(deadline - time.monotonic(), 0.0)))
        except multiprocessing.TimeoutError:
            pass
    order = list(BROKEN_PROGRAMS)
    return sorted(found, key=lambda one: order.index(one.name))
