"""What the machine refuses and why, and what goes together in one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from commitlog.core.decisions import BuildWanted, Found, Need
from commitlog.core.partition.machine import Machine
from commitlog.errors import UnsupportedFormat
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import (
    BRANCHES_SINCE,
    PROTOCOL_SUPPORTED,
    REWRITES_BUILT_HERE_SINCE,
    UPDATES_BUILT_HERE_SINCE,
    Rules,
)
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    CreateTable,
    DeclareTable,
    DeleteTableVersions,
    DeregisterTable,
    DropNamespace,
    DropTable,
    LanceCommit,
    RegisterTable,
    RenameTable,
)
from commitlog.model.records import (
    Genesis,
    KeyAbsent,
    Malformed,
    PredicateUnchanged,
    ProtocolVersion,
    TableAbsent,
    TableVersionIs,
    Transaction,
)
from tests.core_world import (
    DAY_MS,
    FORMAT,
    ROOT,
    World,
    append,
    column,
    commit,
    delete,
    key_hashes,
    new_fragment,
    replayed_from_parts,
)


@pytest.fixture
def world() -> World:
    """Return a log with table t at version 2: one fragment of 10 rows."""
    made = World()
    made.create()
    made.ask("first", append(1, "first.lance"))
    return made


def creating(name: str, location: str, incarnation: str = "") -> CreateTable:
    """Create an empty table."""
    fields = (column("c0", 0),)
    incarnation = incarnation or f"i-{name}"
    return CreateTable((name,), incarnation, location, fields, data_storage_version=FORMAT)


@pytest.mark.parametrize(
    ("location", "code"),
    [
        (f"{ROOT}/t", "LOCATION_TAKEN"),
        (f"{ROOT}/t/", "LOCATION_TAKEN"),
        (f"file://{ROOT}//t/./", "LOCATION_TAKEN"),
        (f"{ROOT}/t/inside", "LOCATION_TAKEN"),
        (f"{ROOT}/tt", ""),
        ("/elsewhere/x", ""),
        ("s3://bucket/tables/t", ""),
        (ROOT, "LOCATION_NOT_ALLOWED"),
        ("/", "LOCATION_NOT_ALLOWED"),
        (f"{ROOT}/_commitlog/x", "LOCATION_NOT_ALLOWED"),
        (f"{ROOT}/../etc", "LOCATION_NOT_ALLOWED"),
        ("relative", "LOCATION_NOT_ALLOWED"),
    ],
)
def test_one_location_one_table(world: World, location: str, code: str) -> None:
    outcome = world.ask("c", creating("other", location))
    assert (outcome.code, outcome.status) == (code, "rejected" if code else "committed")
    if code == "LOCATION_TAKEN":
        assert "table t " in outcome.message


def test_a_location_that_contains_another_tables_is_taken(world: World) -> None:
    assert world.ask("deep", creating("deep", "/a/b/c")).status == "committed"
    assert world.ask("above", creating("above", "/a/b")).code == "LOCATION_TAKEN"
    assert world.ask("beside", creating("beside", "/a/b/cc")).status == "committed"


def test_a_dropped_tables_location_stays_its_own(world: World) -> None:
    world.ask("drop", DropTable(("t",)))
    assert world.ask("again", creating("t", f"{ROOT}/t", "new")).code == "LOCATION_TAKEN"
    assert world.ask("else", creating("t", f"{ROOT}/t2", "new")).status == "committed"
    outcome = world.ask("late", replace(append(1, "x.lance"), incarnation="i-t"))
    assert outcome.code == "TABLE_REPLACED"


def test_two_tables_of_one_record_may_not_share_a_location() -> None:
    world = World()
    outcome = world.ask("both", creating("a", "/x/a"), creating("b", "/x/a/b"))
    assert outcome.code == "LOCATION_TAKEN"
    assert not world.machine.tables


def test_a_record_of_two_partitions_is_refused_naming_both() -> None:
    world = World(Genesis("log", "id", "cluster", 0, (("ny", 1),), ROOT))
    world.create("t")
    outcome = world.ask("x", append(1, "a.lance"), append(1, "a.lance", table=("ny", "flights")))
    assert outcome.code == "DOMAIN_MISMATCH"
    assert "t is" in outcome.message
    assert "ny$flights" in outcome.message
    outcome = world.ask("y", append(1, "a.lance", table=("ny", "flights")))
    assert outcome.code == "DOMAIN_MISMATCH"


def test_many_tables_commit_together_or_not_at_all(world: World) -> None:
    world.create("u")
    both = world.ask("both", append(2, "a.lance"), append(1, "a.lance", table=("u",)))
    assert both.status == "committed"
    assert both.versions() == {"t": 3, "u": 2}
    before = world.machine.digest()
    bad = world.submitted(
        Transaction("bad", (append(2, "b.lance"), append(9, "b.lance", table=("u",))))
    )
    decision = world.decide(bad)
    assert decision.outcome.code == "FUTURE_READ_VERSION"
    assert not decision.changes
    assert world.machine.digest() == before


def test_a_table_may_be_made_and_filled_in_one_record() -> None:
    world = World()
    outcome = world.ask(
        "both",
        creating("n", f"{ROOT}/n"),
        append(0, "a.lance", table=("n",)),
        append(1, "b.lance", table=("n",)),
    )
    assert [r.version for r in outcome.results] == [1, 2, 3]
    assert [r.first_fragment_id for r in outcome.results] == [-1, 0, 1]
    assert world.replayed().digest() == world.machine.digest()


def test_operations_of_one_record_that_conflict_have_to_be_split(world: World) -> None:
    outcome = world.ask("x", delete(world, 2, {0: [1]}), delete(world, 2, {0: [2]}))
    assert outcome.code == "SPLIT_TRANSACTION"
    overwrite = LanceTransaction(read_version=2, uuid="o")
    overwrite.overwrite.fragments.append(new_fragment("o.lance"))
    outcome = world.ask("y", append(2, "a.lance"), commit(overwrite))
    assert outcome.code == "SPLIT_TRANSACTION"
    outcome = world.ask("z", append(2, "a.lance"), delete(world, 2, {0: [2]}))
    assert outcome.status == "committed"


def test_expectations(world: World) -> None:
    table = ("t",)
    ok = (TableVersionIs(table, 2), TableAbsent(("u",)))
    assert world.ask("a", append(2, "a.lance"), expects=ok).status == "committed"
    late = world.ask("b", append(2, "b.lance"), expects=(TableVersionIs(table, 2),))
    assert (late.status, late.code) == ("retryable", "EXPECTATION_FAILED")
    there = world.ask("c", append(2, "b.lance"), expects=(TableAbsent(table),))
    assert (there.status, there.code) == ("rejected", "EXPECTATION_FAILED")
    rows = PredicateUnchanged(table, "x > 1", b"", 2)
    assert world.ask("d", append(2, "b.lance"), expects=(rows,)).code == "EXPECTATION_FAILED"
    rows = replace(rows, version=3)
    assert world.ask("e", append(2, "b.lance"), expects=(rows,)).status == "committed"


def test_a_key_is_absent_as_long_as_nobody_can_have_inserted_it(world: World) -> None:
    hashes = key_hashes([b"k"])
    assert hashes is not None
    absent = KeyAbsent(("t",), hashes.hashes, 2)
    world.ask("other", append(2, "a.lance", keys=[b"other"]))
    assert world.ask("a", append(2, "b.lance", keys=[b"k"]), expects=(absent,)).version == 4
    assert world.ask("b", append(4, "c.lance"), expects=(absent,)).code == "EXPECTATION_FAILED"
    absent = replace(absent, since_version=4)
    assert world.ask("c", append(4, "d.lance"), expects=(absent,)).status == "committed"
    assert world.ask("d", append(4, "e.lance"), expects=(absent,)).code == "EXPECTATION_FAILED"


def test_a_clone_is_refused_where_a_table_is(world: World) -> None:
    transaction = LanceTransaction(read_version=2, uuid="u")
    transaction.clone.ref_version = 1
    outcome = world.ask("x", commit(transaction))
    assert (outcome.status, outcome.code) == ("rejected", "UNSUPPORTED_OPERATION")
    assert "Clone makes a new table" in outcome.message


def test_an_operation_that_nobody_knows_is_refused_by_its_number(world: World) -> None:
    transaction = LanceTransaction.FromString(bytes([8, 2, 0xA2, 7, 0]))
    outcome = world.ask("x", commit(transaction))
    assert (outcome.status, outcome.code) == ("rejected", "UNSUPPORTED_OPERATION")
    assert "operation 116 of t is no operation of Lance 14.0.2" in outcome.message


def wrong_for_the_head() -> dict[str, tuple[LanceTransaction, str]]:
    """Return operations that name what the table doesn't have, and the code of each refusal."""
    made = {
        name: LanceTransaction(read_version=2, uuid="u")
        for name in ("gone", "twice", "taken", "unreserved", "index", "replaced", "overlaid")
    }
    made["gone"].rewrite.groups.add().old_fragments.add(id=9)
    for _ in range(2):
        made["twice"].rewrite.groups.add().old_fragments.add(id=0)
    made["taken"].rewrite.groups.add(new_fragments=[new_fragment("a")]).new_fragments[0].id = 1
    made["unreserved"].rewrite.new_fragments.add(id=9)
    made["taken"].rewrite.groups[0].new_fragments[0].id = 1
    made["index"].create_index.new_indices.add(name="i", fields=[7])
    made["replaced"].data_replacement.replacements.add(fragment_id=9)
    made["overlaid"].data_overlay.groups.add(fragment_id=0).overlays.add().data_file.fields.append(
        7
    )
    made["old"] = LanceTransaction(read_version=2, uuid="u")
    made["old"].restore.version = 3
    codes = dict.fromkeys(made, "DUPLICATE_FRAGMENT")
    codes |= {"gone": "UNKNOWN_FRAGMENT", "replaced": "UNKNOWN_FRAGMENT"}
    codes |= {"index": "WRONG_SCHEMA", "overlaid": "WRONG_SCHEMA", "old": "INVALID_OPERATION"}
    return {name: (transaction, codes[name]) for name, transaction in made.items()}


@pytest.mark.parametrize("name", wrong_for_the_head())
def test_what_an_operation_names_has_to_be_there(world: World, name: str) -> None:
    transaction, code = wrong_for_the_head()[name]
    outcome = world.ask("x", commit(transaction))
    assert (outcome.status, outcome.code) == ("rejected", code), outcome.message


def test_unsupported_catalogue_operations_are_named(world: World) -> None:
    outcome = world.ask("d", DeleteTableVersions(("t",), ((1, 1),), "dev"))
    assert outcome.code == "UNSUPPORTED_OPERATION"
    assert "branch 'dev' of t" in outcome.message


@pytest.mark.parametrize("branch", ["in the message", "in the record"])
def test_before_protocol_2_a_branch_is_refused_as_it_was_first(world: World, branch: str) -> None:
    """In the same words, and before anything else: what old logs hold is decided again."""
    assert world.machine.rules.protocol == 1
    world.ask("c", DeclareTable(("c",), "incarnation-c", "/tables/c"))
    clone = LanceTransaction(read_version=9, uuid="u")
    clone.clone.is_shallow, clone.clone.ref_version, clone.clone.ref_path = True, 9, "/nowhere"
    if branch == "in the message":
        clone.clone.branch_name = "dev"
    operation = commit(clone, table=("c",), incarnation="incarnation-c")
    outcome = world.ask("x", replace(operation, branch="dev" * (branch == "in the record")))
    assert (outcome.status, outcome.code) == ("rejected", "UNSUPPORTED_OPERATION")
    assert outcome.message == (
        "c would be a branch of another table; clone into a table of its own"
    )


def test_a_branch_lets_no_other_table_into_the_folder_of_its_home() -> None:
    """Both lie where branches do, and only one is made a branch by its record."""
    world = World(rules=Rules(BRANCHES_SINCE))
    for name in ("t", "u"):
        world.create(name)
    clone = LanceTransaction(read_version=1, uuid="u")
    clone.clone.is_shallow, clone.clone.ref_version, clone.clone.ref_path = True, 1, "/tables/u"
    clone.clone.branch_name = "dev"
    outcome = world.ask(
        "x",
        DeclareTable(("c",), "incarnation-c", "/tables/t/tree/dev"),
        DeclareTable(("d",), "incarnation-d", "/tables/u/tree/dev"),
        commit(clone, table=("d",), incarnation="incarnation-d"),
    )
    assert (outcome.status, outcome.code) == ("rejected", "LOCATION_TAKEN"), outcome.message
    assert "operations[0]" in outcome.message


def bad_commits(world: World) -> dict[str, tuple[LanceCommit, str]]:
    """Return requests that are wrong, and the code of each refusal."""
    good = append(2, "x.lance")
    twice = LanceTransaction(read_version=2, uuid="u")
    twice.append.fragments.extend([new_fragment("a"), new_fragment("b")])
    for fragment in twice.append.fragments:
        fragment.id = 7
    huge = LanceTransaction(read_version=2, uuid="u")
    huge.delete.deleted_fragment_ids.append(2**40)
    stale = delete(world, 2, {0: [1]})
    unknown = LanceTransaction.FromString(stale.message)
    unknown.delete.updated_fragments[0].id = 99
    legacy = LanceTransaction.FromString(good.message)
    legacy.append.fragments[0].files[0].file_major_version = 0
    escaping = LanceTransaction.FromString(good.message)
    escaping.append.fragments[0].files[0].path = "../../x.lance"
    bad_rows = replace(stale, affected_rows=(replace(stale.affected_rows[0], rows=b"?"),))
    return {
        "broken": (replace(good, message=b"\xff\xff\xff"), "MALFORMED_RECORD"),
        "future": (append(3, "x.lance"), "FUTURE_READ_VERSION"),
        "other read version": (replace(good, read_version=1), "INVALID_OPERATION"),
        "negative": (replace(good, read_version=-1), "INVALID_OPERATION"),
        "other operation": (replace(good, operation="Delete"), "INVALID_OPERATION"),
        "branch": (replace(good, branch="b"), "UNSUPPORTED_OPERATION"),
        "no read version": (commit(LanceTransaction(uuid="u", delete={})), "INVALID_OPERATION"),
        "duplicate ids": (commit(twice), "DUPLICATE_FRAGMENT"),
        "huge id": (commit(huge), "UNKNOWN_FRAGMENT"),
        "unknown fragment": (commit(unknown), "UNKNOWN_FRAGMENT"),
        "old format": (commit(legacy), "WRONG_SCHEMA"),
        "unknown field": (append(2, "x.lance", fields=(0, 5)), "WRONG_SCHEMA"),
        "escaping path": (commit(escaping), "INVALID_OPERATION"),
        "broken rows": (bad_rows, "MALFORMED_RECORD"),
    }


BAD_COMMITS = (
    "broken",
    "future",
    "other read version",
    "negative",
    "other operation",
    "branch",
    "no read version",
    "duplicate ids",
    "huge id",
    "unknown fragment",
    "old format",
    "unknown field",
    "escaping path",
    "broken rows",
)


@pytest.mark.parametrize("name", BAD_COMMITS)
def test_a_wrong_request_is_refused_and_changes_nothing(world: World, name: str) -> None:
    operation, code = bad_commits(world)[name]
    tables = {k: v.encode() for k, v in world.machine.to_parts().items() if k.startswith("table")}
    outcome = world.ask("x", operation)
    assert (outcome.status, outcome.code) == ("rejected", code), outcome.message
    after = {k: v.encode() for k, v in world.machine.to_parts().items() if k.startswith("table")}
    assert after == tables


def test_rows_that_a_changed_fragment_doesn_t_have_are_refused(world: World) -> None:
    """They are looked at once the fragment's vector is another than the one that was read."""
    stale = delete(world, 2, {0: [1]})
    beyond = replace(stale, affected_rows=delete(world, 2, {0: [10]}).affected_rows)
    world.ask("other", delete(world, 2, {0: [2]}))
    outcome = world.ask("x", beyond)
    assert (outcome.status, outcome.code) == ("rejected", "INVALID_OPERATION")
    assert "affected_rows[0] 10: row out of range" in outcome.message
    assert world.ask("y", stale).status == "committed"


def test_what_a_file_elsewhere_deletes_is_not_known(world: World) -> None:
    """Only a deletion file beside the table's own is compared with what was read."""
    here = delete(world, 2, {0: [1]}, with_rows=False)
    elsewhere = LanceTransaction.FromString(here.message)
    elsewhere.delete.updated_fragments[0].deletion_file.base_id = 1
    world.ask("other", delete(world, 2, {0: [2]}))
    outcome = world.ask("x", replace(here, message=elsewhere.SerializeToString()))
    assert (outcome.status, outcome.observed) == ("retryable", ())
    assert "rows_unknown" in outcome.message
    assert world.ask("y", here).status == "committed"


def test_a_carried_update_keeps_the_values_that_it_brings(world: World) -> None:
    """A Delete leaves a fragment as the head has it, an Update doesn't."""
    deleting = delete(world, 2, {0: [1]})
    update = LanceTransaction(read_version=2, uuid="m")
    images = LanceTransaction.FromString(deleting.message).delete.updated_fragments
    images[0].files[0].path = "patched.lance"
    update.update.updated_fragments.extend(images)
    update.update.new_fragments.append(new_fragment("moved.lance", 1))
    world.ask("other", delete(world, 2, {0: [2]}))
    outcome = world.ask("x", commit(update, affected_rows=deleting.affected_rows))
    assert (outcome.status, outcome.results[0].rebased) == ("committed", True)
    left = DataFragment.FromString(world.state().fragments[0])
    assert (left.files[0].path, left.deletion_file.num_deleted_rows) == ("patched.lance", 2)


def test_a_transaction_has_operations_and_not_too_many(world: World) -> None:
    assert world.ask("none").code == "INVALID_OPERATION"
    many = [append(2, f"{i}.lance") for i in range(Rules().operations_max + 1)]
    assert world.ask("many", *many).code == "INVALID_OPERATION"


def test_a_malformed_record_has_an_outcome_and_leaves_its_id_free(world: World) -> None:
    outcome = world.run(Malformed("x", "not Avro", b"hash"))
    assert (outcome.code, outcome.payload_hash) == ("MALFORMED_RECORD", b"hash")
    assert world.ask("x", append(2, "x.lance")).status == "committed"


def test_a_protocol_version_changes_the_rules_and_a_newer_one_stops() -> None:
    world = World()
    world.create()
    outcome = world.run(ProtocolVersion("p", 1, DAY_MS, 7, 3))
    assert outcome.status == "committed"
    assert world.machine.rules == Rules(1, DAY_MS, 7, 3)
    assert world.replayed().digest() == world.machine.digest()
    assert world.run(ProtocolVersion("q", 1, 0, 7, 3)).code == "INVALID_OPERATION"
    newer = PROTOCOL_SUPPORTED + 1
    with pytest.raises(UnsupportedFormat, match=f"protocol {newer}"):
        world.run(ProtocolVersion("r", newer, DAY_MS, 7, 3))


class CountsBuilds(World):
    """Counts what is left to pylance."""

    builds = 0

    def build(self, wanted: BuildWanted) -> Found:
        self.builds += 1
        return super().build(wanted)


def update() -> LanceTransaction:
    transaction = LanceTransaction(read_version=2, uuid="u")
    transaction.update.new_fragments.append(new_fragment("b.lance"))
    return transaction


def rewrite() -> LanceTransaction:
    transaction = LanceTransaction(read_version=2, uuid="u")
    group = transaction.rewrite.groups.add()
    group.old_fragments.add(id=0)
    group.new_fragments.append(new_fragment("b.lance"))
    return transaction


@pytest.mark.parametrize(
    ("make", "since"),
    [(update, UPDATES_BUILT_HERE_SINCE), (rewrite, REWRITES_BUILT_HERE_SINCE)],
    ids=["update", "rewrite"],
)
@pytest.mark.parametrize("is_newer", [False, True])
def test_a_build_is_left_to_pylance_while_an_older_program_may_follow(
    make: Callable[[], LanceTransaction], since: int, is_newer: bool
) -> None:
    world = CountsBuilds(rules=Rules(since - (not is_newer)))
    world.create()
    world.ask("a", append(0, "a.lance"))
    outcome = world.ask("u", commit(make()))
    assert (outcome.status, outcome.version) == ("committed", 3)
    assert world.builds == (not is_newer)
    assert world.replayed().digest() == world.machine.digest()


def test_ids_are_forgotten_after_the_horizon_and_old_ones_refused() -> None:
    world = World(rules=Rules(id_horizon_ms=10_000))
    world.create()
    world.ask("a", append(0, "a.lance"), submitted_at_ms=world.now_ms)
    born = world.now_ms
    assert world.machine.outcome_of("a") is not None
    world.now_ms += 20_000
    world.ask("b", append(0, "b.lance"), submitted_at_ms=world.now_ms)
    assert world.machine.outcome_of("a") is None
    old = world.ask("a", append(0, "a.lance"), submitted_at_ms=born)
    assert (old.status, old.code) == ("rejected", "TOO_OLD")
    version_7 = f"{born:012x}"
    old_id = f"{version_7[:8]}-{version_7[8:]}-7000-8000-000000000000"
    assert world.ask(old_id, append(0, "c.lance")).code == "TOO_OLD"
    longer = ProtocolVersion("p", 1, DAY_MS, 100, 10)
    world.run(longer)
    assert world.ask("a", append(0, "a.lance"), submitted_at_ms=born).code == "TOO_OLD"


def test_log_time_never_goes_back(world: World) -> None:
    time_ms = world.machine.time_ms
    world.now_ms -= 500_000
    assert world.ask("late", append(2, "x.lance")).time_ms == time_ms


def test_registering_takes_the_observed_manifest_over(world: World) -> None:
    from commitlog.core.decisions import Found
    from commitlog.model.records import Observation

    path = f"_versions/{2**64 - 1 - 2:020}.manifest"
    seen = Found(Observation(path, 10, b"y" * 32), state=world.state().copy())
    world.manifests["/found/x", path] = seen
    operation = RegisterTable(("x",), "i-x", "/found/x", 2, path)
    assert world.ask("wrong", replace(operation, version=3)).code == "LOCATION_NOT_ALLOWED"
    outcome = world.ask("r", operation)
    assert (outcome.status, outcome.version) == ("committed", 2)
    assert world.state(("x",)) == world.state()
    assert world.ask("old", append(1, "a.lance", table=("x",))).code == "READ_VERSION_PRUNED"
    assert world.ask("new", append(2, "a.lance", table=("x",))).version == 3
    assert world.replayed().digest() == world.machine.digest()
    assert world.ask("gone", DeregisterTable(("x",))).status == "committed"
    other = replace(operation, incarnation="i-y")
    assert world.ask("again", other).code == "LOCATION_TAKEN"
    assert world.ask("same", operation).status == "committed"


def test_a_large_recording_stands_beside_its_outcome(world: World) -> None:
    from commitlog.core.decisions import Found
    from commitlog.model.records import Observation

    world.create("big")
    paths = [f"{'x' * 200}{i}.lance" for i in range(1500)]
    world.ask("fill", append(1, *paths, table=("big",)))
    path = f"_versions/{2**64 - 1 - 2:020}.manifest"
    seen = Found(Observation(path, 10), state=world.state(("big",)).copy())
    world.manifests["/found/x", path] = seen
    outcome = world.ask("r", RegisterTable(("x",), "i-x", "/found/x", 2, path))
    recording = outcome.results[0].delta
    assert recording is not None
    assert recording.inline is None
    assert recording.sha256 in world.recordings
    assert world.replayed().digest() == world.machine.digest()


def test_namespaces_properties_names_and_declared_tables(world: World) -> None:
    world.create("a$b$c")
    assert set(world.machine.catalogue.namespaces) == {("a",), ("a", "b")}
    assert world.ask("1", CreateNamespace(("a",))).code == "TABLE_EXISTS"
    assert world.ask("2", CreateNamespace(("a",), exist_ok=True)).status == "committed"
    assert world.ask("3", DropNamespace(("a",))).code == "INVALID_OPERATION"
    alter = AlterProperties(("a",), True, (("x", "1"),))
    assert world.ask("4", alter).status == "committed"
    assert world.machine.catalogue.namespaces[("a",)] == (("x", "1"),)
    assert world.ask("5", AlterProperties(("t",), False, (("y", "2"),))).status == "committed"
    assert world.machine.tables[("t",)].properties == (("y", "2"),)
    assert world.ask("6", RenameTable(("t",), ("a", "t"))).status == "committed"
    assert world.ask("7", append(2, "x.lance", table=("a", "t"))).version == 3
    assert world.ask("8", DropNamespace(("a",), cascade=True)).status == "committed"
    assert not world.machine.tables
    assert not world.machine.catalogue.namespaces
    declared = DeclareTable(("d",), "i-d", "/d")
    assert world.ask("9", declared).status == "committed"
    assert world.ask("10", append(0, "x.lance", table=("d",))).code == "INVALID_OPERATION"
    assert world.ask("11", creating("d", "/d", "i-d")).version == 1
    assert world.replayed().digest() == world.machine.digest()
    assert replayed_from_parts(world.machine).digest() == world.machine.digest()


def test_creating_what_exists_may_be_fine(world: World) -> None:
    fields = (column("c0", 0),)
    again = CreateTable(("t",), "i-new", "/new", fields, exist_ok=True)
    outcome = world.ask("again", again)
    assert (outcome.status, outcome.version) == ("committed", 2)
    assert outcome.results[0].incarnation == "i-t"
    assert world.replayed().digest() == world.machine.digest()


def test_deciding_changes_nothing(world: World) -> None:
    before = world.machine.digest()
    submitted = world.submitted(Transaction("x", (append(2, "x.lance"),)))
    assert isinstance(world.machine.decide(submitted, {}), Need)
    first, second = world.decide(submitted), world.decide(submitted)
    assert first == second
    assert world.machine.digest() == before


def test_a_table_and_its_id_are_held(world: World) -> None:
    submitted = world.submitted(
        Transaction("x", (append(2, "x.lance"), RenameTable(("u",), ("v",))))
    )
    assert world.machine.locks_of(submitted) == {"x", ("t",), ("u",), ("v",)}
    assert Machine(world.genesis).locks_of(world.submitted(Malformed("", "", b""))) == frozenset()


def test_a_machine_that_forgot_all_its_ids_is_restored_as_it_was() -> None:
    world = World(rules=Rules(id_horizon_ms=1_000))
    world.create()
    world.now_ms += 10_000
    # Nothing is remembered of this one, and the ids before it are older than the horizon.
    world.run(Malformed("x", "not Avro", b"hash"))
    assert replayed_from_parts(world.machine).digest() == world.machine.digest()


def test_a_dropped_incarnation_is_not_made_again() -> None:
    world = World()
    create = CreateTable(
        ("t",), "i-t", f"{ROOT}/t", (column("c0", 0),), data_storage_version=FORMAT
    )
    assert world.ask("a", create).status == "committed"
    assert world.ask("b", DropTable(("t",))).status == "committed"
    # Its manifests from version 1 on stand there under their canonical names.
    assert world.ask("c", create).code == "LOCATION_TAKEN"
