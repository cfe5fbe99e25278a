"""Base paths in the machine: tables of the log, what the leader allows, and nothing else."""

from __future__ import annotations

import re
from uuid import NAMESPACE_URL, uuid5

import pytest
from pyroaring import BitMap

from commitlog import words
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.core.manifest.fragments import Fragments
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFragment, IndexSection, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import BASES_CHECKED_SINCE, BASES_KEPT_SINCE, Rules
from commitlog.model.operations import LanceCommit
from commitlog.model.records import Status
from tests.core_world import ROOT, World, append, column
from tests.unit.test_staged import stage


def with_base(world: World, path: str, read_version: int = 1) -> LanceCommit:
    message = LanceTransaction(read_version=read_version, uuid=str(uuid5(NAMESPACE_URL, path)))
    message.update_bases.new_bases.add(name=path, path=path, is_dataset_root=True)
    return LanceCommit(
        ("t",), "UpdateBases", read_version, message.SerializeToString(deterministic=True)
    )


def made(protocol: int) -> World:
    world = World(rules=Rules(protocol=protocol))
    world.create()
    return world


@pytest.mark.parametrize(
    ("path", "is_accepted"),
    [
        (f"{ROOT}/other", True),  # the leader allows what lies below the root
        (f"{ROOT}/t/more", True),
        ("/elsewhere/x", False),
        (f"{ROOT}/../elsewhere", False),
        ("s3://bucket/x", False),
        ("relative", False),
        ("", False),
    ],
)
def test_a_new_base_path_is_held_to_the_policy(path: str, is_accepted: bool) -> None:
    world = made(BASES_CHECKED_SINCE)
    outcome = world.ask("b", with_base(world, path))
    if is_accepted:
        assert outcome.status is Status.COMMITTED, outcome.message
    else:
        assert (outcome.status, outcome.code) == (Status.REJECTED, "LOCATION_NOT_ALLOWED")
    assert world.replayed().digest() == world.machine.digest()


def test_older_logs_decide_as_they_did() -> None:
    world = made(BASES_CHECKED_SINCE - 1)
    outcome = world.ask("b", with_base(world, "/elsewhere/x"))
    assert outcome.status is Status.COMMITTED
    assert not outcome.observed


def test_what_the_leader_found_is_in_the_outcome() -> None:
    world = made(BASES_CHECKED_SINCE)
    outcome = world.ask("b", with_base(world, "/elsewhere/x"))
    assert [(seen.path, seen.size) for seen in outcome.observed] == [("/elsewhere/x", -1)]


def next_version(
    world: World, *, base: bool, used_by: str, path: str = f"{ROOT}/other"
) -> ManifestState:
    """Return a version with a base path or without, and what needs it."""
    state = world.state().copy()
    header = Manifest.FromString(state.header.encoded)
    del header.base_paths[:]
    if base:
        header.base_paths.add(id=1, path=path, is_dataset_root=True)
    state.header = ManifestHeader.of(header)
    fragment = DataFragment.FromString(state.fragments[0])
    if used_by == "data":
        fragment.files[0].base_id = 1
    elif used_by == "deletions":
        fragment.deletion_file.base_id = 1
        fragment.deletion_file.num_deleted_rows = 1
        world.vectors[f"{ROOT}/other", deletion_file_path(0, fragment.deletion_file)] = BitMap([3])
    elif used_by == "index":
        section = IndexSection()
        section.indices.add(name="i", fields=[0], base_id=1).uuid.uuid = bytes(16)
        state.index_section = section.SerializeToString()
    state.fragments = Fragments([fragment.SerializeToString(deterministic=True)])
    state.version += 1
    return state


@pytest.mark.parametrize("protocol", [BASES_KEPT_SINCE - 1, BASES_KEPT_SINCE])
@pytest.mark.parametrize("kind", ["restore", "overwrite", "update_bases"])
@pytest.mark.parametrize("used_by", ["", "data", "deletions", "index"])
def test_no_version_is_without_a_base_path_that_its_files_need(
    protocol: int, kind: str, used_by: str
) -> None:
    world = World(rules=Rules(protocol))
    world.create()
    world.create("other")
    world.ask("first", append(1, "a.lance"))
    with_a_base = LanceTransaction(read_version=2, uuid="o")
    with_a_base.overwrite.schema.append(Field.FromString(column("c0", 0)))
    for read_version, used in ((2, ""), (3, used_by)):
        with_a_base.read_version = read_version
        made = next_version(world, base=True, used_by=used)
        outcome = world.ask(f"base {read_version}", stage(world, with_a_base, made))
        assert outcome.status is Status.COMMITTED, words.worded(outcome).message
    without = LanceTransaction(read_version=4, uuid="r")
    if kind == "overwrite":
        without.overwrite.CopyFrom(with_a_base.overwrite)
    else:
        getattr(without, kind).SetInParent()
    if kind == "restore":
        without.restore.version = 2
    outcome = world.ask("less", stage(world, without, next_version(world, base=False, used_by="")))
    if used_by and protocol >= BASES_KEPT_SINCE:
        said = words.worded(outcome).message
        assert outcome.code == "INVALID_OPERATION"
        assert "unknown base path" in said or "names the base path 1, which" in said
    else:
        assert outcome.status is Status.COMMITTED, words.worded(outcome).message
    assert world.replayed().digest() == world.machine.digest()


def overwrite(read_version: int) -> LanceTransaction:
    message = LanceTransaction(read_version=read_version, uuid="o")
    message.overwrite.schema.append(Field.FromString(column("c0", 0)))
    return message


@pytest.mark.parametrize("protocol", [BASES_KEPT_SINCE - 1, BASES_KEPT_SINCE])
@pytest.mark.parametrize("used_by", ["data", "deletions", "index"])
def test_a_version_brings_a_base_path_and_files_there(protocol: int, used_by: str) -> None:
    world = World(rules=Rules(protocol))
    world.create()
    world.create("other")
    world.ask("first", append(1, "a.lance"))
    made = next_version(world, base=True, used_by=used_by)
    outcome = world.ask("o", stage(world, overwrite(2), made))
    is_missed = used_by == "deletions" and protocol < BASES_KEPT_SINCE
    assert outcome.code == ("MISSING_FILE" if is_missed else ""), words.worded(outcome).message
    assert world.replayed().digest() == world.machine.digest()


@pytest.mark.parametrize("protocol", [BASES_KEPT_SINCE - 1, BASES_KEPT_SINCE])
@pytest.mark.parametrize("used_by", ["", "data", "deletions", "index"])
def test_a_base_path_that_files_use_stays_where_it_is(protocol: int, used_by: str) -> None:
    world = World(rules=Rules(protocol))
    for name in ("t", "other", "third"):
        world.create(name)
    world.ask("first", append(1, "a.lance"))
    for number, used in ((2, ""), (3, used_by)):
        made = next_version(world, base=True, used_by=used)
        assert world.ask(str(number), stage(world, overwrite(number), made)).code == ""
    made = next_version(world, base=True, used_by=used_by, path=f"{ROOT}/third")
    outcome = world.ask("moved", stage(world, overwrite(4), made))
    if used_by and protocol >= BASES_KEPT_SINCE:
        assert outcome.code == "INVALID_OPERATION"
        said = "the base path of this id would be '[^']*/third', where the file isn't"
        assert re.search(said, words.worded(outcome).message)
    else:
        assert outcome.code == "", words.worded(outcome).message
    assert world.replayed().digest() == world.machine.digest()
