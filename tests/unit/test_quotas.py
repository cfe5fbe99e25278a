"""Is a principal's rate what its quota says, over any time, and told in clear words?"""

from __future__ import annotations

import pytest

from commitlog.model.records import Malformed, Status, Submitted, Transaction
from consumers.partition.files.events import Event
from consumers.partition.quotas import PAUSE_SECONDS_MAX, Quotas
from consumers.runtime.config import ConfigurationError
from tests.steered_leader import blank
from tests.waiting import Clock


def events(principal: str, count: int) -> list[Event]:
    submitted = Submitted(0, 0, 0, Transaction("x", (), principal=principal))
    return [Event(submitted, blank(Status.COMMITTED), b"", ())] * count


def test_a_principal_over_its_rate_pauses_until_it_has_paid() -> None:
    clock = Clock()
    quotas = Quotas({"etl": 10.0}, clock=clock)
    quotas.take(events("etl", 20))
    assert quotas.pauses() == {}, "two seconds' worth may come at once"
    clock.now += 1
    quotas.take(events("etl", 40))
    [(name, pause)] = quotas.pauses().items()
    assert name == "etl"
    assert pause.seconds == pytest.approx(3.0), "20 - 10 + 40 are 3 s more than 2 s' worth"
    assert "'etl' exceeded its quota of 10 transactions per second" in pause.message
    clock.now += 3.01
    assert quotas.pauses() == {}


def test_over_any_time_the_rate_is_exact() -> None:
    clock = Clock()
    quotas = Quotas({"etl": 10.0}, clock=clock)
    sent = 0
    until = 0.0
    for _ in range(600):
        if clock.now >= until:
            quotas.take(events("etl", 100))
            sent += 100
        if pause := quotas.pauses().get("etl"):
            until = clock.now + pause.seconds
        clock.now += 1
    assert 10 * 600 <= sent <= 10 * 600 + 20 + 100


def test_each_other_principal_has_the_rate_of_the_star_and_others_have_none() -> None:
    quotas = Quotas({"*": 1.0, "etl": 1000.0}, clock=Clock())
    for name in ("a", "b", "", "etl"):
        quotas.take(events(name, 2 if name == "b" else 3))
    assert quotas.pauses().keys() == {"a", ""}
    assert "without a principal" in quotas.pauses()[""].message
    named = Quotas({"etl": 1.0}, clock=Clock())
    named.take(events("other", 1_000_000))
    assert named.pauses() == {}


def test_a_debt_ends_and_a_new_term_has_none() -> None:
    clock = Clock()
    quotas = Quotas({"*": 1.0}, clock=clock)
    quotas.take(events("a", 1_000_000))
    assert quotas.pauses()["a"].seconds == PAUSE_SECONDS_MAX
    quotas.begin(lambda events: None)
    assert quotas.pauses() == {}


def test_what_names_no_principal_counts_for_nobody() -> None:
    quotas = Quotas({"*": 1.0}, clock=Clock())
    broken = Submitted(0, 0, 0, Malformed("x", "broken", b""))
    quotas.take([Event(broken, blank(Status.REJECTED), b"", ())] * 100)
    assert quotas.pauses() == {}


def test_the_setting_is_read_and_refused_in_words() -> None:
    assert Quotas.parse("") is None
    quotas = Quotas.parse(" etl=200, a=b=0.5 ,*=1000")
    assert quotas is not None
    quotas.take([*events("a=b", 2), *events("etl", 2)])
    assert quotas.pauses().keys() == {"a=b"}
    for wrong in ("etl", "etl=", "etl=many", "etl=0", "etl=-1", "etl=inf", "etl=nan"):
        with pytest.raises(ConfigurationError, match=r"NAME=RATE"):
            Quotas.parse(wrong)
