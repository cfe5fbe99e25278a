"""A new name has a bounded number of parts: each of them is a namespace that the state keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commitlog import words
from commitlog.core.iceberg.reading import dump_json
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import NAME_PARTS_MAX, NAME_PARTS_SINCE, Rules
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    CreateTable,
    DeclareTable,
    DropNamespace,
    DropTable,
    IcebergChange,
    LanceCommit,
    Operation,
    RegisterTable,
    RenameTable,
)
from commitlog.model.records import ProtocolVersion
from commitlog.model.table import TableId
from tests.core_world import ROOT, World, append, column, replayed_from_parts
from tests.unit.iceberg_examples import create_updates


def path(parts: int) -> TableId:
    """Return a name of so many parts."""
    return ("n",) * parts


def makers(name: TableId) -> dict[str, Operation]:
    """Return each operation that gives something a name."""
    copied = LanceTransaction(read_version=1, uuid="c")
    copied.clone.ref_version, copied.clone.ref_path = 1, f"{ROOT}/t"
    create = '[{"type":"assert-create"}]'
    return {
        "namespace": CreateNamespace(name),
        "create": CreateTable(name, "i", f"{ROOT}/n", (column("a", 0),)),
        "declare": DeclareTable(name, "i", f"{ROOT}/n"),
        "register": RegisterTable(name, "i", f"{ROOT}/n", 1, "_versions/1.manifest"),
        "rename": RenameTable(("t",), name),
        "clone": LanceCommit(name, "Clone", 1, copied.SerializeToString()),
        "iceberg": IcebergChange(name, create, dump_json(create_updates(f"{ROOT}/i"))),
        "view": IcebergChange(name, '[{"type":"assert-view-create"}]', "[]"),
    }


def a_world(protocol: int) -> World:
    """Return a log with a table of one version."""
    world = World(rules=Rules(protocol))
    world.create()
    world.ask("first", append(1, "a.lance"))
    return world


def too_deep(world: World, name: str, operation: Operation) -> bool:
    """Ask for something; return whether it was refused for its depth."""
    outcome = world.ask(name, operation)
    said = words.worded(outcome).message
    is_too_deep = f"a new name has {NAME_PARTS_MAX} at most" in said
    if is_too_deep:
        assert (outcome.status, outcome.code) == ("rejected", "INVALID_OPERATION")
        assert f"has {NAME_PARTS_MAX + 1} parts;" in said
    return is_too_deep


@pytest.mark.parametrize("kind", makers(()))
def test_no_new_name_has_more_parts(kind: str) -> None:
    for protocol in (NAME_PARTS_SINCE - 1, NAME_PARTS_SINCE):
        for parts in (NAME_PARTS_MAX, NAME_PARTS_MAX + 1):
            is_deeper = parts > NAME_PARTS_MAX and protocol >= NAME_PARTS_SINCE
            world = a_world(protocol)
            assert too_deep(world, kind, makers(path(parts))[kind]) == is_deeper
            assert world.replayed().digest() == world.machine.digest()


def test_what_has_a_longer_name_stays_and_can_be_used() -> None:
    world, deep = a_world(NAME_PARTS_SINCE - 1), path(2 * NAME_PARTS_MAX)
    world.ask("made", CreateNamespace((*deep, "inner")))
    world.ask("moved", RenameTable(("t",), (*deep, "t")))
    world.run(ProtocolVersion("upgrade", NAME_PARTS_SINCE, 10**9, 1_000, 1_000))
    assert too_deep(world, "more", CreateNamespace(path(NAME_PARTS_MAX + 1)))
    alter = AlterProperties(deep, upserts=(("a", "b"),), is_namespace=True)
    more = append(2, "b.lance", table=(*deep, "t"))
    held = AlterProperties((*deep, "t"), upserts=(("commitlog.hold.x", "2"),))
    drops = DropTable((*deep, "t")), DropNamespace(path(1), cascade=True)
    operations: tuple[Operation, ...] = (alter, more, held, *drops)
    for number, operation in enumerate(operations):
        outcome = world.ask(str(number), operation)
        assert outcome.status == "committed", words.worded(outcome).message
    assert not world.machine.catalogue.namespaces
    for again in (world.replayed(), replayed_from_parts(world.machine)):
        assert again.digest() == world.machine.digest()


@pytest.mark.parametrize(
    "required",
    ["Assert-Create", r"assert\u002dcreate", "assert-view-create", r"assert-view-\u0063reate"],
)
def test_however_a_requirement_is_spelled_its_new_name_is_checked(required: str) -> None:
    world = a_world(NAME_PARTS_SINCE)
    made = f'[{{"type":"{required}"}}]'
    deep = IcebergChange(path(NAME_PARTS_MAX + 1), made, dump_json(create_updates(f"{ROOT}/i")))
    assert too_deep(world, "deep", deep)
    outcome = world.ask("nul", replace(deep, table=("a\0b",)))
    assert "holds a control character" in words.worded(outcome).message


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["namespace", "declare", "rename", "iceberg"])
def test_a_name_of_a_million_parts_stops_no_log(kind: str) -> None:
    world = a_world(NAME_PARTS_SINCE)
    outcome = world.ask(kind, makers(path(1_000_000))[kind])
    assert outcome.code == "INVALID_OPERATION"
    assert "has 1000000 parts" in words.worded(outcome).message
