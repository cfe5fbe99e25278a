"""Is whatever a Lance transaction holds decided and sealed? What raises ends each leader in turn.

Messages are filled by their descriptors: any field, any operation, numbers at the ends of their
types, texts and bytes that mean something somewhere else.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from commitlog.codecs.avro import seal_outcome
from commitlog.core.decisions import BuildWanted, Found, Refused
from commitlog.core.manifest.manifest_state import DeltaRefused, ManifestState
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import AffectedRows, LanceCommit
from commitlog.model.records import Observation
from tests.core_world import World, append, commit, delete, new_fragment
from tests.unit.test_staged import appending, stage

WORLDS, COMMITS = 60, 12
_NUMBERS = (0, 1, 2, 10, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
_TEXTS = (
    *("", "a.lance", "b.lance", "c0", "../x", "9" * 5_000, "\u00e9", "\0", "x" * 300, "true", "-1"),
    *("lance-schema:unenforced-primary-key", "lance-schema:unenforced-primary-key:position"),
    *("int64", "fixed_size_list:float:2", "struct", "list", "blob", "2.1", "_rowid"),
    *("lance-encoding:blob", "ARROW:extension:name", "lance.auto_cleanup.interval"),
)
_BYTES = (b"", b"\0", b"\xff" * 8, b"a" * 16, b"\xff" * 1_000)
_BITS = {
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63),
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31),
}
_DEPTH_MAX = 6


class Unbuilt(World):
    """What only pylance builds, nobody builds."""

    def build(self, wanted: BuildWanted) -> Found:
        return Found(Observation("", -1), error="pylance refused")


def value(chance: random.Random, field: Any) -> Any:
    bounds = _BITS.get(field.cpp_type)
    if bounds is not None:
        least, end = bounds
        return chance.choice([one for one in (*_NUMBERS, -1, least) if least <= one < end])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return chance.choice([0.0, -1.0, float("inf"), float("nan")])
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return chance.choice(list(field.enum_type.values_by_number))
    return chance.choice(_TEXTS if field.type == FieldDescriptor.TYPE_STRING else _BYTES)


def fill(chance: random.Random, message: Message, share: float, depth: int = 0) -> None:
    """Give values to a share of a message's fields, and of those in it."""
    field: Any
    for field in message.DESCRIPTOR.fields:
        if chance.random() > share or depth > _DEPTH_MAX:
            continue
        here, inner = getattr(message, field.name), field.message_type
        count = chance.randrange(4)
        if inner is not None and inner.GetOptions().map_entry:
            key, held = inner.fields_by_name["key"], inner.fields_by_name["value"]
            for _ in range(count):
                if held.message_type is None:
                    here[value(chance, key)] = value(chance, held)
                else:
                    fill(chance, here[value(chance, key)], share, depth + 1)
        elif field.is_repeated:
            for _ in range(count):
                if inner is None:
                    here.append(value(chance, field))
                else:
                    fill(chance, here.add(), share, depth + 1)
        elif inner is not None:
            here.SetInParent()
            fill(chance, here, share, depth + 1)
        else:
            setattr(message, field.name, value(chance, field))


def next_state(world: World) -> ManifestState:
    """Return what an append makes of the head, or the head itself if it can't."""
    try:
        return appending(world)[1]
    except DeltaRefused:
        return world.state().copy()


def arbitrary(chance: random.Random, head: int, number: int) -> LanceTransaction:
    """Return a transaction of one operation, some of whose fragments may be as they should be."""
    versions = [1, 2, head, head, head, 0, 2**64 - 1]
    made = LanceTransaction(read_version=chance.choice(versions), uuid=f"u{number}")
    chosen: Any = chance.choice(LanceTransaction.DESCRIPTOR.oneofs_by_name["operation"].fields)
    body = getattr(made, chosen.name)
    body.SetInParent()
    fill(chance, body, chance.choice([0.1, 0.3, 0.6, 0.9]))
    for name in ("new_fragments", "fragments", "updated_fragments"):
        if hasattr(body, name) and chance.random() < 0.6:
            rows = chance.choice(_NUMBERS)
            fragment = new_fragment(f"n{number}.lance", rows=rows)
            fragment.id = chance.choice(_NUMBERS)
            getattr(body, name).append(fragment)
    return made


def stale_delete(chance: random.Random, world: World) -> LanceCommit:
    """Return a Delete whose rows may be of another fragment than the one it names."""
    rows = {
        fragment_id: {chance.randrange(20) for _ in range(chance.randrange(1, 4))}
        for fragment_id in world.state().fragments
        if chance.random() < 0.5
    }
    return delete(world, chance.randrange(2, world.state().version + 1), rows)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", range(1, PROTOCOL_SUPPORTED + 1))
def test_every_transaction_is_decided(protocol: int, seed: int) -> None:
    chance = random.Random(f"{seed} {protocol}")
    for _ in range(WORLDS):
        world = Unbuilt(rules=Rules(protocol))
        world.create(columns=chance.choice([1, 3]))
        world.ask("first", append(1, "a.lance", "b.lance"))
        for number in range(COMMITS):
            transaction = arbitrary(chance, world.state().version, number)
            try:
                offered: Any = commit(transaction)
            except Refused:  # by who encodes it
                continue
            if chance.random() < 0.2:
                offered = stage(world, transaction, next_state(world))
            elif chance.random() < 0.2:
                rows = chance.choice(_BYTES)
                offered = LanceCommit(
                    *(offered.table, offered.operation, offered.read_version, offered.message),
                    affected_rows=(AffectedRows(chance.choice([0, 1, 2**32]), rows),),
                )
            elif chance.random() < 0.2:
                offered = stale_delete(chance, world)
            outcome = world.ask(f"t{number}", offered)
            seal_outcome(outcome, previous_hash=bytes(32), epoch=0, node="n")
