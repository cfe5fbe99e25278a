"""Lance tables in an object store: an S3 server in this process, pylance as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation

from commitlog import CommitLog, use_storage_options
from commitlog.adapters import storage_remote
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.adapters.storage import sha256_of, store_for
from commitlog.adapters.storage_remote import RemoteStore
from commitlog.client.rows.excerpts import Excerpt, taken_apart
from commitlog.client.rows.rows import prepare_delete
from commitlog.codecs.manifest_file import decode_manifest, manifest_name
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.records import Outcome, Status
from consumers.tools.maintenance.cleaning import clean
from tests.installed import need
from tests.kills import Kills
from tests.object_store import BUCKET, keys_of_the_machine, log_over_objects, s3_server
from tests.service import SCHEMA, ids_of, rows

need("moto")
BaseError = pytest.importorskip("obstore.exceptions", reason="obstore is not installed").BaseError
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

T = "ns$t"


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MemoryCluster, CommitLog]]:
    """Run a log whose tables lie in a bucket, and name the server as the cloud's tools do."""
    with s3_server(), log_over_objects(tmp_path_factory.mktemp("objects")) as made:
        yield made


@pytest.fixture(scope="module")
def client(objects: tuple[MemoryCluster, CommitLog]) -> CommitLog:
    """A client of that log."""
    return objects[1]


@pytest.fixture
def location(client: CommitLog) -> Iterator[str]:
    """Make a table of the ids 0 to 3; its head is version 2."""
    client.create_table(T, SCHEMA, primary_key="id")
    client.append(T, rows(0, 1, 2, 3))
    found = client.table(T).location
    assert found.startswith("s3://bucket/tables/")
    yield found
    client.drop_table(T)


def committed(outcome: Outcome) -> Outcome:
    """Return an outcome, which has to be a commit."""
    assert outcome.status is Status.COMMITTED, outcome.message
    return outcome


def test_rows_are_changed_and_read_by_plain_pylance(client: CommitLog, location: str) -> None:
    client.delete(T, "id = 0").raise_for_conflict()
    client.update(T, {"name": "'new'"}, "id = 1").raise_for_conflict()
    client.merge_insert(T, rows(2, 9, name="m"), "id").raise_for_conflict()
    native = client.open(T)
    native.delete("id = 3")
    native.create_scalar_index("id", "BTREE")
    found = lance.dataset(location)
    assert found.version == client.table(T).version == 7
    table = found.to_table()
    names = dict(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))
    assert names == {1: "new", 2: "m", 9: "m"}
    assert found.to_table(filter="id = 9")["name"].to_pylist() == ["m"]


def test_deletes_are_rebased_and_versions_restored(client: CommitLog, location: str) -> None:
    info, dataset = client.table(T), lance.dataset(location)
    for prepared in [prepare_delete(info, dataset, f"id = {i}") for i in (0, 1)]:
        ticket = client.submit(
            T, prepared.operation, read_version=2, affected_rows=prepared.affected
        )
        committed(ticket.result())
    assert ids_of(lance.dataset(location)) == [2, 3]
    committed(client.submit(T, LanceOperation.Restore(2)).result())
    assert ids_of(lance.dataset(location)) == [0, 1, 2, 3]
    staged = [name for name in store_for(location).names("_versions") if ".manifest-" in name]
    assert staged == [], "what pylance staged is removed once it has its own name"


@pytest.mark.parametrize("is_shallow", [True, False], ids=["shallow", "deep"])
def test_clones_are_made_within_the_store(
    client: CommitLog, location: str, is_shallow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The store copies what lies in one bucket; nothing of it comes through this process.
    monkeypatch.setattr(RemoteStore, "chunks", lambda *_: pytest.fail("read"))
    name = f"ns$clone_{is_shallow}"
    clone = LanceOperation.Clone(is_shallow, None, 2, location, None)
    committed(client.submit(name, clone).result())
    committed(client.append(name, rows(50)))
    assert ids_of(lance.dataset(client.table(name).location)) == [0, 1, 2, 3, 50]


def test_files_of_any_size_are_taken_from_other_stores(
    client: CommitLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(1 << 20) * 21
    (tmp_path / "here" / "data").mkdir(parents=True)
    (tmp_path / "here" / "data" / "f").write_bytes(data)
    here, far = store_for(str(tmp_path / "here")), store_for("s3://bucket/taken")
    back = store_for(str(tmp_path / "back"))
    assert len(list(here.chunks("data/f"))) == 3
    far.take("data/f", here)
    back.take("data/f", far)
    assert (tmp_path / "back" / "data" / "f").read_bytes() == data
    assert [p.name for p in (tmp_path / "back" / "data").iterdir()] == ["f"]
    # A store that can't copy by itself: too large for it, or never heard of it.
    again = store_for("s3://bucket/again")
    with monkeypatch.context() as patch:
        patch.setattr("obstore.copy", lambda *_: (_ for _ in ()).throw(BaseError("501")))
        again.take("data/f", far)
    assert again.size("data/f") == len(data)
    for target in (again, back):
        with pytest.raises(FileNotFoundError):
            target.take("data/none", far)
    assert again.size("data/none") == -1
    assert [p.name for p in (tmp_path / "back" / "data").iterdir()] == ["f"]


@pytest.mark.slow
@pytest.mark.parametrize("copies", [True, False], ids=["copied by the store", "through a file"])
def test_a_strangers_version_that_is_too_large_to_read_is_moved_away_unread(
    client: CommitLog, location: str, monkeypatch: pytest.MonkeyPatch, copies: bool
) -> None:
    """The leader read it whole, ran out of memory, and its table waited for somebody to move it."""
    store, most = RemoteStore(location), 30_000
    head = client.table(T).version
    strays = [f"_versions/{manifest_name(head + number)}" for number in (1, 2)]
    monkeypatch.setattr(storage_remote, "READ_BYTES_MAX", most)
    if not copies:
        monkeypatch.setattr("obstore.copy", lambda *_: (_ for _ in ()).throw(BaseError("501")))
    for stray in strays:
        store.write(stray, bytes([1]) * (most + 1))
        with pytest.raises(OSError, match="File too large"):
            store.read(stray)
        assert store.digest(stray) == store.digest(stray) != sha256_of(bytes([1]) * (most + 1))
    assert client.append(T, rows(4)).version == head + 1
    assert ids_of(client.open(T)) == [0, 1, 2, 3, 4]
    kept = {file.path: file.size for file in store.files("_quarantine")}
    assert sorted(path.split("/")[1].split("-")[0] for path in kept) == sorted(
        stray.split("/")[1] for stray in strays
    )
    assert set(kept.values()) == {most + 1}
    assert client.append(T, rows(5)).version == head + 2


def test_a_version_that_is_there_is_never_put_again(client: CommitLog, location: str) -> None:
    store, path = store_for(location), f"_versions/{manifest_name(2)}"
    before = store.read(path)
    assert not store.create(path, b"somebody else's")
    assert store.read(path) == before
    state, encoded = decode_manifest(before)
    assert encoded is not None
    assert state.transaction_file.endswith(f"{Transaction.FromString(encoded).uuid}.txn")


def test_a_removal_killed_at_every_step_takes_what_nobody_needs(
    objects: tuple[MemoryCluster, CommitLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, client = objects
    for name in ("r$kept", "r$gone"):
        client.create_table(name, SCHEMA)
        for ids in ((0, 1, 2, 3), (4,)):
            client.append(name, rows(*ids))
        client.delete(name, "id = 0")
    kept, gone = (client.table(name).location for name in ("r$kept", "r$gone"))
    client.create_index("r$kept", "id", "BTREE")
    clone = LanceOperation.Clone(True, None, 2, kept, None)
    committed(client.submit("r$clone", clone).result())
    plain = lance.dataset(kept)
    plain.tags.create("month", 3)
    plain.create_branch("dev", 3).insert(rows(50))
    plain.create_branch("lost", 3).insert(rows(60))
    store_for(kept).delete("_refs/branches/lost.json")
    client.compact("r$kept")
    client.expire_versions("r$kept", retain_versions=1)
    client.drop_table("r$gone")

    def is_whole() -> bool:
        now = lance.dataset(kept)
        found = [now, now.checkout_version("month"), now.checkout_version(("dev", None))]
        found.append(lance.dataset(client.table("r$clone").location))
        assert now.to_table(filter="id = 4").num_rows == 1, "by the index"
        return [ids_of(one) for one in found] == [
            [1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 50], [0, 1, 2, 3],
        ]  # fmt: skip

    log = MemoryLog(cluster)
    todo = {one["location"] for one in clean(log, None, 0)}
    assert {str(place).removeprefix(kept).startswith("/tree/lost/") for place in todo} == {
        True, False,
    }  # fmt: skip
    steps = ((CommitLog, "submit"), (RemoteStore, "delete"), (RemoteStore, "move"))
    kill = Kills(monkeypatch, *steps)
    removed: list[str] = []
    kills = 0

    def remove() -> None:
        clean(log, None, 0, client, on_removed=lambda one: removed.append(one.location))

    while kill.at((1, 2, 3, 6, 9)[kills % 5], remove):
        kills += 1
        assert is_whole()
    assert kills >= 4
    assert is_whole()
    assert {place for place in removed if "/data/" in place} <= todo, "what the dry run listed"
    assert clean(log, None, 0) == []
    assert list(store_for(gone).walk()) == []
    client.append("r$kept", rows(9)).raise_for_conflict()
    assert ids_of(lance.dataset(kept)) == [1, 2, 3, 4, 9]


def test_changes_of_rows_make_no_client_of_the_store_each(
    tmp_path: Path, client: CommitLog
) -> None:
    # `client` keeps the server.
    with (
        keys_of_the_machine() as asked,
        log_over_objects(tmp_path, f"s3://{BUCKET}/asked") as (_, log),
    ):
        log.create_table(T, SCHEMA, primary_key="id")
        log.append(T, rows(*range(8)))
        counts = []
        for start in (0, 4):
            before = len(asked)
            committed(log.update(T, {"name": None}, f"id IN ({start}, {start + 3})"))
            committed(log.delete(T, f"id = {start + 1}"))
            committed(log.merge_insert(T, rows(start + 2), "id"))
            committed(log.delete(T, f"id = {start + 3} AND name IS NULL"))
            counts.append(len(asked) - before)
        assert asked
        assert counts[-1] == 0
        assert ids_of(log.open(T)) == [0, 2, 4, 6]


def test_excerpts_that_share_a_session_share_no_cache(client: CommitLog) -> None:
    uri = f"s3://{BUCKET}/apart/t.lance"
    dataset = lance.write_dataset(
        pa.table({"id": range(6)}), uri, max_rows_per_file=2, enable_stable_row_ids=True
    )
    head, fragments = taken_apart(dataset)
    session = lance.Session()  # type: ignore[attr-defined]
    for number, fragment in fragments.items():
        part = Excerpt(1, head, (fragment,)).alone(uri, session)
        ids = [2 * number, 2 * number + 1]
        # Lance keeps by the version's number where each stable id is.
        assert part._take_rows(ids, columns=["id"])["id"].to_pylist() == ids
        assert part.scanner(columns=["id"]).to_table()["id"].to_pylist() == ids


def test_a_store_is_kept_while_it_is_reached_in_the_same_way(
    client: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"s3://{BUCKET}/kept/t.lance"
    found = store_for(uri)
    assert store_for(uri) is found
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    other = store_for(uri)
    assert other is not found
    use_storage_options(uri, {"aws_session_token": "third"})
    try:
        assert store_for(uri) not in (found, other)
    finally:
        use_storage_options(uri, {})
    monkeypatch.setattr(os, "getpid", lambda: 1)  # as in a forked child
    assert store_for(uri) is not other
