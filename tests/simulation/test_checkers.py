"""Would the checkers notice? Broken histories and broken programs, each of which must be caught."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulation import porcupine
from tests.simulation.broken_clients import BROKEN_CLIENTS
from tests.simulation.broken_programs import PROGRAM_MUTANTS
from tests.simulation.broken_tools import BROKEN_TOOLS
from tests.simulation.broken_upkeep import BROKEN_UPKEEP
from tests.simulation.history import check
from tests.simulation.more_broken_programs import ADDED, OF_THE_REVIEW
from tests.simulation.mutants import (
    HISTORY_MUTANTS,
    History,
    answer_out_of_real_time_order,
    commit_half_of_a_transaction,
    drop_an_outcome,
    ignore_a_conflict,
    mutated,
    refuse_without_a_reason,
    repeat_a_version,
    skip_a_version,
)
from tests.simulation.world import run_seed

SEEDS = range(6)
TRANSACTIONS = 120
SHORT = 40
CAUGHT_BY = {
    1: (
        "sent again has",
        "the one before",
        "any order",
        "compared with the log",
        "no union",
        "attempt is decided",
        "keys are not",
        "behind what it seeks",
        "a place of the past",
        "before it has told",
        "the next outcome",
    ),
    2: (
        "wasn't taken",
        "what is in flight",
        "any epoch and chain",
        "epoch may jump",
        "any hash",
        "with the newest",
        "attempt's answer",
    ),
    3: ("compared with its outcome",),
    4: ("a staged manifest",),
    6: ("an older program", "a full disk", "its LeaderStarted"),
    8: ("a tombstone",),
    10: ("stranger wrote is lost", "stranger's manifest stays", "without a file"),
    11: ("rows that", "files with rows", "another content", "brings back rows", "are held expire"),
    17: ("sequence commits twice",),
    18: ("with tags expire",),
    19: ("comes twice is an error",),
    27: ("late answer counts",),
    31: ("newest ids alone", "a range of rows", "stranger's file stands", "written over stay"),
    32: ("fallback takes",),
    33: ("behind what isn't decided", "given up to unproven"),
    51: ("find those before in their group",),
    99: ("made meanwhile",),
    105: ("before a restart",),
}
"""Seeds that caught broken programs once, by words of their names: these are tried first."""
SEEDS_PER_PROGRAM = 100
"""What a seed does changes with the program."""
BROKEN_PROGRAMS = {
    **PROGRAM_MUTANTS,
    **OF_THE_REVIEW,
    **ADDED,
    **BROKEN_CLIENTS,
    **BROKEN_TOOLS,
    **BROKEN_UPKEEP,
}
VISIBLE_TO_CLIENTS = (
    answer_out_of_real_time_order,
    commit_half_of_a_transaction,
    drop_an_outcome,
    ignore_a_conflict,
    refuse_without_a_reason,
    repeat_a_version,
    skip_a_version,
)
"""Mutants that a client can notice; of the others only the log tells."""
SOMETIMES_EXCUSED = {refuse_without_a_reason, answer_out_of_real_time_order, drop_an_outcome}
"""A commit that was under way at the same time may have been the reason, no client sees in which
order two tables were changed, and an expiry that is gone shows in no version."""


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def histories() -> list[History]:
    """Return sound histories."""
    reports = [run_seed(seed, transactions=TRANSACTIONS) for seed in SEEDS]
    assert not [report.problem for report in reports if report.problem]
    return [History(report.entries, dict(report.told), report.rows) for report in reports]


def test_sound_histories_pass(histories: list[History]) -> None:
    for history in histories:
        assert not check(history.entries, history.told, history.rows)


def test_every_broken_history_is_caught(
    histories: list[History], report_line: Callable[[str], None]
) -> None:
    made: Counter[str] = Counter()
    caught: Counter[str] = Counter()
    for history in histories:
        for mutant, broken in mutated(history, HISTORY_MUTANTS):
            made[mutant.__name__] += 1
            caught[mutant.__name__] += bool(check(broken.entries, broken.told, broken.rows))
    rate = 100 * caught.total() / made.total()
    report_line(f"broken histories: {caught.total()} of {made.total()} caught ({rate:.0f} %)")
    assert made.keys() == {mutant.__name__ for mutant in HISTORY_MUTANTS}
    assert caught == made


def seed_that_catches(name: str) -> int | None:
    """Run a broken program until a run of it shows a problem, the likely seeds first."""
    likely = [n for n, words in CAUGHT_BY.items() if any(word in name for word in words)]
    seeds: list[int] = [*likely, *range(SEEDS_PER_PROGRAM)]
    for seed in seeds:
        with BROKEN_PROGRAMS[name]():
            report = run_seed(seed, transactions=SHORT)
        if report.problem:
            return seed
    return None


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.flaky(reruns=0)  # a seed does the same at each try
def test_every_broken_program_is_caught(report_line: Callable[[str], None]) -> None:
    found = {name: seed_that_catches(name) for name in BROKEN_PROGRAMS}
    caught = {name: seed for name, seed in found.items() if seed is not None}
    rate = 100 * len(caught) / len(BROKEN_PROGRAMS)
    report_line(f"broken programs: {len(caught)} of {len(BROKEN_PROGRAMS)} caught ({rate:.0f} %)")
    for name, seed in caught.items():
        report_line(f"  by seed {seed:3}: {name}")
    assert caught.keys() == BROKEN_PROGRAMS.keys()


@pytest.mark.slow
def test_porcupine_agrees(
    histories: list[History], tmp_path: Path, report_line: Callable[[str], None]
) -> None:
    go = porcupine.find_go()
    if go is None:
        pytest.skip("there is no Go on this machine")
    program = porcupine.build(go, tmp_path)
    sound = porcupine.verdicts(program, map(porcupine.operations, histories))
    broken = [made for history in histories for made in mutated(history, VISIBLE_TO_CLIENTS)]
    verdicts = porcupine.verdicts(program, (porcupine.operations(made) for _, made in broken))
    count = verdicts.count("illegal")
    report_line(f"porcupine: {len(sound)} sound, {count} of {len(broken)} broken histories caught")
    assert set(sound) == {"ok"}
    judged = [(mutant, verdict) for (mutant, _), verdict in zip(broken, verdicts, strict=True)]
    assert {mutant for mutant, verdict in judged if verdict == "illegal"} == set(VISIBLE_TO_CLIENTS)
    assert {mutant for mutant, verdict in judged if verdict == "ok"} <= SOMETIMES_EXCUSED
    assert set(verdicts) <= {"illegal", "ok"}
