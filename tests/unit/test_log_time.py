"""The log's clock and its memory of ids, while the clocks that it is made of jump."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from commitlog.model.limits import (
    BOUNDED_CLOCK_SINCE,
    CLOCK_STEP_MS,
    CONFIRMED_CLOCK_SINCE,
    INT64_MAX,
    PROTOCOL_SUPPORTED,
    TIME_MS_MAX,
    Rules,
)
from commitlog.model.records import Outcome, ProtocolVersion
from tests.core_world import DAY_MS, World, append, replayed_from_parts

HOUR_MS = 3_600_000
HORIZON_MS = 7 * DAY_MS


START_MS = 1_800_000_000_000


def a_world(protocol: int) -> World:
    """Return a log with one empty table, decided by a protocol."""
    made = World(rules=Rules(protocol, id_horizon_ms=HORIZON_MS))
    made.now_ms = START_MS
    made.create()
    return made


@pytest.fixture(params=[BOUNDED_CLOCK_SINCE, CONFIRMED_CLOCK_SINCE])
def world(request: pytest.FixtureRequest) -> World:
    """Return a log whose clock is bounded."""
    return a_world(request.param)


@pytest.fixture
def confirmed() -> World:
    """Return a log that forgets ids by a clock that writers confirm."""
    return a_world(CONFIRMED_CLOCK_SINCE)


def ids_kept(world: World) -> int:
    """Return how many ids a log remembers."""
    once = world.machine.deduplication
    return sum(len(json.loads(once.encode_chunk(number))["ids"]) for number, _ in once.chunks())


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
    world.machine.rules = Rules(world.machine.rules.protocol, id_horizon_ms=2 * HOUR_MS)
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


@pytest.mark.parametrize("ahead_ms", [8 * DAY_MS, 3_650 * DAY_MS])
@pytest.mark.parametrize("protocol", [CONFIRMED_CLOCK_SINCE - 1, CONFIRMED_CLOCK_SINCE])
def test_a_broker_that_is_ahead_for_long_makes_no_id_forgotten(
    protocol: int, ahead_ms: int
) -> None:
    """Before, the clock made a step per record: after 168, each id was forgotten at once."""
    world = a_world(protocol)
    first = ask(world, "first")
    for number in range(200):
        ask(world, f"ahead{number}", broker_ahead_ms=ahead_ms)
    again = ask(world, "first", broker_ahead_ms=ahead_ms, submitted_at_ms=START_MS)
    behind = ask(
        world, "behind", broker_ahead_ms=ahead_ms, submitted_at_ms=world.now_ms - 10 * 60_000
    )
    if protocol < CONFIRMED_CLOCK_SINCE:
        assert (again.code, behind.code) == ("TOO_OLD", "TOO_OLD")
        return
    assert (again.answers, behind.status) == (first.sequence, "committed")
    assert world.machine.deduplication.clock_ms <= world.now_ms + CLOCK_STEP_MS
    assert world.replayed().digest() == world.machine.digest()
    assert replayed_from_parts(world.machine).digest() == world.machine.digest()


def test_a_writer_that_is_ahead_with_a_broker_moves_the_clock_by_its_own_records_only(
    confirmed: World,
) -> None:
    first = ask(confirmed, "first")
    ahead = {"broker_ahead_ms": 30 * DAY_MS}
    for number in range(3):
        wrong = confirmed.now_ms + 30 * DAY_MS
        assert ask(confirmed, f"wrong{number}", submitted_at_ms=wrong, **ahead).status
    assert confirmed.machine.time_ms > confirmed.now_ms + 29 * DAY_MS, "both clocks say it"
    for number in range(200):
        ask(confirmed, f"right{number}", **ahead)
    assert ask(confirmed, "first", submitted_at_ms=START_MS, **ahead).answers == first.sequence
    assert confirmed.machine.deduplication.clock_ms <= confirmed.now_ms + 4 * CLOCK_STEP_MS


def test_an_upgrade_sets_back_a_clock_that_a_broker_had_put_ahead() -> None:
    world = a_world(CONFIRMED_CLOCK_SINCE - 1)
    for number in range(300):
        ask(world, f"ahead{number}", broker_ahead_ms=30 * DAY_MS)
    once = world.machine.deduplication
    assert once.clock_ms > world.now_ms + 10 * DAY_MS
    world.run(ProtocolVersion("upgrade", CONFIRMED_CLOCK_SINCE, HORIZON_MS, 1_000, 1_000))
    assert once.clock_ms <= world.now_ms + 2 * CLOCK_STEP_MS
    first = ask(world, "first")
    for number in range(20):
        world.now_ms += 1_000
        behind = world.now_ms - 500
        assert ask(world, f"behind{number}", submitted_at_ms=behind).status == "committed"
    again = ask(world, "first", submitted_at_ms=first.time_ms)
    assert again.answers == first.sequence
    assert world.replayed().digest() == world.machine.digest()
    assert replayed_from_parts(world.machine).digest() == world.machine.digest()


@pytest.mark.parametrize(
    "claim",
    [
        lambda now_ms: now_ms,
        lambda now_ms: 0,
        lambda now_ms: now_ms - 365 * DAY_MS,
        lambda now_ms: now_ms - START_MS,
        lambda now_ms: START_MS,
        lambda now_ms: now_ms - HORIZON_MS // 2,
        lambda now_ms: now_ms + HORIZON_MS // 2,
    ],
    ids=["right", "none", "a year behind", "1970", "stopped", "behind", "ahead"],
)
@pytest.mark.parametrize("is_ahead", [False, True], ids=["", "broker was ahead"])
def test_no_writers_clocks_keep_ids_for_ever(
    confirmed: World, claim: Callable[[int], int], is_ahead: bool
) -> None:
    """Nothing else bounds their number: an id is kept until the clock has passed it by a horizon.

    The log is young, so that no claim is refused for its age at first.
    """
    confirmed.machine.rules = Rules(CONFIRMED_CLOCK_SINCE, id_horizon_ms=12 * HOUR_MS)
    ask(confirmed, "right")
    if is_ahead:
        ask(confirmed, "ahead", broker_ahead_ms=30 * DAY_MS)
    kept = []
    for number in range(300):
        confirmed.now_ms += HOUR_MS // 2
        ask(confirmed, f"id{number}", submitted_at_ms=claim(confirmed.now_ms))
        if number in (149, 299):
            kept.append(ids_kept(confirmed))
    assert kept[1] <= 2 * 24 + 20
    assert kept[1] <= kept[0] + 2


def test_what_a_quiet_month_left_is_forgotten_a_step_per_record(confirmed: World) -> None:
    ask(confirmed, "before")
    confirmed.now_ms += 30 * DAY_MS
    for number in range(24 * 30):
        assert ask(confirmed, f"after{number}").status == "committed"
        confirmed.now_ms += 10
    assert ask(confirmed, "before", submitted_at_ms=START_MS).code == "TOO_OLD"
    assert ids_kept(confirmed) == 24 * 30, "what came after the month is kept"


@pytest.mark.parametrize("claims", [True, False])
def test_days_of_one_hour_leave_no_debt(confirmed: World, claims: bool) -> None:
    """A log that is written to at night only forgets what is older than the horizon.

    It needs a record for each hour that passed, as it did before.
    """
    for day in range(16):
        for number in range(30):
            confirmed.now_ms += 60_000
            ask(confirmed, f"{day}-{number}", submitted_at_ms=confirmed.now_ms * claims)
        confirmed.now_ms += DAY_MS - HOUR_MS // 2
    assert ids_kept(confirmed) <= 9 * 30


@pytest.mark.parametrize("protocol", range(1, PROTOCOL_SUPPORTED + 1))
@pytest.mark.parametrize("id_of", ["{}", "ffffffff-ffff-7fff-8fff-ffffffffff{}"])
def test_no_writers_claim_makes_a_time_that_manifests_cannot_hold(
    protocol: int, id_of: str
) -> None:
    """They have nanoseconds in 64 bits, so until 2554: only a broker's clock could go beyond."""
    world = a_world(protocol)
    for number, claim in enumerate((INT64_MAX, 2**48 - 1, TIME_MS_MAX, 0)):
        ask(world, id_of.format(10 + number), submitted_at_ms=claim)
    assert world.machine.time_ms <= world.now_ms
    assert world.replayed().digest() == world.machine.digest()
    assert replayed_from_parts(world.machine).digest() == world.machine.digest()
