"""Base paths in the machine: tables of the log, what the leader allows, and nothing else."""

from __future__ import annotations

from uuid import NAMESPACE_URL, uuid5

import pytest

from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import BASES_CHECKED_SINCE, Rules
from commitlog.model.operations import LanceCommit
from commitlog.model.records import Status
from tests.core_world import ROOT, World


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
