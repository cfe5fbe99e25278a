"""Does a record make an older log's places relative to a named root, for good and for all?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lance
import pytest

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.places import named_here, use_places
from commitlog.client.history.roots import roots_of
from commitlog.core.catalogue.named_roots import PLACE, named_roots
from commitlog.core.iceberg.reading import dump_json
from commitlog.errors import (
    InvalidRequest,
    InvalidSettings,
    InvalidTransaction,
    TransactionRejected,
)
from commitlog.model.limits import NAMED_ROOTS_SINCE, Rules
from commitlog.model.operations import AlterProperties, DropTable, IcebergChange
from commitlog.model.records import Outcome
from consumers import cli
from consumers.commands import places
from consumers.commands.exit_codes import ExitCode
from consumers.partition.checkpoints.table_places import check_all, find_roots
from consumers.runtime.places import RootMoved, check_own_place
from consumers.tools.rules import put_in_force
from consumers.tools.verify import VerifyOptions, verify
from consumers.views.explanation import explain
from tests.core_world import GENESIS, ROOT, World, replayed_from_parts
from tests.golden.make_roots import PLACE as OLD
from tests.golden.roots import golden
from tests.service import Service, ids_of, rows, service
from tests.unit.iceberg_examples import create_updates
from tests.verified import index_whole

pytestmark = pytest.mark.usefixtures("no_places")


@pytest.fixture
def world() -> World:
    world = World(rules=Rules(NAMED_ROOTS_SINCE))
    world.roots = {"lake": ROOT, "other": ROOT, "deep": f"{ROOT}/t"}
    world.create()
    return world


def bind(world: World, place: str, root: str, *removals: str) -> Outcome:
    keys = tuple(PLACE + one for one in removals)
    upserts = ((PLACE + place, root),) if place else ()
    asked = AlterProperties((), True, upserts=upserts, removals=keys)
    return world.ask(f"act-{len(world.log)}", asked)


def reason_of(outcome: Outcome) -> str:
    return outcome.reason.name if outcome.reason is not None else ""


def test_a_record_binds_and_binds_again_and_unbinds(world: World) -> None:
    for place, root, gone in ((ROOT, "lake", ()), (ROOT, "other", ()), ("", "", (ROOT,))):
        assert reason_of(bind(world, place, root, *gone)) == ""
        named = named_roots(world.machine.catalogue.namespaces[()])
        assert named == ({place: root} if place else {})
        again = replayed_from_parts(world.machine)
        assert named_roots(again.catalogue.namespaces[()]) == named


@pytest.mark.parametrize(
    ("place", "root", "reason"),
    [
        (ROOT, "La ke", "root_name_invalid"),
        (ROOT, "", "root_name_invalid"),
        (f"{ROOT}/", "lake", "place_not_a_prefix"),
        ("tables", "lake", "place_not_a_prefix"),
        ("/", "lake", "place_not_a_prefix"),
        ("/elsewhere", "lake", "place_without_tables"),
        (f"{ROOT}/t/data", "lake", "place_without_tables"),
        (ROOT, "unknown", "root_elsewhere"),
        (ROOT, "deep", "root_elsewhere"),
    ],
)
def test_what_cannot_be_bound_is_refused(world: World, place: str, root: str, reason: str) -> None:
    assert reason_of(bind(world, place, root)) == reason
    assert () not in world.machine.catalogue.namespaces


def test_places_in_one_another_and_a_root_of_two_places_are_refused(world: World) -> None:
    world.create("u")
    assert bind(world, f"{ROOT}/t", "deep").reason is None
    assert reason_of(bind(world, f"{ROOT}/u", "deep")) == "root_taken"
    assert reason_of(bind(world, ROOT, "lake")) == "places_overlap"
    assert reason_of(bind(world, ROOT, "lake", f"{ROOT}/t")) == "", "in one record they change"
    assert reason_of(bind(world, "", "", f"{ROOT}/t")) == "place_not_bound"


def test_a_place_of_another_partitions_tables_is_bound(world: World) -> None:
    roots = {**world.roots, "far": "/elsewhere"}
    world = World(replace(GENESIS, domains=(("a", 1),)), Rules(NAMED_ROOTS_SINCE))
    world.roots = roots
    assert bind(world, "/elsewhere", "far").reason is None, "its tables may be in partition 1"
    assert reason_of(bind(world, "/nowhere", "lake")) == "root_elsewhere"


def test_before_protocol_5_it_is_a_property_like_any_other(world: World) -> None:
    world = World(rules=Rules(NAMED_ROOTS_SINCE - 1))
    assert bind(world, "/elsewhere", "no name").reason is None


@pytest.mark.slow
def test_an_older_logs_places_follow_its_root(tmp_path: Path) -> None:
    at_first, moved = tmp_path / "first", tmp_path / "moved"
    old = f"{OLD}/protocol-4/tables"
    with golden("protocol-4", at_first) as opened:
        use_places(f"{old}={at_first / 'tables'}", tables=str(at_first / "tables"))
        check_all(opened.log, at_first)
        opened.start()
        client = opened.client
        with pytest.raises(InvalidRequest, match="protocol 4"):
            client.bind_place(old)
        put_in_force(client, lambda rules: replace(rules, protocol=NAMED_ROOTS_SINCE))
        with pytest.raises(TransactionRejected, match="started without"):
            client.bind_place(old, "lake")
        act = client.bind_place(old)
        assert client.places() == {old: ("tables", str(at_first / "tables"))}
        assert roots_of(opened.log) == {old: "tables"}
        status = client.runtime().request(0, "status", measures=True)
        assert "" not in status["measures"]["sizes"], "the log itself is no table"
        before = {name: len(ids_of(client.open(name))) for name in opened.expected}
        opened.stop()

        at_first.rename(moved)
        opened.root = moved
        use_places("")
        with pytest.raises(InvalidSettings, match="no setting says where"):
            find_roots(opened.log, None)
        # The root of a part that has no tables, or one that isn't mounted.
        use_places("", tables=str(tmp_path / "empty"))
        with pytest.raises(InvalidSettings, match="empty isn't that: .* --places tables=WHERE"):
            find_roots(opened.log, moved)
        use_places(f"tables={tmp_path / 'empty'}")
        find_roots(opened.log, moved)
        with pytest.raises(RootMoved, match="nothing is there"):
            check_all(opened.log, moved)
        assert not (tmp_path / "empty").exists(), "nothing is made at a place without its data"

        use_places("", tables=str(moved / "tables"))
        find_roots(opened.log, moved)
        check_all(opened.log, moved)
        _, newest = max((one.stat().st_mtime_ns, one) for one in moved.rglob("*.lance/data/*"))
        newest.rename(tmp_path / "kept")
        with pytest.raises(RootMoved, match=f"{newest.name} in .*an older or incomplete copy"):
            check_all(opened.log, moved)
        (tmp_path / "kept").rename(newest)
        assert named_here() == {old: "tables"}
        opened.start()
        assert {name: len(ids_of(client.open(name))) for name in opened.expected} == before
        client.append("shop$orders", rows(9000))
        client.create_table("fresh", rows().schema)
        for table in ("shop$orders", "fresh"):
            location = client.table(table).location
            assert location.startswith(str(moved))
            assert lance.dataset(location).version == client.table(table).version
        with pytest.raises(TransactionRejected, match=f"--places {old}=WHERE"):
            client.unbind_place(old)
        opened.stop()
        assert verify(opened.log, 0, VerifyOptions(moved, contents=True)).problems == []

        index_whole(opened.log, moved)
        [told] = explain(moved, act.transaction_id)
        assert f"It set {PLACE}{old} of the log itself to tables." in str(told["words"])

        # A deployment that binds the place itself needs no record any more.
        use_places(f"{old}={moved / 'tables'}")
        find_roots(opened.log, moved)
        opened.start()
        client.unbind_place(old)
        assert client.places() == {}
        assert roots_of(opened.log) == {}
        assert not OLD.joinpath("protocol-4").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "root", "words"),
    [
        ("relative/place", "tables", "is not a place as the log records it"),
        ("/elsewhere", "tables", "the log has no table below /elsewhere"),
        ("", "lake", "it was started without this root"),
        ("", "La ke", "is not a valid name of a root"),
    ],
)
def test_a_place_that_cannot_be_bound_is_a_wrong_argument_and_leaves_no_record(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
    root: str,
    words: str,
) -> None:
    with service(tmp_path / "home") as running:
        running.client.create_table("t", rows().schema)
        connect = lambda *_: CommitLog(lambda: MemoryLog(running.cluster))  # noqa: E731
        monkeypatch.setattr(places, "connect_client", connect)
        before = running.log.read_transactions(0).end_offset()
        asked = ["places", "bind", place or str(tmp_path / "home" / "tables"), root]
        assert cli.main(asked) == ExitCode.USAGE
        assert words in capsys.readouterr().err
        assert cli.main(["places", "unbind", "/elsewhere"]) == ExitCode.USAGE
        assert "/elsewhere is not bound to a root" in capsys.readouterr().err
        assert running.log.read_transactions(0).end_offset() == before


SHALLOW, DEEP, LAKE = "shop$shallow", "shop$deep", ("shop", "lake")


def clone(running: Service, to: str, *, is_shallow: bool) -> None:
    source = str(running.location("shop$orders"))
    made = lance.LanceOperation.Clone(is_shallow, None, 2, source, None)
    running.client.submit(to, made).result().raise_for_conflict()


def make_what_names_places(running: Service, at_first: Path) -> None:
    """Make a table, a shallow clone of it and an Iceberg table in a root that was just started."""
    client = running.client
    check_all(running.log, at_first)
    client.create_table("shop$orders", rows().schema)
    client.append("shop$orders", rows(1, 2))
    clone(running, SHALLOW, is_shallow=True)
    create = dump_json(create_updates(str(at_first / "tables" / "lake")))
    made = IcebergChange(LAKE, '[{"type":"assert-create"}]', create)
    client.submit(None, made).result().raise_for_conflict()


def moved_home(running: Service, at_first: Path, moved: Path) -> str:
    """End a service whose tables are bound to their root, and move that; return the old place."""
    old = str(at_first / "tables")
    running.client.bind_place(old)
    running.running[0].stop()
    at_first.rename(moved)
    use_places("", tables=str(moved / "tables"))
    find_roots(running.log, moved)
    return old


def test_tables_whose_files_name_the_old_place_work_by_the_steps_of_their_refusal(
    tmp_path: Path,
) -> None:
    at_first, moved = tmp_path / "first", tmp_path / "moved"
    use_places("", tables=str(at_first / "tables"))
    with service(at_first) as running:
        client = running.client
        make_what_names_places(running, at_first)
        old = moved_home(running, at_first, moved)
        with pytest.raises(RootMoved, match=r"shop\$lake, shop\$shallow") as refused:
            check_all(running.log, moved)

        # Word by word: link the old place to the new one, and say that it is where it was.
        assert f"ln -s {moved / 'tables'} {old}" in str(refused.value)
        assert f"--places {old}={old}" in str(refused.value)
        at_first.mkdir()
        Path(old).symlink_to(moved / "tables")
        use_places(f"{old}={old}", tables=str(moved / "tables"))
        find_roots(running.log, moved)
        genesis = running.log.genesis()
        check_own_place(genesis.tables_root, genesis.log_id, str(moved / "tables"), moved)
        check_all(running.log, moved)
        running.start(moved).await_leading()
        assert ids_of(client.open(SHALLOW)) == [1, 2]
        client.append(SHALLOW, rows(3))
        assert ids_of(lance.dataset(str(running.location(SHALLOW)))) == [1, 2, 3]
        update = [{"action": "set-properties", "updates": {"step": "2"}}]
        change = IcebergChange(LAKE, "[]", dump_json(update))
        [result] = client.submit(None, change).result().results
        assert '"step"' in Path(result.metadata_location).read_text()
        assert verify(running.log, 0, VerifyOptions(moved, contents=True)).problems == []


def test_tables_whose_files_name_the_old_place_go_before_a_move_and_do_not_come_back_after(
    tmp_path: Path,
) -> None:
    at_first, moved = tmp_path / "first", tmp_path / "moved"
    use_places("", tables=str(at_first / "tables"))
    with service(at_first) as running:
        client = running.client
        make_what_names_places(running, at_first)
        clone(running, DEEP, is_shallow=False)
        client.drop_table(SHALLOW)
        client.submit(None, DropTable(LAKE)).result().raise_for_conflict()
        moved_home(running, at_first, moved)
        check_all(running.log, moved)
        running.start(moved).await_leading()
        assert ids_of(client.open(DEEP)) == [1, 2]
        for table in (SHALLOW, LAKE):
            with pytest.raises(InvalidTransaction, match="name their former place"):
                client.undrop(table)
        assert verify(running.log, 0, VerifyOptions(moved, contents=True)).problems == []
