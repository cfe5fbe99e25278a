"""Does a flood wait outside, told for how long, while others are served?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import lance
import pytest

import tests.service
from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import AppendCall, Fate
from commitlog.client.commits.caller import Caller, acting_for
from commitlog.client.leader import runtime
from commitlog.errors import Overloaded
from commitlog.protocol import outcomes_topic
from consumers.partition import leader_checks
from consumers.partition.quotas import Quotas
from consumers.servers.committer import CommitterOptions
from tests.service import SCHEMA, Service, rows, service
from tests.waiting import WAIT_SECONDS, wait_until


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service that lets few transactions of one writer wait, and looks often."""
    monkeypatch.setattr(leader_checks, "PULSE_SECONDS", 0.05)
    monkeypatch.setattr(leader_checks, "WAITING_PER_WRITER_MAX", 20)
    with service(tmp_path) as made:
        made.client.create_table("t", SCHEMA)
        yield made


def hold_outcomes(running: Service) -> threading.Event:
    """Have Kafka acknowledge no outcome until `release`; the event is set once one was held."""
    topic, held = outcomes_topic(running.log.name), threading.Event()

    def fate(append: AppendCall) -> Fate:
        if append.topic != topic:
            return Fate.DELIVER
        held.set()
        return Fate.HOLD

    running.cluster.on_append = fate
    return held


def release(running: Service) -> None:
    running.cluster.on_append = lambda append: Fate.DELIVER
    running.cluster.release()


def flood(running: Service, client: CommitLog, count: int) -> int:
    """Submit without waiting for answers until the client is told to stop; return how many."""
    location = str(running.location("t"))
    operation = lance.LanceOperation.Append(lance.fragment.write_fragments(rows(1), location))
    deadline = time.monotonic() + WAIT_SECONDS
    for number in range(count):
        assert time.monotonic() < deadline
        try:
            client.submit("t", operation, read_version=1)
        except Overloaded:
            return number
    return count


def transactions(running: Service) -> int:
    return running.log.read_transactions(0).end_offset()


def test_a_leader_tells_of_no_position_that_another_may_fill_otherwise(running: Service) -> None:
    """A feed from now on would begin behind it, and pass over what comes in its place."""
    before = running.client.position()
    is_decided = hold_outcomes(running)
    try:
        fragments = lance.fragment.write_fragments(rows(1), str(running.location("t")))
        ticket = running.client.submit("t", lance.LanceOperation.Append(fragments), read_version=1)
        assert is_decided.wait(WAIT_SECONDS)
        assert running.client.position() == before
    finally:
        release(running)
    assert ticket.result(WAIT_SECONDS).sequence == before[0] + 1
    assert running.client.position() == {0: before[0] + 1}


def test_a_flood_is_stopped_before_it_is_appended_and_others_are_not(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "OVERLOAD_PATIENCE_SECONDS", 0.2)
    modest = CommitLog(lambda: MemoryLog(running.cluster))
    modest.append("t", rows(2))
    hold_outcomes(running)
    sent = 0
    before = transactions(running)
    deadline = time.monotonic() + WAIT_SECONDS
    while (told := flood(running, running.client, 50)) == 50:
        sent += told
        assert time.monotonic() < deadline, "nobody stopped the flood"
    sent += told
    assert sent >= 20
    wait_until(lambda: transactions(running) >= before + sent, "the leader to append what it got")
    with pytest.raises(Overloaded, match="are waiting; at most 20 may") as refused:
        running.client.append("t", rows(3))
    assert refused.value.retry_after_seconds > 0
    assert transactions(running) == before + sent, "what was refused was not appended"
    location = str(running.location("t"))
    more = lance.LanceOperation.Append(lance.fragment.write_fragments(rows(4), location))
    other = modest.submit("t", more, read_version=1)
    release(running)
    assert other.result().version == 2 + sent + 1
    modest.close()


def test_a_client_that_is_patient_goes_on_when_it_may(running: Service) -> None:
    hold_outcomes(running)
    connection = running.client.runtime().connection(0)
    sent = 0
    deadline = time.monotonic() + WAIT_SECONDS
    while not connection.paused_until:
        sent += flood(running, running.client, 10)
        assert time.monotonic() < deadline, f"nobody stopped it after {sent} transactions"
    release(running)
    # It waits for the rest of its pause by itself.
    assert running.client.append("t", rows(5)).version == sent + 2


def test_a_principal_over_its_quota_pauses_wherever_it_sends_from_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_checks, "PULSE_SECONDS", 0.05)
    monkeypatch.setattr(runtime, "OVERLOAD_PATIENCE_SECONDS", 0.0)
    quotas = Quotas({"greedy": 0.2})
    options = partial(CommitterOptions, quotas=quotas)
    monkeypatch.setattr(tests.service, "CommitterOptions", options)
    with service(tmp_path) as made:
        made.client.create_table("t", SCHEMA)
        first, second = (
            CommitLog(lambda: MemoryLog(made.cluster), principal="greedy") for _ in range(2)
        )
        second.append("t", rows(1))  # connected, and told of what the first one does
        number = 1
        deadline = time.monotonic() + WAIT_SECONDS
        refused: list[Overloaded] = []
        for client in (first, second):
            while len(refused) < 1 + (client is second):
                assert time.monotonic() < deadline, "nobody stopped it"
                number += 1
                try:
                    client.append("t", rows(number))
                except Overloaded as error:
                    refused.append(error)
        for one in refused:
            assert "'greedy' exceeded its quota of 0.2 transactions per second" in str(one)
            assert 0 < one.retry_after_seconds <= 60
        before = transactions(made)
        with pytest.raises(Overloaded):
            first.append("t", rows(0))
        assert transactions(made) == before, "what was refused was not appended"
        # The same client in another name: as a server has many.
        with acting_for(Caller("modest")):
            assert first.append("t", rows(0)).status == "committed"
        assert made.client.append("t", rows(0)).status == "committed"
        paused = made.client.runtime().request(0, "status")["paused_principals"]
        assert paused.keys() == {"greedy"}
        first.close()
        second.close()


def test_with_much_undecided_each_writer_gets_less() -> None:
    most = leader_checks.WAITING_PER_WRITER_MAX
    assert (
        leader_checks.waiting_max(0)
        == leader_checks.waiting_max(leader_checks.UNDECIDED_HIGH)
        == most
    )
    shares = [
        leader_checks.waiting_max(leader_checks.UNDECIDED_HIGH * factor + 1)
        for factor in (1, 2, 10, 1000)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] <= most // 2
    assert shares[-1] == leader_checks.WAITING_PER_WRITER_MIN
