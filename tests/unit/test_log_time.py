"""The log's clock and its memory of ids, while the clocks that it is made of jump."""

from __future__ import annotations

import random

import pytest

from commitlog.model.limits import BOUNDED_CLOCK_SINCE, CLOCK_STEP_MS, Rules
from commitlog.model.records import Outcome
from tests.core_world import DAY_MS, World, append, replayed_from_parts

HOUR_MS = 3_600_000
HORIZON_MS = 7 * DAY_MS


@pytest.fixture
def world() -> World:
    """Return a log with one empty table, whose clock is bounded."""
    made = World(rules=Rules(BOUNDED_CLOCK_SINCE, id_horizon_ms=HORIZON_MS))
    made.now_ms = 1_800_000_000_000
    made.create()
    return made


def ask(world: World, name: str, *, broker_ahead_ms: int = 0, submitted_at_ms: int = -1) -> Outcome:
    """Append rows while the broker's clock is off; the writer's is right unless given."""
    if submitted_at_ms < 0:
        submitted_at_ms = world.now_ms
    world.now_ms += broker_ahead_ms
    try:
        return world.ask(name, append(0, f"{name}.lance"), submitted_at_ms=submitted_at_ms)
    finally:
        world.now_ms -= broker_ahead_ms


@pytest.mark.parametrize("submitted_at_ms", [-1, 0], ids=["writer's clock", "no writer's clock"])
def test_one_bad_append_time_moves_the_clock_by_a_step(world: World, submitted_at_ms: int) -> None:
    before = world.machine.time_ms
    first = ask(world, "a", submitted_at_ms=submitted_at_ms)
    bad = ask(world, "b", broker_ahead_ms=30 * DAY_MS, submitted_at_ms=submitted_at_ms)
    assert bad.status == "committed"
    assert bad.time_ms - before <= CLOCK_STEP_MS + 10
    after = ask(world, "c", submitted_at_ms=submitted_at_ms)
    assert after.status == "committed"
    # What was decided before is remembered, and answered.
    again = ask(world, "a", submitted_at_ms=submitted_at_ms)
    assert again.answers == first.sequence
    assert world.replayed().digest() == world.machine.digest()
    assert replayed_from_parts(world.machine).digest() == world.machine.digest()


@pytest.mark.slow
@pytest.mark.parametrize("ahead_ms", [30 * DAY_MS, -30 * DAY_MS])
def test_commits_go_on_while_the_brokers_clock_is_wrong_for_long(
    world: World, ahead_ms: int
) -> None:
    for number in range(1_000):
        world.now_ms += 50
        assert ask(world, f"wrong{number}", broker_ahead_ms=ahead_ms).status == "committed"
    for number in range(20):
        world.now_ms += HOUR_MS
        assert ask(world, f"right{number}").status == "committed"
    assert world.machine.time_ms <= world.now_ms + CLOCK_STEP_MS


def test_commits_go_on_after_all_clocks_were_ahead(world: World) -> None:
    first = ask(world, "first")
    world.now_ms += 30 * DAY_MS
    assert ask(world, "ahead").status == "committed"
    world.now_ms -= 30 * DAY_MS
    assert ask(world, "after").status == "committed"
    assert ask(world, "first", submitted_at_ms=1_800_000_000_000).answers == first.sequence


def test_the_clock_follows_at_once_after_a_quiet_month(world: World) -> None:
    world.now_ms += 30 * DAY_MS
    assert ask(world, "a").time_ms == world.now_ms


@pytest.mark.slow
def test_an_id_that_may_have_been_forgotten_is_refused_whatever_the_clocks_did(
    world: World,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    world.machine.rules = Rules(BOUNDED_CLOCK_SINCE, id_horizon_ms=2 * HOUR_MS)
    asked: dict[str, int] = {}
    refused = 0
    for number in range(1_500):
        world.now_ms += chance.choice((10, 10_000, 10 * 60_000))
        broker = chance.choice((0, 0, 0, HOUR_MS, -HOUR_MS, 30 * DAY_MS, -30 * DAY_MS))
        if asked and chance.random() < 0.3:
            name = chance.choice(list(asked))
            outcome = ask(world, name, broker_ahead_ms=broker, submitted_at_ms=asked[name])
            assert outcome.code == "TOO_OLD" or outcome.answers is not None, name
            refused += outcome.code == "TOO_OLD"
        else:
            name = f"id{number}"
            asked[name] = world.now_ms
            assert ask(world, name, broker_ahead_ms=broker).status == "committed"
    assert refused, "nothing was forgotten"
