"""Manifests that clients staged: accepted as our head plus their transaction, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from commitlog.core.decisions import Found
from commitlog.core.lance.direct import direct_delta
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import ManifestState, apply_delta
from commitlog.lancepb.table_pb2 import DataFragment, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.operations import CreateTableVersion, DeclareTable
from commitlog.model.records import Observation, Outcome
from tests.core_world import ROOT, World, append, delete, new_fragment


@pytest.fixture
def world() -> World:
    """Return a log with table t at version 2: two fragments of 10 rows."""
    made = World()
    made.create()
    made.ask("first", append(1, "a.lance", "b.lance"))
    return made


def path_of(version: int) -> str:
    """Return where a client stages a version."""
    return f"_versions/{2**64 - 1 - version:020}.manifest-0a1b"


def stage(
    world: World,
    transaction: LanceTransaction,
    state: ManifestState,
    *,
    location: str = f"{ROOT}/t",
) -> CreateTableVersion:
    """Put a manifest into the store and offer it."""
    message = transaction.SerializeToString(deterministic=True)
    path = path_of(state.version)
    seen = Observation(path, 500, b"s" * 32)
    world.manifests[location, path] = Found(seen, state=state, transaction=message)
    table = (location.rsplit("/", 1)[1],)
    return CreateTableVersion(
        table, state.version, path, 500, sha256=b"s" * 32, message=message, operation="?"
    )


def appending(world: World, read_version: int = 2) -> tuple[LanceTransaction, ManifestState]:
    """Return what a client makes of the head by an append."""
    transaction = LanceTransaction.FromString(append(read_version, "s.lance").message)
    state = world.state().copy()
    apply_delta(state, direct_delta(state, transaction, timestamp_ms=7))
    return transaction, state


def test_a_staged_version_is_recorded_and_replays(world: World) -> None:
    operation = stage(world, *appending(world))
    outcome = world.ask("s", operation)
    assert (outcome.status, outcome.version) == ("committed", 3)
    assert outcome.results[0].operation == "Append"
    assert outcome.results[0].first_fragment_id == 2
    change = world.changes[-1]
    assert change.staged_path == operation.manifest_path
    assert change.message == operation.message
    assert world.state().timestamp_nanos == outcome.time_ms * 1_000_000
    assert world.replayed().digest() == world.machine.digest()


def test_only_the_next_version_is_accepted(world: World) -> None:
    operation = stage(world, *appending(world))
    world.ask("other", append(2, "o.lance"))
    outcome = world.ask("s", operation)
    assert (outcome.status, outcome.code) == ("retryable", "NOT_LATEST")
    assert outcome.conflict is not None
    assert outcome.conflict.transaction_id == "other"


def test_its_transaction_goes_through_the_grid(world: World) -> None:
    late = LanceTransaction.FromString(delete(world, 2, {0: [1]}, with_rows=False).message)
    world.ask("other", delete(world, 2, {0: [2]}))
    state = world.state().copy()
    apply_delta(state, direct_delta(state, late, timestamp_ms=7))
    outcome = world.ask("s", stage(world, late, state))
    assert (outcome.status, outcome.code) == ("retryable", "CONFLICT")
    late.read_version = 3
    assert world.ask("t", stage(world, late, state)).status == "committed"


def lost_fragment(state: ManifestState) -> None:
    state.fragments.remove(0)


def changed_fragment(state: ManifestState) -> None:
    fragment = DataFragment.FromString(state.fragments[1])
    fragment.physical_rows = 11
    state.fragments.put([(1, fragment.SerializeToString())])


def reused_id(state: ManifestState) -> None:
    fragment = new_fragment("x.lance")
    fragment.id = 1
    state.fragments.remove(1)
    state.fragments.put([(1, fragment.SerializeToString())])


def ids_go_back(state: ManifestState) -> None:
    state.max_fragment_id = 0


def other_config(state: ManifestState) -> None:
    manifest = Manifest.FromString(state.header.encoded)
    manifest.config["k"] = "v"
    state.header = ManifestHeader.of(manifest)


def other_schema(state: ManifestState) -> None:
    manifest = Manifest.FromString(state.header.encoded)
    manifest.fields[0].name = "other"
    state.header = ManifestHeader.of(manifest)


@pytest.mark.parametrize(
    "spoil",
    [lost_fragment, changed_fragment, reused_id, ids_go_back, other_config, other_schema],
)
def test_what_it_does_not_claim_must_be_unchanged(
    world: World, spoil: Callable[[ManifestState], None]
) -> None:
    transaction, state = appending(world)
    spoil(state)
    outcome = world.ask("s", stage(world, transaction, state))
    assert (outcome.status, outcome.code) == ("rejected", "INVALID_OPERATION")
    assert world.state().version == 2


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("_versions/../x.manifest-1", "LOCATION_NOT_ALLOWED"),
        ("x/18446744073709551612.manifest-1", "LOCATION_NOT_ALLOWED"),
        ("_versions/18446744073709551612.manifest", "LOCATION_NOT_ALLOWED"),
        ("_versions/18446744073709551600.manifest-1", "LOCATION_NOT_ALLOWED"),
        ("_versions/3.manifest-gone", "MISSING_FILE"),
    ],
)
def test_its_path_is_confined(world: World, path: str, code: str) -> None:
    operation = stage(world, *appending(world))
    assert world.ask("s", replace(operation, manifest_path=path)).code == code


def test_what_was_announced_is_what_is_there(world: World) -> None:
    operation = stage(world, *appending(world))
    assert world.ask("1", replace(operation, manifest_size=9)).code == "MISSING_FILE"
    assert world.ask("2", replace(operation, sha256=b"?" * 32)).code == "MISSING_FILE"
    other = append(2, "lie.lance").message
    assert world.ask("3", replace(operation, message=other)).code == "INVALID_OPERATION"
    assert world.ask("4", replace(operation, branch="b")).code == "UNSUPPORTED_OPERATION"
    assert world.ask("5", replace(operation, message=b"")).code == "UNSUPPORTED_OPERATION"


def first_version(world: World) -> Outcome:
    """Let a client write the first version of a declared table."""
    world.ask("declare", DeclareTable(("d",), "i-d", f"{ROOT}/d"))
    transaction = LanceTransaction(uuid="o")
    transaction.overwrite.fragments.append(new_fragment("x.lance"))
    state = world.state().copy()
    state.version = 1
    return world.ask("s", stage(world, transaction, state, location=f"{ROOT}/d"))


def test_a_declared_table_gets_its_first_version_from_a_client(world: World) -> None:
    outcome = first_version(world)
    assert (outcome.status, outcome.version) == ("committed", 1)
    assert world.replayed().digest() == world.machine.digest()
    assert world.ask("next", append(1, "n.lance", table=("d",))).version == 2
