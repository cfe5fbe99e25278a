"""Is the table of faults what its source says, and does everything that it names exist?"""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.faults import TABLE, Fault, played, read, table
from tests.faults.rounds import FAULTS as ROUNDS
from tests.simulation.endings import ENDINGS
from tests.simulation.runner import FAULTS as COUNTED

REPOSITORY = Path(__file__).resolve().parents[2]
ENDED = {f"ending: {ending.__name__.replace('_', ' ').strip()}" for ending in ENDINGS}


def test_the_page_is_made_of_its_source() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(read()), "run `python -m infra.faults`"


def test_every_fault_is_there_and_says_what_is_missing() -> None:
    faults = read()
    assert [fault.number for fault in faults] == list(range(1, 55))
    assert not [fault.number for fault in faults if not (fault.is_injected or fault.missing)]


@pytest.mark.parametrize("fault", read(), ids=lambda fault: f"F{fault.number}")
def test_what_it_names_exists(fault: Fault) -> None:
    assert set(fault.simulation) <= {*COUNTED, *ENDED}
    assert set(fault.rounds) <= ROUNDS.keys()
    for test in fault.tests:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (REPOSITORY / path).read_text(encoding="utf-8")


def test_every_ending_and_every_round_stands_in_the_table() -> None:
    faults = read()
    simulated = {name for fault in faults for name in fault.simulation}
    assert simulated >= ENDED
    assert played() <= ROUNDS.keys()
    rounds = {name for fault in faults for name in fault.rounds}
    # Milder kinds of what the table has.
    assert ROUNDS.keys() - rounds == {
        "kill the standby",
        "freeze the standby",
        "freeze a writer",
        "restart the broker",
    }
