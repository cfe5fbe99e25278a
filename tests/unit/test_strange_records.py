"""Records that no writer of ours makes: each is decided, since what raises ends each leader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, replace

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from pyroaring import BitMap

from commitlog import words
from commitlog.codecs.avro import seal_outcome
from commitlog.core.decisions import Found
from commitlog.core.manifest.data_files import check_new_fragment
from commitlog.core.manifest.fragments import Fragments
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import DeltaRefused, ManifestState
from commitlog.core.manifest.roaring import portable
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFragment, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import (
    FIELD_IDS_SINCE,
    INCARNATION_OF_ONE_SINCE,
    INT64_MAX,
    LAST_VERSIONS_SINCE,
    NESTING_MAX,
    NESTING_SINCE,
    OLD_FRAGMENTS_KNOWN_SINCE,
    PROTOCOL_SUPPORTED,
    Rules,
)
from commitlog.model.operations import (
    COLUMNS,
    COLUMNS_AWAITED,
    ROW_ORDER,
    ROW_ORDER_KEPT,
    AffectedRows,
    AlterProperties,
    CreateTable,
    DeclareTable,
    DeregisterTable,
    DropNamespace,
    DropTable,
    LanceCommit,
    Operation,
    RegisterTable,
)
from commitlog.model.records import Observation, ProtocolVersion
from tests.core_world import (
    FORMAT,
    ROOT,
    World,
    append,
    column,
    commit,
    delete,
    new_fragment,
    replayed_from_parts,
)
from tests.properties.test_arbitrary_transactions import Unbuilt

Groups = Iterable[tuple[list[DataFragment], list[DataFragment]]]


@pytest.fixture
def world() -> World:
    made = World(rules=Rules(PROTOCOL_SUPPORTED))
    made.create()
    made.ask("first", append(1, "a.lance", "b.lance"))
    return made


def old(fragment_id: int, rows: int = 10) -> DataFragment:
    fragment = new_fragment(f"o{fragment_id}.lance", rows)
    fragment.id = fragment_id
    return fragment


def rewrite(read_version: int, groups: Groups) -> LanceCommit:
    """Return a Rewrite that vouches for the order of its rows."""
    transaction = LanceTransaction(read_version=read_version, uuid="r")
    transaction.transaction_properties[ROW_ORDER] = ROW_ORDER_KEPT
    for olds, news in groups:
        transaction.rewrite.groups.add(old_fragments=olds, new_fragments=news)
    return commit(transaction)


def test_a_rewrite_without_new_fragments_whose_other_group_lost_its_rows(world: World) -> None:
    world.ask("d", delete(world, 2, {}, whole=[1]))
    groups: Groups = [([old(0)], []), ([old(1)], [new_fragment("n.lance")])]
    outcome = world.ask("r", rewrite(2, groups))
    assert (outcome.status, outcome.code) == ("retryable", "CONFLICT")
    assert "no_row_left" in outcome.message


@pytest.mark.parametrize("protocol", [OLD_FRAGMENTS_KNOWN_SINCE - 1, OLD_FRAGMENTS_KNOWN_SINCE])
def test_a_rewrite_of_a_fragment_that_never_was(protocol: int) -> None:
    """It isn't one that was removed meanwhile; no outcome would hold the largest numbers."""
    world = World(rules=Rules(protocol))
    world.create()
    world.ask("first", append(1, "a.lance", "b.lance"))
    world.ask("d", delete(world, 2, {}, whole=[1]))
    before = protocol < OLD_FRAGMENTS_KNOWN_SINCE
    for number, rows, is_taken in [(7, 3, False), (2**64 - 1, 20, False), (7, 20, before)]:
        groups: Groups = [([old(0), old(number)], [new_fragment("n.lance", rows)])]
        outcome = world.ask(f"r{number}{rows}", rewrite(2, groups))
        seal_outcome(outcome, previous_hash=bytes(32), epoch=0, node="n")
        is_conflict = before and rows == 3
        codes = ("retryable", "CONFLICT") if is_conflict else ("rejected", "UNKNOWN_FRAGMENT")
        assert (outcome.status, outcome.code) == (("committed", "") if is_taken else codes)
    assert world.replayed().digest() == world.machine.digest()
    if not before:
        groups = [([old(0), old(1)], [new_fragment("n.lance", 20)])]
        assert world.ask("carried", rewrite(2, groups)).version == 4


def test_a_merge_that_lacks_fragments_behind_a_version_of_its_own_record(world: World) -> None:
    config = LanceTransaction(read_version=2, uuid="c")
    config.update_config.config_updates.update_entries.add(key="a", value="1")
    merge = LanceTransaction(read_version=2, uuid="m")
    merge.merge.schema.extend(world.state().header.message.fields)
    merge.transaction_properties[COLUMNS] = COLUMNS_AWAITED
    outcome = world.ask("both", commit(config), commit(merge))
    assert (outcome.status, outcome.code) == ("retryable", "CONFLICT")


@pytest.mark.parametrize("rows", [2**63, 2**64 - 1])
def test_a_rewrite_of_more_rows_than_there_are_numbers(world: World, rows: int) -> None:
    world.ask("d", delete(world, 2, {1: [1]}))
    new = [new_fragment("m.lance", rows), new_fragment("o.lance", rows)]
    groups: Groups = [([old(0)], new), ([old(1)], [new_fragment("n.lance")])]
    world.ask("r", rewrite(2, groups))


def test_a_rewrite_of_a_fragment_with_more_deleted_rows_than_rows() -> None:
    world = World(rules=Rules(PROTOCOL_SUPPORTED))
    world.create()
    world.ask("first", append(1, "a.lance", "b.lance", rows=20))
    world.ask("d", delete(world, 2, {0: range(15)}))
    lying = DataFragment.FromString(world.state().fragments[0])
    lying.physical_rows = 5
    world.ask("e", delete(world, 3, {}, whole=[1]))
    groups: Groups = [([lying, old(1, 20)], [new_fragment("m.lance", 10)])]
    assert world.ask("r", rewrite(3, groups)).status == "retryable"


def test_an_overlay_of_a_fragment_out_of_which_an_update_moved_all_rows(world: World) -> None:
    """The Update names it as changed, and it is gone."""
    moving = LanceTransaction(read_version=2, uuid="u")
    image = DataFragment.FromString(world.state().fragments[0])
    image.deletion_file.CopyFrom(world.staged_vector(0, range(10), 5))
    moving.update.updated_fragments.append(image)
    moving.update.new_fragments.append(new_fragment("m.lance"))
    rows = AffectedRows(0, portable(BitMap(range(10))))
    assert world.ask("u", commit(moving, affected_rows=(rows,))).status == "committed"
    overlaying = LanceTransaction(read_version=2, uuid="o")
    overlay = overlaying.data_overlay.groups.add(fragment_id=0).overlays.add()
    overlay.data_file.CopyFrom(new_fragment("x.lance").files[0])
    overlay.shared_offset_bitmap = portable(BitMap([1]))
    outcome = world.ask("o", commit(overlaying))
    assert (outcome.status, outcome.code) == ("retryable", "CONFLICT")
    assert "overlaid_rows" in outcome.message


@pytest.mark.parametrize("protocol", [FIELD_IDS_SINCE - 1, FIELD_IDS_SINCE])
def test_files_of_a_column_whose_id_another_one_has_by_now(protocol: int) -> None:
    """Lance gives ids again, and would read the one as the other."""
    world = World(rules=Rules(protocol))
    world.create(columns=2)
    fields = list(world.state().header.message.fields)
    appends = [append(1, f"{i}.lance", fields=(0, 1)) for i in range(2)]
    drop = LanceTransaction(read_version=1, uuid="p")
    drop.project.schema.append(fields[0])
    drop.project.preserves_nullability = True
    assert world.ask("drop", commit(drop)).status == "committed"
    assert world.ask("ignored", appends[0]).status == "committed"
    assert world.ask("d", delete(world, 3, {}, whole=[0])).status == "committed"
    again = LanceTransaction(read_version=4, uuid="m")
    again.merge.schema.extend([fields[0], Field.FromString(column("other", 1))])
    again.merge.preserves_nullability = True
    assert world.ask("again", commit(again)).status == "committed"
    outcome = world.ask("late", appends[1])
    assert (outcome.status == "committed") == (protocol < FIELD_IDS_SINCE)
    if outcome.status != "committed":
        assert outcome.conflict is not None
        assert (outcome.conflict.version, outcome.conflict.keys) == (2, ("1",))
        assert outcome.conflict.rule == "append_project_field_dropped"
    overwrite = LanceTransaction(read_version=1, uuid="o")
    overwrite.overwrite.schema.extend(fields)
    overwrite.overwrite.fragments.append(new_fragment("o.lance", fields=(0, 1)))
    assert world.ask("over", commit(overwrite)).status == "committed", "its columns are its own"
    assert world.replayed().digest() == world.machine.digest()


def of_one_incarnation() -> list[CreateTable]:
    fields = (column("c0", 0),)
    return [
        CreateTable((name,), "i", f"{ROOT}/{name}", fields, data_storage_version=FORMAT)
        for name in "ab"
    ]


def test_two_tables_of_one_incarnation_in_a_record() -> None:
    """Clients choose incarnations, and each table has its own version of it."""
    world = World(rules=Rules(INCARNATION_OF_ONE_SINCE - 1))
    assert world.ask("make", *of_one_incarnation()).status == "committed"
    both = [append(1, f"{name}.lance", table=(name,)) for name in "ab"]
    assert world.ask("both", *both).status == "committed"
    assert world.replayed().digest() == world.machine.digest()


def test_no_two_tables_have_one_incarnation(world: World) -> None:
    """A checkpoint would hold one of them."""
    first, second = of_one_incarnation()
    outcome = world.ask("make", first, second)
    assert (outcome.status, outcome.code) == ("rejected", "INVALID_OPERATION")
    assert world.ask("one", first).status == "committed"
    assert "is that of a; give it one" in world.ask("two", second).message
    assert world.ask("drop", DropTable(("a",))).status == "committed"
    assert world.ask("again", second).code == "INVALID_OPERATION"
    state, path = world.state().copy(), "_versions/2.manifest"
    world.manifests[f"{ROOT}/a", path] = Found(Observation(path, 10, bytes(32)), state=state)
    back = RegisterTable(("b",), "i", f"{ROOT}/a", 2, path)
    assert world.ask("back", back).status == "committed"
    assert replayed_from_parts(world.machine).digest() == world.machine.digest()


@pytest.mark.parametrize(
    "gone",
    [DropTable(("n", "t")), DeregisterTable(("n", "t")), DropNamespace(("n",), cascade=True)],
)
def test_a_table_does_not_come_back_from_an_older_version(gone: Operation) -> None:
    """It would give the same numbers to other versions."""
    world = World(rules=Rules(PROTOCOL_SUPPORTED))
    name, other = ("n", "t"), ("t",)
    world.create("n$t")
    backs = {1: back_at(world, "n$t", 1)}
    for version in (2, 3, 4):
        world.ask(f"v{version}", append(version - 1, f"{version}.lance", table=name))
        backs[version] = back_at(world, "n$t", version)
    both = world.ask("both", gone, backs[3])
    assert (both.status, both.code) == ("rejected", "INVALID_OPERATION")
    assert world.ask("at once", gone, backs[4]).status == "committed"
    assert world.ask("gone", gone).status == "committed"
    for machine in (world.replayed(), replayed_from_parts(world.machine)):
        assert machine.digest() == world.machine.digest()
        assert machine.locations.of("i-n$t") == world.machine.locations.of("i-n$t")
    for version in (1, 3):
        refused = world.ask(f"late {version}", replace(backs[version], table=other))
        assert (refused.status, refused.code) == ("rejected", "INVALID_OPERATION")
        said = f"t cannot be registered at version {version}: the log committed its versions up to"
        assert said in refused.message
        assert "Register version 4 or a newer one" in refused.message
    assert world.ask("back", replace(backs[4], table=other)).version == 4
    assert world.ask("next", append(4, "5.lance", table=other)).version == 5
    world.ask("again gone", DropTable(other))
    assert world.ask("old", backs[4]).code == "INVALID_OPERATION"
    newer = back_at(world, "n$t", 7, like=backs[4])
    assert world.ask("newer", newer).version == 7, "plain Lance wrote to it meanwhile"
    assert world.replayed().digest() == world.machine.digest()


@pytest.mark.parametrize("before", [LAST_VERSIONS_SINCE - 1, LAST_VERSIONS_SINCE])
def test_older_logs_take_a_table_back_from_any_version(before: int) -> None:
    """A table that ended under an older protocol left no version behind."""
    world = World(rules=Rules(before))
    world.create()
    back = back_at(world, "t", 1)
    world.ask("v2", append(1, "2.lance"))
    world.ask("gone", DropTable(("t",)))
    rules = replace(world.machine.rules, protocol=LAST_VERSIONS_SINCE)
    world.run(ProtocolVersion("up", *astuple(rules)[:4]))
    assert (world.ask("back", back).status == "committed") == (before < LAST_VERSIONS_SINCE)
    assert world.replayed().digest() == world.machine.digest()
    assert replayed_from_parts(world.machine).digest() == world.machine.digest()


def back_at(
    world: World, name: str, version: int, like: RegisterTable | None = None
) -> RegisterTable:
    """Return what registers a table as it stands, or as another one is, as of a version."""
    place, path = f"{ROOT}/{name}", f"_versions/{version}.manifest"
    if like is not None:
        state = world.manifests[place, like.manifest_path].state
    else:
        state = world.state(tuple(name.split("$")))
    assert state is not None
    state = state.copy()
    state.version = version
    world.manifests[place, path] = Found(Observation(path, 10, bytes(32)), state=state)
    return RegisterTable(tuple(name.split("$")), f"i-{name}", place, version, path)


@pytest.mark.timeout(60)
def test_a_manifest_with_a_column_that_is_its_own_parent(world: World) -> None:
    manifest = Manifest.FromString(world.state().header.encoded)
    manifest.fields.add(name="x", id=5, parent_id=5, logical_type="int64")
    state = world.state().copy()
    state.version, state.header = 1, ManifestHeader.of(manifest)
    path = "_versions/1.manifest"
    found = Found(Observation(path, 10, bytes(32)), state=state)
    world.manifests[f"{ROOT}/r", path] = found
    outcome = world.ask("r", RegisterTable(("r",), "ir", f"{ROOT}/r", 1, path))
    assert (outcome.status, outcome.code) == ("rejected", "WRONG_SCHEMA")


@pytest.mark.parametrize(
    ("version", "nanos"),
    [(0, 0), (0, 1), (1, -1), (1, 2**64), (1, Timestamp(seconds=-(2**63), nanos=-1))],
)
def test_a_manifest_of_no_version_or_of_a_time_that_no_record_holds(
    world: World, version: int, nanos: int | Timestamp
) -> None:
    """Lance opens them, but a leader can't write them down: each that tried would end."""
    state, path = world.state().copy(), f"_versions/{version}.manifest"
    if isinstance(nanos, Timestamp):
        nanos = ManifestState.of(Manifest(timestamp=nanos), Fragments(), None).timestamp_nanos
    state.version, state.timestamp_nanos = version, nanos
    world.manifests[f"{ROOT}/r", path] = Found(Observation(path, 10, bytes(32)), state=state)
    outcome = world.ask("r", RegisterTable(("r",), "ir", f"{ROOT}/r", version, path))
    assert (outcome.status, outcome.code) == ("rejected", "INVALID_OPERATION")
    assert f"version {version}" in words.worded(outcome).message
    seal_outcome(outcome, previous_hash=bytes(32), epoch=0, node="n")
    assert world.replayed().digest() == world.machine.digest()


@pytest.mark.parametrize("is_plain", [True, False])
def test_no_version_follows_the_last_one_of_64_bits(world: World, *, is_plain: bool) -> None:
    back = back_at(world, "t", INT64_MAX - 1)
    back = replace(back, table=("r",), incarnation="ir", location=f"{ROOT}/r")
    world.manifests[f"{ROOT}/r", back.manifest_path] = world.manifests[
        f"{ROOT}/t", back.manifest_path
    ]
    assert world.ask("r", back).status == "committed"
    last = append(INT64_MAX - 1, "last.lance", table=("r",))
    assert world.ask("last", last).version == INT64_MAX
    more = append(INT64_MAX, "more.lance", table=("r",))
    outcome = world.ask("more", *([more] if is_plain else [more, append(2, "x.lance")]))
    assert (outcome.status, outcome.code) == ("rejected", "INVALID_OPERATION")
    assert "is at version 9223372036854775807" in words.worded(outcome).message
    assert world.replayed().digest() == world.machine.digest()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["update", "rewrite", "bases"])
def test_many_fragments_or_bases_in_a_record_take_no_hours(world: World, kind: str) -> None:
    """A record may name a million; a leader that compared each with each would be away for days."""
    count, message = 100_000, LanceTransaction(uuid="u", read_version=2)
    if kind == "update":
        message.update.removed_fragment_ids.extend([*range(count), 1, 0])
    elif kind == "rewrite":
        message.rewrite.groups.add().old_fragments.extend(
            old(i % (count - 2)) for i in range(count)
        )
    else:
        for number in range(count // 4):
            message.update_bases.new_bases.add(name=f"b{number}", path=f"{ROOT}/t/{number}")
        message.update_bases.new_bases[0].id = 2
    outcome = world.ask(kind, commit(message))
    if kind == "bases":
        bases = world.state().header.message.base_paths
        numbers = {f"b{number}": number + 1 for number in range(count // 4)}
        assert {base.name: base.id for base in bases} == {**numbers, "b0": 2, "b1": 1}
    else:
        assert (outcome.status, outcome.code) == ("rejected", "DUPLICATE_FRAGMENT")
        assert "[0, 1]" in words.worded(outcome).message


@pytest.mark.timeout(20)
def test_a_fragment_of_many_files_takes_no_minutes(world: World) -> None:
    fragment = new_fragment("a.lance")
    fragment.files.extend([fragment.files[0]] * 100_000)
    with pytest.raises(DeltaRefused):
        check_new_fragment(world.state().header, fragment, is_current=True)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_schema_of_thousands_of_levels_is_no_work() -> None:
    """Nobody reads it, as protocol 6 says: Lance's native code ends its process at 10,000."""
    count = 20_000
    world = World(rules=Rules(NESTING_SINCE - 1))
    assert world.ask("deep", deep_table(count)).status == "committed"
    appended = append(1, "d.lance", fields=range(count), table=("d",))
    assert world.ask("rows", appended).status == "committed"


@pytest.mark.parametrize(
    ("lists", "innermost"), [(0, "int64"), (3, "fixed_size_list:" * 3 + "int8" + ":2" * 3)]
)
def test_a_schema_is_as_deep_as_lance_reads(lists: int, innermost: str) -> None:
    world = World(rules=Rules(NESTING_SINCE))
    sound = deep_table(NESTING_MAX - lists, innermost)
    for count, name in [(0, "plain"), (1, "deeper")]:
        made = deep_table(NESTING_MAX - lists + count, innermost)
        outcome = world.ask(name, made)
        assert (outcome.status == "committed") == (made == sound), outcome.message
    assert (outcome.code, outcome.reason is not None) == ("WRONG_SCHEMA", True)
    replaced = LanceTransaction(read_version=1, uuid="o")
    replaced.overwrite.schema.extend(map(Field.FromString, made.fields))
    outcome = world.ask("o", commit(replaced, table=("d",)))
    assert (outcome.status, outcome.code) == ("rejected", "WRONG_SCHEMA")
    state = world.state(("d",)).copy()
    manifest = Manifest.FromString(state.header.encoded)
    del manifest.fields[:]
    manifest.fields.extend(map(Field.FromString, made.fields))
    state.header, path = ManifestHeader.of(manifest), "_versions/1.manifest"
    found = Found(Observation(path, 10, bytes(32)), state=state)
    world.manifests[f"{ROOT}/r", path] = found
    outcome = world.ask("r", RegisterTable(("r",), "ir", f"{ROOT}/r", 1, path))
    assert (outcome.status, outcome.code) == ("rejected", "WRONG_SCHEMA")


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_list_of_lists_of_lists_is_no_work(world: World) -> None:
    count = 300_000
    kind = "fixed_size_list:" * count + "int8" + ":1" * count
    outcome = world.ask("deep", deep_table(1, kind))
    assert (outcome.status, outcome.code) == ("rejected", "WRONG_SCHEMA")


def deep_table(count: int, innermost: str = "int64") -> CreateTable:
    """Return a table of one column of so many levels, which is its key."""
    kinds = ["struct"] * (count - 1) + [innermost]
    fields = tuple(
        Field(name="a", id=i, parent_id=i - 1, logical_type=kind).SerializeToString()
        for i, kind in enumerate(kinds)
    )
    key = (".".join("a" * count),)
    return CreateTable(
        ("d",), "i", f"{ROOT}/d", fields, primary_key=key, data_storage_version=FORMAT
    )


@pytest.mark.parametrize("protocol", [3, PROTOCOL_SUPPORTED])
def test_a_mem_wal_whose_details_cannot_be_read(protocol: int) -> None:
    world = Unbuilt(rules=Rules(protocol))
    world.create()
    world.ask("first", append(1, "a.lance"))
    made = LanceTransaction(read_version=1, uuid="i")
    index = made.create_index.new_indices.add(name="__lance_mem_wal")
    index.uuid.uuid, index.index_details.value = bytes(16), b"\xff"
    index.index_details.type_url = "/lance.table.MemWalIndexDetails"
    assert world.ask("i", commit(made)).status == "rejected"


@pytest.mark.parametrize("protocol", range(1, PROTOCOL_SUPPORTED + 1))
def test_the_end_of_row_ids_is_said_under_each_protocol(protocol: int) -> None:
    world = World(rules=Rules(protocol))
    world.create(stable_row_ids=True)
    world.ask("first", append(1, "a.lance"))
    outcome = world.ask("x", append(2, "b.lance", rows=2**63 - 1), append(2, "c.lance"))
    assert outcome.status == "rejected"
    assert "no row ids are left" in words.worded(outcome).message


@pytest.mark.parametrize(
    "then", [DropTable(("t",)), AlterProperties(("t",), upserts=(("a", "b"),))]
)
def test_what_a_record_does_to_a_table_that_it_wrote_to(world: World, then: Operation) -> None:
    """A leader and a replay derive the same changes of it, as each `ask` asserts."""
    assert world.ask("both", append(2, "c.lance"), then).status == "committed"
    assert world.changes[-1].version == 3
    assert world.replayed().digest() == world.machine.digest()


def overwrite(name: str, incarnation: str, read_version: int) -> LanceCommit:
    """Return what only pylance builds."""
    message = LanceTransaction(read_version=read_version, uuid="o")
    message.overwrite.fragments.append(new_fragment("o.lance"))
    message.overwrite.schema.append(Field.FromString(column("c0", 0)))
    return commit(message, table=(name,), incarnation=incarnation)


def test_pylance_builds_nothing_on_a_table_that_the_record_makes(world: World) -> None:
    """No version is written yet, and the leader would wait for one for ever."""
    fields = (column("c0", 0),)
    making = CreateTable(("n",), "i-n", f"{ROOT}/n", fields, data_storage_version=FORMAT)
    outcome = world.ask("x", making, overwrite("n", "i-n", 1))
    assert (outcome.status, outcome.code) == ("rejected", "SPLIT_TRANSACTION"), outcome.message
    assert world.ask("y", making).status == "committed"


def test_pylance_builds_nothing_on_a_first_version_of_a_declared_table(world: World) -> None:
    declared = DeclareTable(("n",), "i-n", f"{ROOT}/n")
    assert world.ask("d", declared).status == "committed"
    fields = (column("c0", 0),)
    making = CreateTable(("n",), "i-n", f"{ROOT}/n", fields, data_storage_version=FORMAT)
    outcome = world.ask("x", making, overwrite("n", "i-n", 1))
    assert (outcome.status, outcome.code) == ("rejected", "SPLIT_TRANSACTION"), outcome.message
    world.ask("y", making)
    assert world.ask("z", overwrite("n", "i-n", 1)).version == 2
    world.ask("plain", append(2, "p.lance", table=("n",)))
    newer, same = (back_at(world, "n", version) for version in (5, 3))
    outcome = world.ask("back", DropTable(("n",)), newer, overwrite("n", "i-n", 5))
    assert (outcome.status, outcome.code) == ("rejected", "SPLIT_TRANSACTION"), outcome.message
    assert world.ask("same", DropTable(("n",)), same, append(3, "q.lance", table=("n",))).version
