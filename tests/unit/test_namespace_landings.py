"""Does an append over any head commit at its first try, and does only its client hear of it?"""

import http.client
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import lance
import lance_namespace
import pytest

from commitlog.codecs.manifest_file import decode_manifest, encode_manifest, transaction_path
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.operations import LanceCommit
from commitlog.wire import FrameBuffer, FrameKind
from consumers.servers.namespace import landings, versions
from consumers.servers.namespace.settings import Settings
from tests.namespace_world import World, numbers
from tests.unit.test_namespace_versions import decided, path, stage
from tests.waiting import WAIT_SECONDS

WRITERS, APPENDS = 6, 8


@pytest.fixture
def table(world: World) -> list[str]:
    name = world.fresh_name()
    world.write([name, "t"], numbers(0, 10))
    return [name, "t"]


class Connection:
    """One connection that sends what Lance's client sends, and no more."""

    def __init__(self, world: World, table: list[str], **headers: str) -> None:
        host = world.uri.removeprefix("http://")
        self._connection = http.client.HTTPConnection(host, timeout=120)
        self._headers = {"Content-Type": "application/json", **headers}
        self.location = ""
        self._table = table

    def close(self) -> None:
        self._connection.close()

    def post(self, operation: str, body: Any) -> tuple[int, Any]:
        where = path(self._table, operation)
        self._connection.request("POST", where, json.dumps(body), self._headers)
        response = self._connection.getresponse()
        self.location = response.getheader("Location", "")
        return response.status, json.loads(response.read() or b"{}")

    def follow(self, location: str) -> int:
        """Go where an answer led, as a client that follows it does; return the status."""
        self._connection.request("GET", path(self._table, location), None, self._headers)
        response = self._connection.getresponse()
        self.location = response.getheader("Location", "")
        response.read()
        return response.status

    def read_table(self, **asked: Any) -> None:
        """Ask for the table, as who reads it does first."""
        where = f"/v1/table/{'$'.join(self._table)}/describe"
        self._connection.request("POST", where, json.dumps(asked), self._headers)
        assert self._connection.getresponse().read()

    def path_of(self, version: int) -> str:
        """Return the name of the manifest that a version's description gives."""
        status, body = self.post("describe", {"version": version})
        assert status == 200, body
        return os.path.basename(str(body["version"]["manifest_path"]))


def name_of(version: int) -> str:
    return f"{2**64 - 1 - version:020}.manifest"


def lose(world: World, table: list[str], connection: Connection) -> dict[str, Any]:
    """Append as version 3 what was staged as version 2."""
    loser, winner = stage(world, table, 100), stage(world, table, 200)
    assert world.post(path(table, "create"), winner)[0] == 200
    status, body = connection.post("create", loser)
    assert (status, body) == (303, {})
    assert connection.location.startswith("landed?token=")
    return loser


def restaged(loser: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the offer of what was staged as version 2 as another version."""
    again = loser["manifest_path"].replace(name_of(2), name_of(version))
    state, transaction = decode_manifest(Path(f"/{loser['manifest_path']}").read_bytes())
    state.version = version
    size = Path(f"/{again}").write_bytes(encode_manifest(state, transaction))
    return {**loser, "version": version, "manifest_path": again, "manifest_size": size}


def test_a_stale_append_commits_at_its_first_try(world: World, table: list[str]) -> None:
    handles = [world.open(table) for _ in range(4)]
    before, world.faults.asked[:] = decided(world), []
    for number, handle in enumerate(handles):
        handle.insert(numbers(100 * number + 100, 100 * number + 105))
    assert decided(world) == before + 4
    assert world.faults.asked.count(path(table, "create")) == 4, "nobody was sent round"
    for number, handle in enumerate(handles):
        assert (handle.version, handle.count_rows()) == (number + 2, 5 * number + 15)
        same = world.open(table, handle.version)
        assert handle.to_table().equals(same.to_table()), "it holds what its version holds"
    # What it goes on with is the version's own: its fragments' ids, its deletions.
    handles[2].delete("id >= 300")
    assert sorted(set(world.open(table).to_table()["id"].to_pylist()) & set(range(300, 305))) == []
    assert world.open(table).count_rows() == 25


def test_only_who_staged_it_is_told(world: World, table: list[str]) -> None:
    with closing(Connection(world, table)) as its, closing(Connection(world, table)) as another:
        loser = lose(world, table, its)
        another.read_table()
        assert its.path_of(2) == name_of(2), "it hasn't given its own up yet"
        assert another.path_of(2) == name_of(2)
        os.remove(f"/{loser['manifest_path']}")
        assert another.path_of(2) == name_of(2)
        assert its.path_of(2) == name_of(3)
        assert its.path_of(2) == name_of(2), "it has been told"
    assert world.open(table).count_rows() == 20


def test_a_client_that_gives_up_leaves_the_file_that_its_version_names(
    world: World, table: list[str]
) -> None:
    with closing(Connection(world, table)) as its:
        loser = lose(world, table, its)
    location = Path(world.log.table(table).location)
    staged, inline = decode_manifest(Path(f"/{loser['manifest_path']}").read_bytes())
    (location / transaction_path(staged)).unlink(missing_ok=True)  # as Lance does it
    state, _ = decode_manifest((location / "_versions" / name_of(3)).read_bytes())
    assert (location / transaction_path(state)).read_bytes() == inline
    assert _rebuilds(world, location, 3)


def _rebuilds(world: World, location: Path, version: int) -> bool:
    """Return True if a version whose files are gone is written again as it was."""
    manifest = location / "_versions" / name_of(version)
    state, _ = decode_manifest(manifest.read_bytes())
    files = (manifest, location / transaction_path(state))
    before = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    info = next(one for one in world.log.tables() if one.location == str(location))
    world.log.open(info.table_id, version)
    return [file.read_bytes() for file in files] == before


@pytest.mark.parametrize("header", ["user-agent", "x-forwarded-for", "via"])
def test_who_is_not_lance_or_comes_by_a_proxy_is_refused(
    world: World, table: list[str], header: str
) -> None:
    loser, winner = stage(world, table, 100), stage(world, table, 200)
    assert world.post(path(table, "create"), winner)[0] == 200
    before = decided(world)
    with closing(Connection(world, table, **{header: "a"})) as connection:
        status, body = connection.post("create", loser)
    assert (status, body["code"]) == (409, 14), body
    assert decided(world) == before
    assert world.open(table).count_rows() == 15


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "begun a moment ago"])
def test_beside_another_server_a_late_append_is_refused(tmp_path: Path, is_known: bool) -> None:
    """Its client may ask the other one next, which knows nothing of the commit.

    The client told its user that it isn't known what became of an append that was committed.
    """
    alone = [True]
    settings = Settings(
        is_alone=lambda: alone[0] or not is_known, is_alone_now=lambda: alone[0] or is_known
    )
    world, table = World(tmp_path, settings=settings), ["t"]
    world.write(table, numbers(0, 10))
    with closing(world), closing(Connection(world, table)) as its:
        late, landed = stage(world, table, 300), restaged(lose(world, table, its), 4)
        alone[0] = False
        assert its.post("create", landed)[0] == 303, "it was committed before the other one began"
        assert its.path_of(4) == name_of(3)
        status, body = its.post("create", late)
        assert (status, body["code"]) == (409, 14)
        stale = world.open(table, 1)
        stale.insert(numbers(400, 405))  # it stages its rows once more, by itself
        assert (stale.version, stale.count_rows()) == (4, 25)


def test_a_client_that_missed_it_is_told_when_it_comes_back(world: World, table: list[str]) -> None:
    with closing(Connection(world, table)) as first, closing(Connection(world, table)) as second:
        loser = lose(world, table, first)
        assert second.path_of(2) == name_of(2)
        before = decided(world)
        # As Lance does that found another transaction: the same one, staged over what it read.
        request = restaged(loser, 4)
        status, body = second.post("create", request)
        assert (status, decided(world)) == (303, before), body
        assert first.path_of(4) == name_of(3), "both connections are its own"
        assert second.path_of(4) == name_of(3)
    assert world.open(table).count_rows() == 20


def test_a_reader_that_asks_meanwhile_is_not_taken_for_the_client(
    world: World, table: list[str]
) -> None:
    with closing(Connection(world, table)) as its, closing(Connection(world, table)) as reader:
        reader.read_table()
        loser = lose(world, table, its)
        assert reader.path_of(2) == name_of(2)
        os.remove(f"/{loser['manifest_path']}")
        assert reader.path_of(2) == name_of(2)
        assert its.path_of(2) == name_of(3)
        loser, winner = stage(world, table, 300), stage(world, table, 400)
        assert world.post(path(table, "create"), winner)[0] == 200
        assert its.post("create", loser)[0] == 303
        os.remove(f"/{loser['manifest_path']}")
        assert reader.path_of(4) == name_of(4), "not its version of another number"
        assert its.path_of(4) == name_of(5)


def test_a_client_is_told_on_a_connection_that_it_just_opened(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landings, "NEW_WAITS_SECONDS", 0.0)
    monkeypatch.setattr(landings, "ASKS_WITHIN_SECONDS", 60.0)
    with closing(Connection(world, table)) as its, closing(Connection(world, table)) as new:
        loser = lose(world, table, its)
        assert new.path_of(2) == name_of(2)
        os.remove(f"/{loser['manifest_path']}")
        assert new.path_of(2) == name_of(3)
        assert its.path_of(2) == name_of(2), "it has been told"
        for asks in (its, new):
            (loser, winner), head = (
                (stage(world, table), stage(world, table)),
                its_head(world, table),
            )
            assert world.post(path(table, "create"), winner)[0] == 200
            assert new.post("create", loser)[0] == 303
            os.remove(f"/{loser['manifest_path']}")
            assert asks.path_of(head + 1) == name_of(head + 2), "both are known"
        loser, winner = stage(world, table), stage(world, table)
        assert world.post(path(table, "create"), winner)[0] == 200
        assert its.post("create", loser)[0] == 303
        os.remove(f"/{loser['manifest_path']}")
        asked = loser["version"]
        with closing(Connection(world, table)) as last:
            assert last.path_of(asked) == name_of(asked + 1), "it asks there first"


@pytest.mark.slow
@pytest.mark.parametrize("asks_before", [True, False], ids=["begins before", "begins after"])
def test_a_new_connection_is_that_of_the_only_client_that_does_not_ask_elsewhere(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch, asks_before: bool
) -> None:
    monkeypatch.setattr(landings, "NEW_WAITS_SECONDS", 60.0 if asks_before else 2.0)
    monkeypatch.setattr(landings, "ASKS_WITHIN_SECONDS", 120.0)
    waits, of_unknown = threading.Event(), landings.Landings._of_unknown

    def wait(*arguments: Any, **named: Any) -> int | None:
        waits.set()
        return of_unknown(*arguments, **named)

    monkeypatch.setattr(landings.Landings, "_of_unknown", wait)
    losers = [stage(world, table) for _ in range(3)]
    assert world.post(path(table, "create"), stage(world, table))[0] == 200
    with ExitStack() as opened:
        known = [opened.enter_context(closing(Connection(world, table))) for _ in losers]
        new = opened.enter_context(closing(Connection(world, table)))
        for its, loser in zip(known, losers, strict=True):
            assert its.post("create", loser)[0] == 303
        if asks_before:
            assert new.path_of(2) == name_of(2)
            waits.clear()
        for loser in losers:
            os.remove(f"/{loser['manifest_path']}")
        with ThreadPoolExecutor(1) as threads:
            told = threads.submit(new.path_of, 2)
            assert waits.wait(WAIT_SECONDS)
            assert [known[n].path_of(2) for n in (0, 2)] == [name_of(3), name_of(5)]
            assert told.result(60) == name_of(4)


def its_head(world: World, table: list[str]) -> int:
    return world.log.table(table).version


def test_a_reader_on_a_new_connection_waits_for_the_client(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landings, "NEW_WAITS_SECONDS", 60.0)
    monkeypatch.setattr(landings, "ASKS_WITHIN_SECONDS", 60.0)
    with (
        closing(Connection(world, table)) as its,
        closing(Connection(world, table)) as reader,
        ThreadPoolExecutor(1) as threads,
    ):
        loser = lose(world, table, its)
        os.remove(f"/{loser['manifest_path']}")
        read = threads.submit(reader.path_of, 2)
        assert its.path_of(2) == name_of(3)
        assert read.result(120) == name_of(2)


def test_who_waits_for_a_version_is_not_taken_for_the_client(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landings, "NEW_WAITS_SECONDS", 0.0)
    with closing(Connection(world, table)) as its, closing(Connection(world, table)) as waits:
        assert waits.post("describe", {"version": 2})[0] == 404
        loser = lose(world, table, its)
        assert waits.path_of(2) == name_of(2)
        os.remove(f"/{loser['manifest_path']}")
        assert waits.path_of(2) == name_of(2)
        assert its.path_of(2) == name_of(3)


def test_a_client_with_one_known_connection_is_led_on_for_a_while(
    world: World, table: list[str]
) -> None:
    with closing(Connection(world, table)) as its, closing(Connection(world, table)) as second:
        lose(world, table, its)
        led = 0
        while its.location:
            assert its.follow(its.location) == 303
            led += 1
        assert led == landings.SHOWN_MAX
        loser, winner = stage(world, table), stage(world, table)
        assert world.post(path(table, "create"), winner)[0] == 200
        assert its.post("create", loser)[0] == 303
        assert its.follow(its.location) == 303
        assert second.follow(its.location) == 303
        assert not second.location, "both are known"


def test_a_client_is_told_on_each_connection_on_which_it_followed_an_answer(
    world: World, table: list[str]
) -> None:
    with (
        closing(Connection(world, table)) as its,
        closing(Connection(world, table)) as second,
        closing(Connection(world, table)) as reader,
    ):
        for asks in (its, second):
            asked = its_head(world, table) + 1
            loser, winner = stage(world, table), stage(world, table)
            assert world.post(path(table, "create"), winner)[0] == 200
            assert its.post("create", loser)[0] == 303
            reader.read_table()
            assert second.follow(its.location) == 303
            assert reader.follow(its.location) == 400, "a token is shown once"
            assert second.path_of(asked) == name_of(asked)
            os.remove(f"/{loser['manifest_path']}")
            assert reader.path_of(asked) == name_of(asked)
            assert asks.path_of(asked) == name_of(asked + 1)
        assert second.follow("landed") == second.follow("landed?token=a") == 400


def test_lance_shows_its_connection_by_itself(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = lance_namespace.connect("rest", {"uri": world.uri, "delimiter": "."})
    dataset = lance.dataset(namespace_client=names, table_id=table)
    create, show, shown = versions._create_version, landings.Landings.show, list[int]()

    def behind(*given: Any) -> Any:
        world.log.append("$".join(table), numbers(100, 105))
        return create(*given)

    def noting(*given: Any) -> Any:
        found = show(*given)
        shown.append(0 if found is None else found.version)
        return found

    monkeypatch.setattr(versions, "_create_version", behind)
    monkeypatch.setattr(landings.Landings, "show", noting)
    dataset.insert(numbers(200, 205))
    assert (dataset.version, dataset.count_rows()) == (3, 20)
    assert set(shown) == {3}
    asked = [one.rpartition("/")[2] for one in world.faults.asked]
    assert asked[-2:] == ["describe", "describe"]
    assert asked[-3 - len(shown) :] == ["create", *["landed"] * len(shown), "describe", "describe"]


def test_who_comes_back_is_told_on_any_connection_of_what_nobody_has(
    world: World, table: list[str]
) -> None:
    with closing(Connection(world, table)) as its, closing(Connection(world, table)) as new:
        loser = lose(world, table, its)
        request = restaged(loser, 4)
        assert new.post("describe", {"version": 4})[0] == 404
        assert its.post("create", request)[0] == 303
        assert new.path_of(4) == name_of(3)
        os.remove(f"/{request['manifest_path']}")
        assert new.path_of(4) == name_of(3)
        assert new.post("describe", {"version": 4})[0] == 404, "it has been told"
        assert new.post("describe", {"version": 5})[0] == 404


@pytest.mark.parametrize("attempt", [0, 1])
def test_what_another_process_committed_is_not_committed_again(
    world: World, table: list[str], attempt: int
) -> None:
    loser, winner = stage(world, table, 100), stage(world, table, 200)
    assert world.post(path(table, "create"), winner)[0] == 200
    with open(f"/{loser['manifest_path']}", "rb") as file:
        _, message = decode_manifest(file.read())
    assert message is not None
    found = LanceTransaction.FromString(message)
    commit = LanceCommit(
        table=tuple(table), operation="Append", read_version=found.read_version, message=message
    )
    record = world.log.transaction((commit,), transaction_id=found.uuid, attempt=attempt)
    world.log.runtime().submit(record, id_is_new=False).result(120).raise_for_conflict()
    with closing(Connection(world, table)) as connection:
        status, body = connection.post("create", loser)
        assert status == 303, body
        os.remove(f"/{loser['manifest_path']}")
        assert connection.path_of(2) == name_of(3)
    assert world.open(table).count_rows() == 20


def test_who_commits_is_told_of_it_without_asking_the_leader(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = world.log.runtime().connection(0)._socket
    frames, sent = FrameBuffer(), list[FrameKind]()
    send = leader.send

    def noting(data: bytes) -> bool:
        sent.extend(kind for kind, _ in frames.feed(data))
        return send(data)

    loser, winner = stage(world, table, 100), stage(world, table, 200)
    world.log.table(table)
    monkeypatch.setattr(leader, "send", noting)
    assert world.post(path(table, "create"), winner)[0] == 200
    with closing(Connection(world, table)) as connection:
        assert connection.post("create", loser)[0] == 303
        assert connection.path_of(2) == name_of(2)
        os.remove(f"/{loser['manifest_path']}")
        assert connection.path_of(2) == name_of(3)
    asked = [kind for kind in sent if kind is not FrameKind.APPEND]
    assert asked == [], "outcomes come by themselves, and what they say of versions is kept"


def test_stale_appends_to_a_table_with_a_key_commit(world: World) -> None:
    name = [world.fresh_name(), "keyed"]
    world.log.create_table("$".join(name), numbers(0, 1).schema, primary_key="id")
    handles = [world.open(name) for _ in range(3)]
    for number, handle in enumerate(handles):
        handle.insert(numbers(10 * number, 10 * number + 5))
    assert [handle.count_rows() for handle in handles] == [5, 10, 15]
    assert world.open(name).count_rows() == 15


def test_an_append_over_an_overwrite_is_refused(world: World, table: list[str]) -> None:
    stale = world.open(table)
    world.write(table, numbers(0, 3), mode="overwrite")
    with pytest.raises(OSError, match="(?i)incompatible"):
        stale.insert(numbers(10, 15))
    assert world.open(table).count_rows() == 3


@pytest.mark.slow
def test_many_writers_append_without_a_loss(world: World, table: list[str]) -> None:
    ready = threading.Barrier(WRITERS)

    def work(number: int) -> list[tuple[int, int]]:
        names = lance_namespace.connect("rest", {"uri": world.uri})
        handle = lance.dataset(namespace_client=names, table_id=table)
        ready.wait(120)
        made = []
        for turn in range(APPENDS):
            first = 1000 * (number + 1) + 10 * turn
            handle.insert(numbers(first, first + 1))
            made.append((handle.version, handle.count_rows()))
        return made

    before = decided(world)
    with ThreadPoolExecutor(WRITERS) as threads:
        made = [one for writer in threads.map(work, range(WRITERS)) for one in writer]
    count = WRITERS * APPENDS
    assert sorted(version for version, _ in made) == list(range(2, count + 2))
    assert all(rows == version + 9 for version, rows in made), "each saw its own version"
    ids = world.open(table).to_table()["id"].to_pylist()
    assert len(set(ids)) == len(ids) == count + 10
    assert decided(world) - before <= count * 3 // 2


CHANGES: list[tuple[int, Callable[[Any], Any]]] = [
    (1, lambda dataset: dataset.create_scalar_index("id", "BTREE", name="by_id")),
    (1, lambda dataset: dataset.optimize.optimize_indices()),
    (2, lambda dataset: dataset.optimize.compact_files()),
    (1, lambda dataset: dataset.alter_columns({"path": "x", "name": "y"})),
    (1, lambda dataset: dataset.drop_columns(["y"])),
    (1, lambda dataset: dataset.drop_index("by_id")),
    (1, lambda dataset: dataset.update_config({"key": "value"})),
]


@pytest.mark.slow
def test_what_an_append_does_not_touch_lands_at_its_first_try(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create, rows = versions._create_version, [10]

    def behind(*given: Any) -> Any:
        """Have an append commit between what a client stages and what is decided of it."""
        columns = world.log.open("$".join(table)).schema.names
        new = numbers(rows[0], rows[0] + 1).rename_columns([*columns, "x"][:2])
        world.log.append("$".join(table), new.select(columns))
        rows[0] += 1
        return create(*given)

    monkeypatch.setattr(versions, "_create_version", behind)
    monkeypatch.setattr(landings, "ASKS_WITHIN_SECONDS", 60.0)
    for tries, change in CHANGES:
        dataset = world.open(table)
        dataset_rows, rows_before = dataset.count_rows(), rows[0]
        world.faults.asked[:] = []
        change(dataset)
        assert world.faults.asked.count(path(table, "create")) == tries
        assert rows[0] == rows_before + tries
        assert dataset.count_rows() == dataset_rows + tries, "it goes on with what was committed"
    found = lance.dataset(world.location(table))
    found.validate()  # type: ignore[no-untyped-call]
    assert found.schema.names == ["id"]
    assert found.config()["key"] == "value"
    assert sorted(found.to_table()["id"].to_pylist()) == list(range(rows[0]))
    assert len(found.get_fragments()) < 1 + rows[0] - 10, "some are merged"


def _lose_for_good(world: World, table: list[str], connection: Connection) -> None:
    """Commit as version 3 what was staged as version 2, and isn't sent again."""
    (loser,) = world.stage(table, lambda dataset: dataset.update_config({"key": "value"}))
    assert world.post(path(table, "create"), stage(world, table))[0] == 200
    assert connection.post("create", loser)[0] == 303
    assert connection.path_of(2) == name_of(2)
    os.remove(f"/{loser['manifest_path']}")


def test_a_client_that_does_not_come_back_is_told_on_an_unknown_connection(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landings, "ASKS_WITHIN_SECONDS", 60.0)
    monkeypatch.setattr(landings, "UNKNOWN_WAITS_SECONDS", 0.05)
    with closing(Connection(world, table)) as its, closing(Connection(world, table)) as new:
        _lose_for_good(world, table, its)
        assert new.path_of(2) == name_of(3)
        assert new.path_of(2) == name_of(2), "it has been told"
        assert its.path_of(2) == name_of(2)


def test_a_reader_is_not_told_who_asks_before_the_client_does(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landings, "UNKNOWN_WAITS_SECONDS", 60.0)
    monkeypatch.setattr(landings, "ASKS_WITHIN_SECONDS", 60.0)
    with (
        closing(Connection(world, table)) as its,
        closing(Connection(world, table)) as reader,
        ThreadPoolExecutor(1) as threads,
    ):
        _lose_for_good(world, table, its)
        read = threads.submit(reader.path_of, 2)
        assert its.path_of(2) == name_of(3)
        assert read.result(120) == name_of(2)


def test_readers_who_ask_for_the_same_version_hold_no_thread(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landings, "UNKNOWN_WAITS_SECONDS", 600.0)
    monkeypatch.setattr(landings, "ASKS_WITHIN_SECONDS", 600.0)
    with (
        closing(Connection(world, table)) as its,
        closing(Connection(world, table)) as one,
        closing(Connection(world, table)) as another,
        ThreadPoolExecutor(2) as threads,
    ):
        _lose_for_good(world, table, its)
        reads = [threads.submit(reader.path_of, 2) for reader in (one, another)]
        assert [read.result(120) for read in reads] == [name_of(2)] * 2
        assert its.path_of(2) == name_of(3), "its client is still told"
        monkeypatch.setattr(landings, "WAITING_MAX", 0)
        world.log.append("$".join(table), numbers(900, 901))
    with closing(Connection(world, table)) as its, closing(Connection(world, table)) as reader:
        (loser,) = world.stage(table, lambda dataset: dataset.update_config({"key": "other"}))
        assert world.post(path(table, "create"), stage(world, table))[0] == 200
        assert its.post("create", loser)[0] == 303
        os.remove(f"/{loser['manifest_path']}")
        asked = loser["version"]
        assert reader.path_of(asked) == name_of(asked)
        assert its.path_of(asked) == name_of(asked + 1)
