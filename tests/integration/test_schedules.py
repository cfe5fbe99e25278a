"""Schedules in which somebody gives up, dies or comes too early: nobody else may notice."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import lance
import pytest

from commitlog import CommitLog
from commitlog.adapters import disk
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.storage import LocalStore
from commitlog.client.leader.runtime import RuntimeSettings
from commitlog.core.log.deduplication import Deduplication
from commitlog.core.log.known_ids import KnownId
from commitlog.core.partition.machine import Machine
from commitlog.errors import CommitLogError, NoSuchTable, OutcomeUnknown, Unavailable
from commitlog.model.records import Application
from consumers.partition import deciding, leader
from consumers.partition.checkpoints import checkpoint
from consumers.partition.checkpoints.checkpoint import Checkpoint
from consumers.partition.materializer import Materializer
from consumers.partition.observer import StoreObserver
from consumers.socket import requests
from tests.service import SCHEMA, Service, ids_of, rows
from tests.waiting import wait_until

SETTLED_SECONDS = 180.0
SOON_SECONDS = 0.3


class Refusing:
    """Stores whose locations take no manifest for a while."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.places: set[str] = set()
        create = LocalStore.create

        def guarded(store: LocalStore, path: str, data: bytes) -> bool:
            if path.startswith("_versions/") and any(p in store._root for p in self.places):
                raise OSError("the store refuses")
            return create(store, path, data)

        patch.setattr(LocalStore, "create", guarded)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    return Refusing(monkeypatch)


def set_config(client: CommitLog, table: str) -> Any:
    """Submit a change that needs no data file."""
    updates = lance.LanceOperation.UpdateMap({"a": str(uuid.uuid4())}, replace=False)
    return client.submit(table, lance.LanceOperation.UpdateConfig(table_metadata_updates=updates))


def test_a_reader_that_gives_up_on_a_refusing_store_stops_nobody(
    running: Service, refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert RuntimeSettings().request_timeout_seconds > requests.FILES_SECONDS, "it hears why"
    monkeypatch.setattr(requests, "FILES_SECONDS", SOON_SECONDS)
    client = running.client
    for name in ("bad", "good"):
        client.create_table(name, SCHEMA)
    refusing.places.add("bad")
    assert set_config(client, "bad").result(wait="committed").version == 2
    with pytest.raises(Unavailable, match="no manifest.*see the committer's log"):
        client.open("bad")
    refusing.places.clear()
    wait_until(lambda: client.table("bad").readable_version == 2, "the manifest")
    assert client.append("good", rows(1)).version == 2
    assert client.append("bad", rows(1)).version == 3
    assert ids_of(client.open("bad")) == [1]
    assert running.running[0].failure is None


def test_a_request_that_times_out_while_the_leader_decides_ends_no_term(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "REQUEST_SECONDS", SOON_SECONDS)
    client = running.client
    client.create_table("t", SCHEMA)
    go_on, reached = threading.Event(), threading.Event()
    decide = Machine.decide

    def slowly(machine: Machine, *arguments: Any) -> Any:
        reached.set()
        assert go_on.wait(SETTLED_SECONDS)
        return decide(machine, *arguments)

    monkeypatch.setattr(Machine, "decide", slowly)
    ticket = set_config(client, "t")
    assert reached.wait(SETTLED_SECONDS)
    updates = lance.LanceOperation.UpdateMap({"b": "c"}, replace=False)
    operation = lance.LanceOperation.UpdateConfig(table_metadata_updates=updates)

    with pytest.raises((Unavailable, OutcomeUnknown)):
        client.submit("t", operation, read_version=1, dry_run=True)
    go_on.set()
    assert ticket.result().version == 2
    assert client.append("t", rows(1)).version == 3
    assert client.runtime().request(0, "status")["epoch"] == 1
    assert running.running[0].failure is None


@pytest.mark.parametrize("again", ["asked for its outcome", "sent again"])
def test_after_a_restart_nothing_is_readable_before_its_file_is_there(
    running: Service, refusing: Refusing, again: str
) -> None:
    client = running.client
    client.create_table("t", SCHEMA)
    refusing.places.add("t")
    chosen = str(uuid.uuid4())
    updates = lance.LanceOperation.UpdateMap({"a": "b"}, replace=False)
    operation = lance.LanceOperation.UpdateConfig(table_metadata_updates=updates)

    def send() -> Any:
        return client.submit("t", operation, read_version=1, transaction_id=chosen)

    assert send().result(wait="committed").version == 2
    running.running[0].stop()
    running.start().await_leading()
    assert client.outcome(chosen).version == 2, "committed it is"
    ticket = send() if again == "sent again" else client.runtime().watch(chosen)
    with pytest.raises(OutcomeUnknown):
        ticket.result(timeout=2.0)
    refusing.places.clear()
    assert ticket.result(SETTLED_SECONDS).version == 2
    assert lance.dataset(str(running.location("t"))).version == 2


def test_who_asks_for_a_table_that_has_no_file_yet_waits_for_it(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.client
    client.create_table("first", SCHEMA)
    go_on = threading.Event()
    accept = Materializer._accept

    def late(materializer: Materializer, events: Any) -> None:
        assert go_on.wait(SETTLED_SECONDS)
        accept(materializer, events)

    monkeypatch.setattr(Materializer, "_accept", late)
    impatient = CommitLog(lambda: MemoryLog(running.cluster))
    made = threading.Thread(target=client.create_table, args=("second", SCHEMA))
    made.start()
    wait_until(lambda: "second" in [one.name for one in impatient.tables()], "the second table")
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(impatient.describe(("second",), fresh=True, readable=True))
        except CommitLogError as error:
            found.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(1.0)
    go_on.set()
    asking.join(SETTLED_SECONDS)
    made.join(SETTLED_SECONDS)
    assert [getattr(one, "readable_version", one) for one in found] == [1]
    impatient.close()


def test_who_waits_for_the_file_of_a_table_that_is_dropped_is_told(
    running: Service, refusing: Refusing
) -> None:
    client = running.client
    client.create_table("bad", SCHEMA, policy="latest")
    refusing.places.add("bad")
    assert set_config(client, "bad").result(wait="committed").version == 2
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(client.describe(("bad",), fresh=True, readable=True))
        except CommitLogError as error:
            found.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(SOON_SECONDS)
    assert not found, "it waits"
    client.drop_table("bad")
    asking.join(SETTLED_SECONDS)
    assert isinstance(found[0], NoSuchTable)


def test_old_ids_are_asked_for_and_sent_again_at_once_after_a_restart(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.client
    client.create_table("t", SCHEMA)
    updates = lance.LanceOperation.UpdateMap({"a": "b"}, replace=False)
    operation = lance.LanceOperation.UpdateConfig(table_metadata_updates=updates)
    ids = [str(uuid.uuid4()) for _ in range(8)]
    for number, chosen in enumerate(ids):
        ticket = client.submit("t", operation, read_version=number + 1, transaction_id=chosen)
        assert ticket.result().version == number + 2
    running.running[0].stop()
    look = Deduplication.get

    threads_seen: set[int] = set()
    slept: list[bool] = []

    def slowly(once: Deduplication, transaction_id: str) -> KnownId | None:
        threads_seen.add(threading.get_ident())
        if not slept:
            slept.append(True)
            time.sleep(SOON_SECONDS)  # long enough for a second thread, if there is one
        return look(once, transaction_id)

    monkeypatch.setattr(Deduplication, "get", slowly)
    running.start().await_leading()
    asked = [client.runtime().watch(chosen) for chosen in ids]
    sent = [
        client.submit("t", operation, read_version=number + 1, transaction_id=chosen)
        for number, chosen in enumerate(ids)
    ]
    threads = [threading.Thread(target=ticket.result) for ticket in asked]
    for thread in threads:
        thread.start()
    found = [ticket.result(SETTLED_SECONDS).version for ticket in sent]
    assert found == list(range(2, 10))
    assert [ticket.result(SETTLED_SECONDS).version for ticket in asked] == found
    assert running.running[1].failure is None
    assert len(threads_seen) == 1, "what a checkpoint brought back is the loop's"


def test_an_id_that_came_with_an_application_s_sequence_again_is_known_after_a_restart(
    running: Service,
) -> None:
    client = running.client
    client.create_table("t", SCHEMA)
    ids = [str(uuid.uuid4()) for _ in range(2)]
    for chosen in ids:
        application = Application("app", 1)
        with client.transact(transaction_id=chosen, application=application) as transaction:
            transaction.append("t", rows(1))
    running.running[0].stop()
    running.start().await_leading()
    first, again = (client.outcome(chosen, SETTLED_SECONDS) for chosen in ids)
    assert again.answers == first.sequence
    assert again.versions() == first.versions() == {"t": 2}
    known = client.runtime().request(0, "transaction", transaction_id=ids[1])
    assert known is not None


def test_nothing_is_kept_of_tables_that_were_dropped(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    observers: list[StoreObserver] = []
    materializers: list[Materializer] = []
    for kind, made in ((StoreObserver, observers), (Materializer, materializers)):
        begin = kind.__init__

        def keep(self: Any, *args: Any, _begin: Any = begin, _made: Any = made, **more: Any) -> Any:
            _begin(self, *args, **more)
            _made.append(self)

        monkeypatch.setattr(kind, "__init__", keep)
    running.running[0].stop()
    running.start().await_leading()
    client = running.client
    client.create_table("stays", SCHEMA)
    for number in range(25):
        client.create_table(f"t{number}", SCHEMA)
        client.append(f"t{number}", rows(1))
        client.drop_table(f"t{number}")
    client.append("stays", rows(1))
    assert len(materializers[-1]._by_incarnation) == 1
    assert len(observers[-1]._stores) <= 2, "the table's, and the root's"


class Hanging:
    """Stores whose calls of one kind don't return until they may."""

    def __init__(self, patch: pytest.MonkeyPatch, how: str) -> None:
        self.place = ""
        self.may_go_on = threading.Event()
        self.reached = threading.Event()
        name = "size" if how == "a look" else "create"
        folder = {"a look": "data/", "a manifest": "_versions/", "a deletion": "_deletions/"}[how]
        real = getattr(LocalStore, name)

        def guarded(store: LocalStore, path: str, *more: Any) -> Any:
            if self.place and self.place in store._root and path.startswith(folder):
                self.reached.set()
                assert self.may_go_on.wait(SETTLED_SECONDS)
            return real(store, path, *more)

        patch.setattr(LocalStore, name, guarded)


@pytest.mark.parametrize("how", ["a look", "a manifest", "a deletion"])
def test_one_table_s_store_that_hangs_delays_that_table_alone(
    running: Service, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    client = running.client
    for name in ("bad", "good"):
        client.create_table(name, SCHEMA)
        client.append(name, rows(1, 2, 3))
    for limit in ("LOOK_SECONDS", "WRITE_SECONDS"):
        monkeypatch.setattr(deciding, limit, 10 * SETTLED_SECONDS)
    hanging = Hanging(monkeypatch, how)
    hanging.place = "bad"
    other = CommitLog(lambda: MemoryLog(running.cluster))
    stuck: list[Any] = []

    def work() -> None:
        if how == "a deletion":
            # Rebased over each other: the leader writes the merged vectors.
            first = lance.dataset(str(running.location("bad"))).get_fragments()[0]
            image, also = first.delete("id = 1"), first.delete("id = 2")
            for one, kept in ((image, "id = 1"), (also, "id = 2")):
                assert one is not None
                operation = lance.LanceOperation.Delete([one], [], kept)
                stuck.append(other.submit("bad", operation, read_version=2, affected_rows=None))
        else:
            stuck.append(set_config(other, "bad") if how == "a manifest" else None)
            stuck.append(other.append("bad", rows(4)) if how == "a look" else None)

    doing = threading.Thread(target=work, daemon=True)
    doing.start()
    assert hanging.reached.wait(SETTLED_SECONDS), "the store was never asked"
    for number in range(10):
        assert client.append("good", rows(10 + number), timeout=60).version == 3 + number
    assert not hanging.may_go_on.is_set()
    assert ids_of(lance.dataset(str(running.location("good")))) == [1, 2, 3, *range(10, 20)]
    hanging.may_go_on.set()
    doing.join(SETTLED_SECONDS)
    version = client.append("bad", rows(5)).version
    assert client.open("bad").version == version
    other.close()


def test_a_checkpoint_that_waits_for_a_hanging_table_holds_up_nobody(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.client
    for name in ("bad", "good"):
        client.create_table(name, SCHEMA)
    monkeypatch.setattr(leader, "PAUSE_SECONDS_MAX", 10 * SETTLED_SECONDS)
    session = running.running[0].committer._session
    assert session is not None
    assert session.leader is not None
    leading = session.leader
    hanging = Hanging(monkeypatch, "a manifest")
    hanging.place = "bad"
    other = CommitLog(lambda: MemoryLog(running.cluster))
    set_config(other, "bad")
    assert hanging.reached.wait(SETTLED_SECONDS), "the store was never asked"
    for number in range(3):
        session.mailbox.call(lambda: setattr(leading, "_pause_at", 0.0)).result(SETTLED_SECONDS)
        assert client.append("good", rows(number), timeout=SETTLED_SECONDS).version == 2 + number
    assert not hanging.may_go_on.is_set()
    hanging.may_go_on.set()
    wait_until(lambda: session.written_sequence >= session.published, "the files")
    saved = threading.Event()
    session.on_saved = lambda prepared: saved.set()
    session.mailbox.call(lambda: setattr(leading, "_pause_at", 0.0)).result(SETTLED_SECONDS)
    assert saved.wait(SETTLED_SECONDS), "no checkpoint once the files are there"
    other.close()


def test_a_checkpoint_on_a_disk_that_hangs_holds_up_nobody(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.client
    client.create_table("good", SCHEMA)
    session = running.running[0].committer._session
    assert session is not None
    assert session.leader is not None
    leading, saved = session.leader, threading.Event()
    session.on_saved = lambda prepared: saved.set()
    reached, may_go_on = threading.Event(), threading.Event()
    put_new = disk.put_new

    def hanging(path: str, data: bytes, *, durable: bool) -> None:
        if ".part" in path or ".hint" in path:
            reached.set()
            assert may_go_on.wait(SETTLED_SECONDS)
        put_new(path, data, durable=durable)

    monkeypatch.setattr(disk, "put_new", hanging)

    def save() -> None:
        session.mailbox.call(lambda: setattr(leading, "_pause_at", 0.0)).result(SETTLED_SECONDS)

    save()
    assert reached.wait(SETTLED_SECONDS)
    for number in range(5):
        assert client.append("good", rows(number), timeout=SETTLED_SECONDS).version == 2 + number
        # Another one that is due meanwhile doesn't wait either.
        save()
    assert not saved.is_set()
    may_go_on.set()
    assert saved.wait(SETTLED_SECONDS)
    # What it holds is what was so when it began.
    running.running.pop().stop()
    running.start().await_leading()
    assert client.append("good", rows(9)).version == 7


def test_a_term_waits_for_what_the_last_one_is_writing(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = running.running[0].committer._session
    assert session is not None
    kept = session.saving._checkpoints
    monkeypatch.setattr(checkpoint, "LAST_WRITE_SECONDS", SOON_SECONDS)
    with kept._writing, pytest.raises(Unavailable, match="is still being written to"):
        kept.load()
    state = Checkpoint.of(session.follower.machine, session.follower.replica)
    late = kept.prepare(state)
    kept.load()
    before = sorted((running.root / "checkpoints").rglob("*"))
    kept.write(late)
    assert sorted((running.root / "checkpoints").rglob("*")) == before
