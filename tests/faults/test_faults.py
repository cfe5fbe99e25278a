"""Does the running program hold when its processes, its broker and its network fail?

A few rounds on a real broker; `python -m tests.faults --rounds 200` plays all kinds many times.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.iceberg_clients import find_go
from tests.faults.processes import Violated, wait_for
from tests.faults.proxy import FAIR, Proxy, Weather
from tests.faults.rounds import FAULTS, Campaign
from tests.simulation import porcupine

ROUNDS = (
    *("kill the broker", "cut the leader off", "kill a writer", "kill leader and standby"),
    *("freeze the leader", "damage a checkpoint"),
)
TAKEOVER_SECONDS_MAX = 60.0
"""What a loaded machine may take; what it takes is printed."""
WAIT_SECONDS = 180.0


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """Return a cluster under load."""
    made = Campaign(tmp_path_factory.mktemp("faults"), seed=1)
    yield made
    made.close()


@pytest.mark.broker
@pytest.mark.parametrize("name", ROUNDS)
def test_a_round_holds(campaign: Campaign, name: str, report_line: Callable[[str], None]) -> None:
    report_line(campaign.run(name))


@pytest.mark.broker
def test_the_standby_takes_over(campaign: Campaign, report_line: Callable[[str], None]) -> None:
    campaign.run("kill the leader")
    [seconds] = campaign.takeovers
    report_line(f"kill -9 of the leader to the next commit: {seconds:.2f} s")
    assert seconds < TAKEOVER_SECONDS_MAX


@pytest.mark.broker
def test_what_a_deposed_leader_sent_lands_late_and_is_void(campaign: Campaign) -> None:
    """Its outcomes are on their way when it freezes, and arrive in the next one's term."""
    cluster, audit = campaign.cluster, campaign.audit
    cluster.await_standby()
    leader = cluster.await_leader()
    audit.read()
    voids = audit.voids
    held = cluster.proxy.held_appends
    cluster.proxy.set(leader.name, Weather(holds=frozenset({"to"})))
    wait_for(lambda: cluster.proxy.held_appends > held, WAIT_SECONDS, "an outcome under way")
    leader.send(signal.SIGSTOP)
    cluster.await_leader(other_than=leader)
    cluster.proxy.set(leader.name, FAIR)
    leader.send(signal.SIGCONT)

    def has_landed() -> bool:
        audit.read()
        return audit.voids > voids

    wait_for(has_landed, WAIT_SECONDS, "a late outcome in the log")
    campaign.await_progress()
    audit.check(cluster.writers)


@pytest.mark.broker
def test_a_replay_from_nothing_comes_to_the_same(campaign: Campaign) -> None:
    campaign.audit.check_from_nothing()
    assert campaign.audit.checked["terms' states"] > 1
    assert campaign.audit.checked["answers"] > 0
    assert campaign.audit.checked["manifests"] > 0


@pytest.mark.broker
def test_porcupine_finds_an_order_that_explains_what_the_writers_saw(
    campaign: Campaign, tmp_path: Path
) -> None:
    go = find_go()
    if go is None:
        pytest.skip("there is no Go on this machine")
    campaign.audit.read()
    operations = campaign.audit.operations(campaign.cluster.writers)
    answered = [number for number, one in enumerate(operations) if one["return"] > 1]
    early = copy.deepcopy(operations)
    early[answered[-1]]["return"], early[answered[-1]]["call"] = 3, 2  # before all that it follows
    program = porcupine.build(go, tmp_path)
    assert porcupine.verdicts(program, [operations, early]) == ["ok", "illegal"]


def test_every_round_played_here_is_a_fault_of_the_campaign() -> None:
    assert set(ROUNDS) <= FAULTS.keys()


@pytest.fixture
def echo() -> Iterator[int]:
    """Return the port of a server that says what it hears."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_echo, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


def _echo(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(100):
            connection.sendall(data)


def _hello(client: bytes) -> bytes:
    return bytes(12) + len(client).to_bytes(2, "big") + client


def test_the_proxy_tells_clients_apart_and_cuts_one(echo: int) -> None:
    proxy = Proxy()
    proxy.target_port = echo
    one = socket.create_connection(("127.0.0.1", proxy.port), WAIT_SECONDS)
    other = socket.create_connection(("127.0.0.1", proxy.port), WAIT_SECONDS)
    for connection, name in ((one, b"one"), (other, b"other")):
        connection.sendall(_hello(name))
        assert connection.recv(100) == _hello(name)
    proxy.set("one", Weather(is_cut=True))
    with contextlib.suppress(ConnectionResetError):
        assert one.recv(100) == b""
    other.sendall(b"still here")
    assert other.recv(100) == b"still here"
    proxy.set("other", Weather(holds=frozenset({"to"})))
    # The proxy's loop has taken the weather by the time that it took this.
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), proxy.loop).result(WAIT_SECONDS)
    late = bytes(6) + b"late"
    other.sendall(late)
    wait_for(lambda: proxy.held_appends == 1, WAIT_SECONDS, "an append that is held")
    proxy.set("other", FAIR)
    assert other.recv(100) == late
    for connection in (one, other):
        connection.close()
    proxy.close()


def test_waiting_for_what_never_comes_ends() -> None:
    with pytest.raises(Violated, match="a wonder: not within 0 s"):
        wait_for(lambda: False, 0.0, "a wonder")
