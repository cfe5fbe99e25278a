"""Files that nobody needs: which they are, why, and that removing them takes nothing else."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

import lance
import pytest

from commitlog.adapters.storage import FileFound
from commitlog.client.leader import sending
from commitlog.codecs.manifest_file import decode_manifest, manifest_name
from commitlog.errors import MissingDataFile, NoSuchTable, NoSuchVersion, TransactionRejected
from commitlog.model.names import REASON
from commitlog.model.operations import DeleteTableVersions
from commitlog.model.records import Application
from consumers.tools.orphans import file_ledger, orphans
from consumers.tools.orphans.file_ledger import FileLedger, LifeFiles, Why
from consumers.tools.orphans.leftover import GONE, Leftover
from consumers.tools.orphans.orphans import Leftovers
from consumers.tools.verify import VerifyOptions, verify
from tests.service import SCHEMA, Service, rows

TABLE = "shop$orders"


@pytest.fixture
def world(running: Service) -> Service:
    running.client.create_table(TABLE, SCHEMA)
    return running


def found(world: Service, table: str | None = TABLE) -> dict[str, tuple[Why, str]]:
    leftovers = Leftovers(world.log, 0)
    try:
        return {one.path: (one.why, one.reason) for one in leftovers.find(table)}
    finally:
        leftovers.close()


def remove(world: Service, table: str | None = TABLE, *, stop_after: int = 10**9) -> list[str]:
    """Remove all; stop after some files as if killed."""
    removed: list[str] = []

    def note(leftover: object) -> None:
        removed.append(leftover.path)  # type: ignore[attr-defined]
        if len(removed) >= stop_after:
            raise KeyboardInterrupt

    leftovers = Leftovers(world.log, 0)
    try:
        leftovers.remove(list(leftovers.find(table)), world.client, on_removed=note)
    except KeyboardInterrupt:
        pass
    finally:
        leftovers.close()
    return removed


def written(world: Service, *ids: int) -> lance.FragmentMetadata:
    [fragment] = lance.fragment.write_fragments(rows(*ids), str(world.location(TABLE)))
    return fragment


def is_proven(world: Service) -> None:
    """Decide the log again, and compare all files with it."""
    verdict = verify(world.log, 0, VerifyOptions(root=world.root, contents=True))
    assert verdict.problems == []
    # Some were decided on files that are gone.
    assert verdict.decided_again + verdict.not_decided_again == verdict.outcomes


def ids_of(world: Service, version: int | None = None) -> list[int]:
    dataset = lance.dataset(str(world.location(TABLE)), version=version)
    return sorted(dataset.to_table()["id"].to_pylist())


def test_what_a_killed_client_kept_for_itself_is_abandoned(world: Service) -> None:
    private = world.location(TABLE) / "_commitlog-private" / "killed-7.columns"
    private.parent.mkdir()
    private.write_bytes(b"fragments")
    path = "_commitlog-private/killed-7.columns"
    assert found(world)[path] == (Why.ABANDONED, "no transaction names it")
    assert remove(world) == [path]
    assert not private.exists()


def test_a_transactions_file_goes_with_its_version(world: Service) -> None:
    for number in range(3):
        world.client.append(TABLE, rows(number))
    folder = world.location(TABLE) / "_transactions"
    stray = folder / "7-0b5b2c1e-9a4e-4c1b-8e61-6b3f0a6f9d10.txn"
    stray.write_bytes(b"of a writer that died")
    expired = {f"_transactions/{_named(world, version)}" for version in (1, 2)}
    world.client.expire_versions(TABLE, retain_versions=2)
    assert {path: why for path, (why, _) in found(world).items()} == {
        f"_transactions/{stray.name}": Why.ABANDONED,
        **dict.fromkeys(expired, Why.EXPIRED),
    }
    remove(world)
    assert {path.name for path in folder.iterdir()} == {_named(world, 3), _named(world, 4)}
    assert found(world) == {}
    is_proven(world)


def _named(world: Service, version: int) -> str:
    data = (world.location(TABLE) / "_versions" / manifest_name(version)).read_bytes()
    return decode_manifest(data)[0].transaction_file


def test_what_versions_read_is_needed(world: Service) -> None:
    world.client.append(TABLE, rows(1, 2, 3))
    world.client.open(TABLE).create_scalar_index("id", "BTREE")
    world.client.delete(TABLE, "id = 1")
    world.client.update(TABLE, {"name": "'z'"}, "id = 2")
    world.client.open(TABLE).optimize.compact_files()
    assert found(world) == {}
    assert remove(world) == []


def test_files_that_nobody_names_go_and_others_stay(world: Service) -> None:
    world.client.append(TABLE, rows(1, 2))
    path = f"data/{written(world, 1).files[0].path}"
    size = (world.location(TABLE) / path).stat().st_size
    assert found(world) == {path: (Why.ABANDONED, "no transaction names it")}
    assert remove(world) == [path]
    assert found(world) == {}
    assert ids_of(world) == [1, 2]
    events = world.client.subscribe(from_position="beginning", idle_seconds=0)
    records = [event.transaction for event in events]
    said = [dict(record.properties).get(REASON) for record in records if record is not None]
    assert [text for text in said if text] == [
        f"removes 1 unneeded files of {size:,} bytes: 1 abandoned"
    ]


def test_to_remove_a_tables_files_no_others_are_looked_through(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    needed = FileLedger.needed

    def noting(ledger: FileLedger, paths: Iterable[str], *more: Any) -> set[str]:
        asked.append(sorted(paths))
        return needed(ledger, asked[-1], *more)

    monkeypatch.setattr(FileLedger, "needed", noting)
    world.client.create_table("shop$other", SCHEMA)
    for table in ("shop$other", TABLE):
        world.client.append(table, rows(1, 2))
    stray = f"data/{written(world, 1).files[0].path}"
    assert remove(world, None) == [stray]
    look, *before_each = asked
    assert len(look) > 4
    assert before_each == [[f"{world.location(TABLE)}/{stray}"]] * 2


def test_of_many_deletions_the_older_ones_count_as_one(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_ledger, "DELETIONS_KEPT", 3)
    for number in range(7):
        world.client.delete(TABLE, "true")
        world.client.append(TABLE, rows(number))
        world.client.expire_versions(TABLE, retain_versions=1)
    with closing(Leftovers(world.log, 0)) as leftovers:
        [life] = leftovers._ledger.lives.values()
        assert [ranges for ranges, _ in life.deleted] == [((1, 10),), ((11, 12),), ((13, 14),)]
        said = {one.reason.partition(" as ")[0] for one in leftovers.find() if "data/" in one.path}
    assert said == {f"versions {a} to {a + 1} were deleted" for a in (9, 11, 13)}
    remove(world)
    assert ids_of(world) == [6]


def test_a_removal_that_is_cut_short_goes_on_later(world: Service) -> None:
    paths = {f"data/{written(world, number).files[0].path}" for number in range(5)}
    removed: list[Leftover] = []
    leftovers = Leftovers(world.log, 0)
    is_done = leftovers.remove(
        list(leftovers.find()),
        world.client,
        on_removed=removed.append,
        go_on=lambda: len(removed) < 2,
    )
    leftovers.close()
    assert not is_done
    assert len(removed) == 2
    assert {*remove(world), *(one.path for one in removed)} == paths


def test_a_replayed_batch_leaves_its_second_files(world: Service) -> None:
    for number in (1, 2):
        operation = lance.LanceOperation.Append([written(world, number)])
        application = Application("stream", 0, "run")
        ticket = world.client.submit(TABLE, operation, application=application)
        assert ticket.result().version == 2
    [(why, reason)] = found(world).values()
    assert why is Why.REFUSED
    assert "repeated what outcome" in reason


def test_files_of_a_refused_attempt_are_listed(world: Service) -> None:
    world.client.append(TABLE, rows(1))
    world.client.delete(TABLE, "id = 1")
    update = lance.LanceOperation.Update(
        removed_fragment_ids=[0], new_fragments=[written(world, 9)], update_mode="rewrite_rows"
    )
    outcome = world.client.submit(TABLE, update, read_version=2).result()
    assert outcome.status == "retryable"
    assert [why for why, _ in found(world).values()] == [Why.REFUSED]


def test_files_of_an_undecided_transaction_may_still_be_committed(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SETTLE_SECONDS", 0.1)
    operation = lance.LanceOperation.Append([written(world, 1)])
    world.running[0].stop()
    ticket = world.client.submit(TABLE, operation)
    world.client.runtime().flush(120)
    assert not ticket.done()
    assert found(world) == {}


def test_files_of_deleted_versions_go_and_those_of_others_stay(world: Service) -> None:
    world.client.append(TABLE, rows(1, 2))
    world.client.append(TABLE, rows(3, 4))
    world.client.open(TABLE).create_scalar_index("id", "BTREE")
    world.client.delete(TABLE, "id = 1")
    world.client.compact(TABLE, target_rows_per_fragment=100)
    head = world.client.table(TABLE).version
    assert found(world) == {}, "every version stands"
    world.client.open(TABLE).tags.create("kept", 2)
    # A tag keeps a version from expiring, and its files even if a record deletes it.
    expired = DeleteTableVersions(("shop", "orders"), ((1, head - 1),))
    world.client.submit(None, expired).result().raise_for_conflict()
    listed = found(world)
    assert {why for why, _ in listed.values()} == {Why.EXPIRED}
    assert all(f"versions 1 to {head - 1} were deleted" in reason for _, reason in listed.values())
    kinds = {path.split("/")[0] for path in listed}
    assert kinds == {"data", "_deletions", "_indices", "_transactions"}
    world.client.open(TABLE).tags.delete("kept")
    more = found(world)
    assert set(more) > set(listed)
    assert sorted(remove(world)) == sorted(more)
    assert ids_of(world) == [2, 3, 4]
    assert lance.dataset(str(world.location(TABLE))).to_table(filter="id = 3").num_rows == 1
    assert found(world) == {}
    is_proven(world)


def test_removing_goes_on_where_it_was_killed(world: Service) -> None:
    for number in range(5):
        world.client.append(TABLE, rows(number))
    world.client.compact(TABLE)
    world.client.expire_versions(TABLE, retain_versions=1)
    todo = set(found(world))
    assert len([path for path in todo if path.startswith("data/")]) == 5
    done: set[str] = set()
    while todo - done:
        removed = remove(world, stop_after=1)
        assert len(removed) == 1
        done |= set(removed)
    assert done == todo
    assert ids_of(world) == [0, 1, 2, 3, 4]


def test_sidecar_files_of_blobs_go_with_their_data_file(world: Service) -> None:
    schema = SCHEMA.append(lance.blob_field("b"))
    world.client.create_table("blobs", schema)
    blob = b"x" * 5_000_000
    data = [{"id": 1, "name": "a", "b": blob}]
    world.client.append("blobs", data)
    world.client.append("blobs", data)
    place = world.location("blobs")
    assert list(place.glob("data/*/*.blob"))
    world.client.delete("blobs", "true")
    world.client.expire_versions("blobs", retain_versions=1)
    assert remove(world, "blobs")
    assert not list(place.glob("data/*"))
    assert world.client.open("blobs").count_rows() == 0


def test_a_dropped_table_comes_back_until_its_files_go(world: Service) -> None:
    client = world.client
    client.append(TABLE, rows(1, 2))
    client.append(TABLE, rows(3))
    client.delete(TABLE, "id = 1")
    client.expire_versions(TABLE, retain_versions=2)
    place = world.location(TABLE)
    client.drop_table(TABLE)
    client.create_table(TABLE, SCHEMA)
    client.append(TABLE, rows(7))
    client.undrop(TABLE, name="shop$old").raise_for_conflict()
    assert sorted(client.open("shop$old").to_table()["id"].to_pylist()) == [2, 3]
    assert client.table("shop$old").deleted == ((1, 2),)
    assert ids_of(world) == [7]
    client.append("shop$old", rows(8))
    assert client.open("shop$old").count_rows() == 3
    client.drop_table("shop$old")
    listed = found(world, "shop$old")
    assert {why for why, _ in listed.values()} == {Why.DROPPED}
    assert remove(world, "shop$old")
    assert not place.exists()
    with pytest.raises(NoSuchTable, match="its files were"):
        client.undrop("shop$old")
    with pytest.raises(NoSuchTable, match="was dropped from the log"):
        client.undrop("shop$never")
    assert ids_of(world) == [7]
    is_proven(world)


def test_a_table_that_came_back_while_its_files_were_about_to_go_stays(world: Service) -> None:
    client = world.client
    client.append(TABLE, rows(1, 2))
    place = world.location(TABLE)
    client.drop_table(TABLE)
    leftovers = Leftovers(world.log, 0)
    listed = list(leftovers.find(TABLE))
    client.undrop(TABLE)
    removed: list[object] = []
    leftovers.remove(listed, client, on_removed=removed.append)
    leftovers.close()
    assert not removed
    assert ids_of(world) == [1, 2]
    # A removal that died after it had put the manifest aside.
    [newest] = [p for p in place.glob("_versions/*.manifest")][:1]
    newest.rename(f"{newest}{GONE}")
    remove(world)
    assert newest.exists()
    assert ids_of(world) == [1, 2]


def test_a_removal_that_died_before_the_folders_went_is_finished(world: Service) -> None:
    world.client.append(TABLE, rows(1))
    place = world.location(TABLE)
    world.client.drop_table(TABLE)
    for path in [path for path in place.rglob("*") if path.is_file()]:
        path.unlink()
    assert remove(world) == []
    assert not place.exists()


def test_a_clone_keeps_the_files_of_what_it_was_cloned_from(world: Service) -> None:
    client = world.client
    client.append(TABLE, rows(1, 2))
    client.delete(TABLE, "id = 1")
    source = world.location(TABLE)
    ticket = client.submit(
        "shop$clone", lance.LanceOperation.Clone(True, None, 3, str(source), None)
    )
    ticket.result().raise_for_conflict()
    client.append(TABLE, rows(3))
    client.drop_table(TABLE)
    assert remove(world)
    assert {path.parent.name for path in source.rglob("*") if path.is_file()} == {
        "data",
        "_deletions",
    }
    assert client.open("shop$clone").to_table()["id"].to_pylist() == [2]
    client.drop_table("shop$clone")
    assert remove(world, None)
    assert not source.exists()


def test_branches_of_lance_keep_their_files_and_leave_none(world: Service) -> None:
    client, place = world.client, world.location(TABLE)
    client.append(TABLE, rows(1, 2))
    dev = lance.dataset(str(place)).create_branch("dev", 2)
    dev.insert(rows(3))
    dev.create_scalar_index("id", "BTREE")
    dev.delete("id = 1")
    one = dev.create_branch("fix/one", ("dev", None))
    one.insert(rows(4))
    client.delete(TABLE, "id = 2")
    client.compact(TABLE)
    client.expire_versions(TABLE, retain_versions=1)
    remove(world)

    def of_branch(name: str) -> list[int]:
        branch = lance.dataset(str(place)).checkout_version((name, None))
        branch.validate()  # type: ignore[no-untyped-call]
        assert branch.to_table(filter="id = 3").num_rows == 1
        return sorted(branch.to_table()["id"].to_pylist())

    assert (of_branch("dev"), of_branch("fix/one")) == ([2, 3], [2, 3, 4])
    (place / "tree" / "dev" / "data" / "stray.lance").write_bytes(b"of a writer that died")
    assert found(world) == {
        "tree/dev/data/stray.lance": (Why.ABANDONED, "no version of dev names it")
    }
    # As Lance leaves it when it is killed while it deletes a branch.
    (place / "_refs" / "branches" / "fix%2Fone.json").unlink()
    listed = found(world)
    assert {reason for path, (_, reason) in listed.items() if path.startswith("tree/fix")} == {
        "there is no branch fix/one now"
    }
    assert set(remove(world, stop_after=2)) < set(listed)
    remove(world)
    assert found(world) == {}
    assert [path.name for path in (place / "tree").iterdir()] == ["dev"]
    assert of_branch("dev") == [2, 3]
    assert ids_of(world) == [1]
    is_proven(world)


def test_a_hold_keeps_versions_and_a_lease_ends(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.client
    for number in range(4):
        client.append(TABLE, rows(number))
    position = client.snapshot().positions
    client.hold("report", [TABLE], position)
    client.append(TABLE, rows(9))
    deletion = DeleteTableVersions(("shop", "orders"), ((1, 5),))
    with pytest.raises(TransactionRejected, match="hold"):
        client.submit(None, deletion).result().raise_for_conflict()
    client.expire_versions(TABLE, retain_versions=1)
    assert client.table(TABLE).deleted == ((1, 4),)
    assert client.snapshot(position).open(TABLE).count_rows() == 4
    assert client.release("report") is not None
    assert client.release("report") is None
    with pytest.raises(NoSuchVersion, match="was deleted"):
        client.hold("late", TABLE, {0: 3})
    assert not [name for name in client.table(TABLE).properties if "hold" in name]
    client.hold("lease", TABLE, lasting=timedelta(hours=1))
    client.append(TABLE, rows(10))
    client.expire_versions(TABLE, retain_versions=1)
    assert client.table(TABLE).deleted == ((1, 5),)
    later = time.time_ns() + 2 * 3_600 * 10**9
    monkeypatch.setattr("consumers.runtime.steady_clock.HELD_MS", 0)
    monkeypatch.setattr(time, "time_ns", lambda: later)  # the log's clock and the leader's
    client.append(TABLE, rows(11))
    client.expire_versions(TABLE, retain_versions=1)
    assert client.table(TABLE).deleted == ((1, 7),)


def test_restoring_many_tables_is_one_record(world: Service) -> None:
    client = world.client
    client.create_table("shop$lines", SCHEMA)
    client.append(TABLE, rows(1))
    client.append("shop$lines", rows(10))
    then = client.snapshot().positions
    client.append(TABLE, rows(2))
    client.delete("shop$lines", "true")
    outcome = client.restore([TABLE, "shop$lines"], then)
    assert outcome is not None
    assert outcome.versions() == {TABLE: 4, "shop$lines": 4}
    assert ids_of(world) == [1]
    assert client.open("shop$lines").to_table()["id"].to_pylist() == [10]
    assert client.restore([TABLE, "shop$lines"], then) is None, "both are as they were"
    client.drop_table("shop$lines")
    with pytest.raises(NoSuchTable):
        client.restore([TABLE, "shop$lines"], then)
    assert ids_of(world) == [1]
    is_proven(world)


def test_a_table_that_is_not_there_is_named(world: Service) -> None:
    with pytest.raises(NoSuchTable, match=r"Did you mean shop\$orders"):
        found(world, "shop$order")


def test_quarantined_files_are_foreign(world: Service) -> None:
    world.client.append(TABLE, rows(1))
    place = world.location(TABLE)
    copy = world.root / "copy"
    shutil.copytree(place, copy)
    lance.write_dataset(rows(2), str(copy), mode="append")
    foreign = max(copy.glob("_versions/*.manifest"), key=lambda path: path.stat().st_mtime_ns)
    for file in copy.glob("data/*"):
        if not (place / "data" / file.name).exists():
            shutil.copy(file, place / "data" / file.name)
    (place / "_quarantine").mkdir()
    shutil.copy(foreign, place / "_quarantine" / foreign.name)
    assert {why for why, _ in found(world).values()} == {Why.FOREIGN}
    assert len(found(world)) == 2


class Interrupted(Leftovers):
    """Does something else between two looks at the log of a removal."""

    at: int
    then: Callable[[], object]
    looks = 0

    def _unneeded(self, life: LifeFiles, leftovers: Sequence[Leftover]) -> list[Leftover]:
        found = super()._unneeded(life, leftovers)
        self.looks += 1
        if self.looks == self.at:
            self.then()
        return found


def interrupted(world: Service, at: int, then: Callable[[], object]) -> list[str]:
    """Remove all, and do something else after the first or second look; return what went."""
    removed: list[str] = []
    leftovers = Interrupted(world.log, 0)
    leftovers.at, leftovers.then = at, then
    with closing(leftovers):
        found = list(leftovers.find(TABLE))
        leftovers.remove(found, world.client, on_removed=lambda one: removed.append(one.path))
    return removed


def test_a_late_commit_keeps_the_file_that_was_about_to_go(world: Service) -> None:
    operation = lance.LanceOperation.Append([written(world, 1)])
    removed = interrupted(
        world, 1, lambda: world.client.submit(TABLE, operation).result(60).raise_for_conflict()
    )
    assert removed == []
    assert ids_of(world) == [1]
    assert found(world) == {}
    is_proven(world)


def test_a_commit_that_is_later_still_is_refused(world: Service) -> None:
    operation = lance.LanceOperation.Append([written(world, 1)])

    def late() -> None:
        with pytest.raises(MissingDataFile):
            world.client.submit(TABLE, operation)

    assert len(interrupted(world, 2, late)) == 1
    assert ids_of(world) == []


def test_what_a_killed_removal_put_aside_is_named_again_or_removed(world: Service) -> None:
    needed, unneeded = written(world, 1), written(world, 2)
    operation = lance.LanceOperation.Append([needed])
    world.client.submit(TABLE, operation).result(60).raise_for_conflict()
    paths = [f"data/{one.files[0].path}" for one in (needed, unneeded)]
    for path in paths:
        (world.location(TABLE) / path).rename(world.location(TABLE) / f"{path}{GONE}")
    assert found(world) == {paths[1]: (Why.ABANDONED, "no transaction names it")}
    assert ids_of(world) == [1]
    assert remove(world) == [paths[1]]
    assert [f"data/{one.name}" for one in (world.location(TABLE) / "data").iterdir()] == paths[:1]
    is_proven(world)


def test_a_dropped_table_of_which_nothing_is_left_is_looked_at_no_more(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    files = orphans._files

    def noting(life: LifeFiles) -> list[FileFound]:
        listed.append(life.name)
        return files(life)

    monkeypatch.setattr(orphans, "_files", noting)
    world.client.create_table("shop$old", SCHEMA)
    world.client.append("shop$old", rows(1))
    world.client.delete("shop$old", "true")  # older versions read the file still
    place = world.location("shop$old")
    shutil.copytree(place, saved := world.root / "saved")
    world.client.drop_table("shop$old")
    later = 8 * 86_400.0
    leftovers = Leftovers(world.log, 0, clock=lambda: time.time() + later)
    with closing(leftovers):

        def look() -> list[Leftover]:
            listed.clear()
            return list(leftovers.find())

        leftovers.remove(look(), world.client, on_removed=lambda one: None)
        assert not place.exists()
        for _ in range(2):
            assert look() == []
            assert "shop$old" in listed
        assert look() == []
        assert listed == [TABLE]
        lives = leftovers._ledger.lives.values()
        assert not leftovers._ledger.known_of(one for one in lives if not one.is_live)
        assert leftovers._ledger.known_of(lives)
        # Whoever has its files brings it back, and it is a table as before.
        shutil.copytree(saved, place)
        world.client.undrop("shop$old")
        assert look() == look() == look() == []
        assert "shop$old" in listed
        world.client.drop_table("shop$old")
        assert {one.why for one in look()} == {Why.DROPPED}
