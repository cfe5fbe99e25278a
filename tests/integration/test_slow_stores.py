"""Does a table whose store is behind wait by itself, in bounded memory, and is everybody told?"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import lance
import pytest

import tests.service
from commitlog import CommitLog, Ticket
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.storage import LocalStore
from commitlog.client.leader import sending
from commitlog.client.leader.runtime import RuntimeSettings
from commitlog.errors import Overloaded
from consumers.partition import appending
from consumers.partition.files.unwritten import UnwrittenMax
from consumers.servers.committer import CommitterOptions
from tests.service import SCHEMA, Service, ids_of, rows, service
from tests.waiting import WAIT_SECONDS, wait_until

MOST = 20


class Store:
    """Holds what the leader asks of table `slow` back: its manifests, and looks at its files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = threading.Event()
        self.answers.set()
        create, size = LocalStore.create, LocalStore.size
        self.holds_looks = False

        def held(store: LocalStore, path: str, data: bytes) -> bool:
            if "/slow-" in store._root and path.startswith("_versions/"):
                assert self.answers.wait(WAIT_SECONDS)
            return create(store, path, data)

        def looked(store: LocalStore, path: str) -> int:
            if "/slow-" in store._root and self.holds_looks:
                assert self.answers.wait(WAIT_SECONDS)
            return size(store, path)

        monkeypatch.setattr(LocalStore, "create", held)
        monkeypatch.setattr(LocalStore, "size", looked)


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service in which few versions of a table may wait for their files."""
    options = partial(CommitterOptions, unwritten_max=UnwrittenMax(versions=MOST))
    monkeypatch.setattr(tests.service, "CommitterOptions", options)
    with service(tmp_path) as made:
        for name in ("slow", "quick"):
            made.client.create_table(name, SCHEMA)
        yield made


@pytest.fixture
def store(running: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Its store, which answers again before the service ends."""
    made = Store(monkeypatch)
    yield made
    made.answers.set()


def an_append(running: Service, table: str) -> lance.LanceOperation.Append:
    """Return an append of one row that was written."""
    location = str(running.location(table))
    return lance.LanceOperation.Append(lance.fragment.write_fragments(rows(1), location))


def unwritten(running: Service) -> int:
    return int(running.client.runtime().request(0, "status")["unwritten_versions"])


def fill(running: Service, client: CommitLog) -> list[Ticket]:
    """Submit as many appends as its leader takes, one after the other."""
    operation, taken = an_append(running, "slow"), []
    for number in range(MOST):
        taken.append(client.submit("slow", operation, read_version=1))
        assert taken[-1].result(WAIT_SECONDS, wait="committed").version == number + 2
    return taken


def test_writers_of_a_table_wait_for_its_store_and_others_do_not(
    running: Service, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "FULL_TABLE_SECONDS", 0.5)
    client = running.client
    store.answers.clear()
    fill(running, client)
    assert unwritten(running) == MOST
    appended = running.log.read_transactions(0).end_offset()
    with pytest.raises(Overloaded, match=f"slow has {MOST} committed versions") as refused:
        client.submit("slow", an_append(running, "slow"), read_version=1).result(WAIT_SECONDS)
    assert refused.value.table == "slow"
    assert refused.value.retry_after_seconds > 0
    both = client.transact()
    with pytest.raises(Overloaded, match="slow has"), both:
        [both.submit(n, an_append(running, n), read_version=1) for n in ("quick", "slow")]
    assert running.log.read_transactions(0).end_offset() == appended, "nothing was appended"
    for number in range(2 * MOST):
        assert client.append("quick", rows(number)).version == number + 2
    status = client.runtime().request(0, "status")
    assert status["full_tables"] == ["slow"]
    assert status["unwritten_versions"] == MOST
    assert status["unwritten_bytes"] > 0

    store.answers.set()
    wait_until(lambda: not unwritten(running), "the files of what was committed")
    assert client.append("slow", rows(1)).status == "committed"
    assert len(ids_of(lance.dataset(str(running.location("slow"))))) == MOST + 1


def test_a_write_that_waits_is_taken_as_soon_as_there_is_room(
    running: Service, store: Store
) -> None:
    store.answers.clear()
    taken = fill(running, running.client)
    waiting = running.client.submit("slow", an_append(running, "slow"), read_version=1)
    wait_until(lambda: "committed versions" in waiting.delivery_error, "a refusal")
    store.answers.set()
    assert waiting.result(WAIT_SECONDS).version == MOST + 2
    assert [ticket.result(WAIT_SECONDS).version for ticket in taken] == list(range(2, MOST + 2))


def test_what_is_in_the_log_by_itself_is_decided(running: Service, store: Store) -> None:
    """A decision depends on the log alone: never on what a leader has in memory."""
    store.answers.clear()
    fill(running, running.client)
    settings = RuntimeSettings(by_leader=False)
    by_itself = CommitLog(lambda: MemoryLog(running.cluster), settings=settings)
    ticket = by_itself.submit("slow", an_append(running, "slow"), read_version=1)
    assert ticket.result(WAIT_SECONDS, wait="committed").version == MOST + 2
    assert unwritten(running) == MOST + 1
    by_itself.close()


def test_transactions_that_wait_for_a_store_leave_room_for_other_tables(
    running: Service, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader looks for data files before it decides: without its store, nothing is decided."""
    most = 30
    monkeypatch.setattr(appending, "UNDECIDED_MAX", most)
    store.answers.clear()
    store.holds_looks = True
    client, operation = running.client, an_append(running, "slow")
    waiting = [client.submit("slow", operation, read_version=1) for _ in range(2 * most)]
    wait_until(lambda: any(t.delivery_error for t in waiting), "a refusal")
    undecided = client.runtime().request(0, "status")["undecided"]
    assert most // 2 <= undecided <= most
    for number in range(most):
        assert client.append("quick", rows(number)).version == number + 2
    [told] = {t.delivery_error for t in waiting if t.delivery_error}
    assert "slow" in told
    store.answers.set()
    for ticket in waiting:
        assert ticket.result(WAIT_SECONDS, wait="committed").status == "committed"
