"""Laws of the clock that ids are forgotten by, whatever the brokers' and writers' clocks say."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from commitlog.core.partition.log_time import forget, time_of
from commitlog.core.partition.machine import Machine
from commitlog.model.limits import CLOCK_STEP_MS, CONFIRMED_CLOCK_SINCE, Rules
from commitlog.model.records import Submitted, Transaction
from tests.core_world import DAY_MS, GENESIS

START_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
ERRORS = st.sampled_from((0, 0, 0, 500, -HOUR_MS, 2 * HOUR_MS, 8 * DAY_MS, -400 * DAY_MS))


@dataclass(frozen=True)
class Step:
    """A record: how long after the one before, and by how much clocks are wrong."""

    passed_ms: int
    broker_ms: int
    writer_ms: int
    claims: bool


STEPS = st.lists(
    st.builds(
        Step,
        passed_ms=st.sampled_from((0, 20, 60_000, 3 * HOUR_MS, 30 * DAY_MS)),
        broker_ms=ERRORS,
        writer_ms=ERRORS,
        claims=st.sampled_from((True, True, True, False)),
    ),
    max_size=30,
)


def told(machine: Machine, step: Step, now_ms: int) -> int:
    """Have a machine pass a record's time; return what it forgets by."""
    claimed = now_ms + step.writer_ms if step.claims else 0
    record = Transaction("id", (), submitted_at_ms=claimed)
    submitted = Submitted(0, 0, now_ms + step.broker_ms, record)
    before_ms, machine.time_ms = machine.time_ms, time_of(machine, submitted)
    forget(machine, submitted, before_ms)
    return machine.deduplication.clock_ms


@given(STEPS)
def test_ids_are_kept_for_longer_than_before_and_not_for_ever(steps: list[Step]) -> None:
    now_ms = appended_ms = START_MS
    first = Step(0, 0, 0, claims=True)
    older = Machine(GENESIS, Rules(CONFIRMED_CLOCK_SINCE - 1))
    newer = Machine(GENESIS, Rules(CONFIRMED_CLOCK_SINCE))
    assert told(older, first, now_ms) == told(newer, first, now_ms) == now_ms
    clock_ms = now_ms
    for step in steps:
        now_ms += step.passed_ms
        before_ms, appended_before_ms = clock_ms, appended_ms
        appended_ms = now_ms + step.broker_ms
        clock_ms = told(newer, step, now_ms)
        assert before_ms <= clock_ms <= before_ms + CLOCK_STEP_MS
        assert clock_ms <= told(older, step, now_ms), "nothing is forgotten earlier than it was"
        went = min(CLOCK_STEP_MS, appended_ms - appended_before_ms)
        assert clock_ms >= min(appended_ms, before_ms + went), "no claim holds it"


@given(STEPS)
def test_brokers_move_it_by_a_step_per_jump_where_writers_are_right(steps: list[Step]) -> None:
    now_ms, jumps, broker_ms = START_MS, 0, 0
    machine = Machine(GENESIS, Rules(CONFIRMED_CLOCK_SINCE))
    told(machine, Step(0, 0, 0, claims=True), now_ms)
    for step in steps:
        now_ms += step.passed_ms
        jumps += step.broker_ms > broker_ms
        broker_ms = step.broker_ms
        right = Step(0, broker_ms, 0, claims=True)
        assert told(machine, right, now_ms) <= now_ms + (1 + jumps) * CLOCK_STEP_MS


@given(STEPS)
def test_an_upgrade_leaves_it_where_the_logs_time_is(steps: list[Step]) -> None:
    now_ms = START_MS
    machine = Machine(GENESIS, Rules(CONFIRMED_CLOCK_SINCE - 1))
    for step in steps:
        now_ms += step.passed_ms
        told(machine, step, now_ms)
    machine.rules = Rules(CONFIRMED_CLOCK_SINCE)
    first = told(machine, Step(0, 8 * DAY_MS, 0, claims=True), now_ms)
    assert first <= machine.time_ms + CLOCK_STEP_MS
