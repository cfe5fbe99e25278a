"""Records that no writer of ours makes: each is decided, since what raises ends each leader."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from pyroaring import BitMap

from commitlog.core.manifest.deletion_vectors import portable
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.partition.machine import Found
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFragment, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import (
    ROW_ORDER,
    ROW_ORDER_KEPT,
    AffectedRows,
    CreateTable,
    LanceCommit,
    RegisterTable,
)
from commitlog.model.records import Observation
from tests.core_world import FORMAT, ROOT, World, append, column, commit, delete, new_fragment

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


def test_a_rewrite_of_a_fragment_that_never_was() -> None:
    world = World(rules=Rules(PROTOCOL_SUPPORTED))
    world.create()
    world.ask("first", append(1, "a.lance"))
    outcome = world.ask("r", rewrite(1, [([old(7)], [new_fragment("n.lance", 3)])]))
    assert (outcome.status, outcome.code) == ("rejected", "UNKNOWN_FRAGMENT")


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


def test_two_tables_of_one_incarnation_in_a_record(world: World) -> None:
    """Clients choose incarnations, and each table has its own version of it."""
    fields = (column("c0", 0),)
    makers = [
        CreateTable((name,), "i", f"{ROOT}/{name}", fields, data_storage_version=FORMAT)
        for name in "ab"
    ]
    assert world.ask("make", *makers).status == "committed"
    both = [append(1, f"{name}.lance", table=(name,)) for name in "ab"]
    assert world.ask("both", *both).status == "committed"
    assert world.replayed().digest() == world.machine.digest()


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


@pytest.mark.timeout(60)
def test_a_schema_of_thousands_of_levels_is_no_work(world: World) -> None:
    count = 20_000
    kinds = ["struct"] * (count - 1) + ["int64"]
    fields = tuple(
        Field(name="a", id=i, parent_id=i - 1, logical_type=kind).SerializeToString()
        for i, kind in enumerate(kinds)
    )
    key = (".".join("a" * count),)
    deep = CreateTable(
        ("d",), "i", f"{ROOT}/d", fields, primary_key=key, data_storage_version=FORMAT
    )
    assert world.ask("deep", deep).status == "committed"
    appended = append(1, "d.lance", fields=range(count), table=("d",))
    assert world.ask("rows", appended).status == "committed"
