"""Metadata that is registered by its digest: decided, replayed without its file, read in bounds."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from commitlog.codecs.avro_bounds import check_avro
from commitlog.codecs.avro_manifests import read_list
from commitlog.core.decisions import BytesWanted, Found, Wanted
from commitlog.core.iceberg import metadata_references as reading
from commitlog.core.iceberg.creating import register_reference
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.metadata_references import read_table
from commitlog.errors import UnsupportedFormat
from commitlog.model.limits import (
    ICEBERG_METADATA_BYTES_MAX,
    ICEBERG_UPDATES_MAX,
    JSON_VALUES_MAX,
    OUTCOME_INLINE_BYTES_MAX,
    PROTOCOL_SUPPORTED,
    Rules,
)
from commitlog.model.operations import CreateNamespace, IcebergChange
from commitlog.model.records import Code, Observation, Status
from tests.core_world import ROOT
from tests.unit.iceberg_examples import LOCATION, metadata
from tests.unit.test_iceberg_machine import (
    EVENTS,
    OTHER,
    IcebergWorld,
    rounds_of_looks,
    set_property,
)

_PLACE = f"{ROOT}/ice/events/metadata/00001-x.metadata.json"


class ReferenceWorld(IcebergWorld):
    """Lets metadata files be read."""

    def observe(self, wanted: Wanted) -> Found:
        if not isinstance(wanted, BytesWanted):
            return super().observe(wanted)
        data = self.files.get(f"{wanted.location}/{wanted.path}")
        if data is None:
            return Found(Observation(wanted.path, -1), error="there is no such file")
        if wanted.bytes_max and len(data) > wanted.bytes_max:
            return Found(Observation(wanted.path, len(data)), error="it is too large")
        return Found(Observation.of(wanted.path, data), data=data)


@pytest.fixture
def world() -> ReferenceWorld:
    made = ReferenceWorld(rules=Rules(PROTOCOL_SUPPORTED))
    made.ask("ns", CreateNamespace(("db",)))
    return made


def encoded(location: str = f"{ROOT}/ice/events", **members: Any) -> bytes:
    found = json.dumps({**metadata(location=location), **members})
    return found.replace(LOCATION, location).encode()


def asked(
    world: ReferenceWorld, name: tuple[str, ...] = EVENTS, place: str = _PLACE, **members: Any
) -> IcebergChange:
    location = place.rpartition("/metadata/")[0]
    world.files[place] = encoded(location, **members)
    return register_reference(name, data=world.files[place], metadata_location=place)


@pytest.mark.parametrize("size", [10, 2 * OUTCOME_INLINE_BYTES_MAX])
def test_a_file_is_registered_and_not_needed_again(world: ReferenceWorld, size: int) -> None:
    change = asked(world, properties={"long": "x" * size})
    outcome = world.ask("r", change)
    assert outcome.status is Status.COMMITTED
    (delta,) = (result.delta for result in outcome.results)
    assert delta is not None
    assert (delta.inline is None) is (size > OUTCOME_INLINE_BYTES_MAX)
    assert len(change.updates) < 1_000
    table = world.machine.iceberg.tables[EVENTS]
    assert (table.metadata_location, len(table.properties["long"])) == (_PLACE, size)
    world.files.clear()
    assert world.ask("p", set_property(a="1")).status is Status.COMMITTED
    world.check_replay()


def test_many_files_are_looked_at_in_one_round(
    world: ReferenceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuids = [f"0199a000-0000-4000-8000-{number:012d}" for number in range(50)]
    changes = [
        asked(world, ("db", uuid), f"{ROOT}/ice/{uuid}/metadata/x.metadata.json", **{
            "table-uuid": uuid
        })
        for uuid in uuids
    ]  # fmt: skip
    rounds = rounds_of_looks(monkeypatch)
    assert world.ask("many", *changes).status is Status.COMMITTED
    assert rounds[:2] == [len(changes), 0]


def test_another_file_than_the_one_that_was_named_is_refused(world: ReferenceWorld) -> None:
    change = asked(world)
    world.files[_PLACE] += b" "
    refused = world.ask("longer", change)
    assert (refused.status, refused.code) == (Status.REJECTED, Code.INVALID_OPERATION)
    assert "read it and ask again" in refused.message
    del world.files[_PLACE]
    assert "its size is -1" in world.ask("gone", change).message
    outside = replace(change, updates=change.updates.replace(ROOT, "/elsewhere"))
    assert world.ask("outside", outside).code is Code.LOCATION_NOT_ALLOWED
    short = json.loads(change.updates)
    short[0]["sha256"] = "00"
    assert "SHA-256" in world.ask("short", replace(change, updates=json.dumps(short))).message
    large = json.loads(change.updates)
    large[0]["size"] = ICEBERG_METADATA_BYTES_MAX + 1
    beyond = world.ask("large", replace(change, updates=json.dumps(large)))
    assert beyond.code is Code.INVALID_OPERATION
    world.check_replay()


def test_the_action_in_another_spelling_is_no_reference(world: ReferenceWorld) -> None:
    change = asked(world)
    for number, action in enumerate(("COMMITLOG-REGISTER", "commitlog-\\u0072egister")):
        spelled = change.updates.replace("commitlog-register", action)
        refused = world.ask(f"s{number}", replace(change, updates=spelled))
        assert refused.status is Status.REJECTED
        assert "metadata" in refused.message


def test_earlier_protocols_know_no_references() -> None:
    world = ReferenceWorld(rules=Rules(3))
    world.ask("ns", CreateNamespace(("db",)))
    refused = world.ask("r", asked(world))
    assert refused.status is Status.REJECTED
    assert "updates[0].metadata" in refused.message
    assert not refused.observed


def test_the_log_bounds_updates_and_values_itself(world: ReferenceWorld) -> None:
    asked(world)
    world.ask("r", asked(world))
    update = {"action": "set-properties", "updates": {"a": "b"}}
    most = json.dumps([update] * ICEBERG_UPDATES_MAX)
    assert world.ask("most", IcebergChange(EVENTS, "[]", most)).status is Status.COMMITTED
    over = json.dumps([update] * (ICEBERG_UPDATES_MAX + 1))
    assert "1001 updates" in world.ask("over", IcebergChange(EVENTS, "[]", over)).message
    many = json.dumps([{**update, "ignored": [0] * (JSON_VALUES_MAX // 2 + 1)}])
    both = [IcebergChange(name, "[]", many) for name in (EVENTS, OTHER)]
    assert f"{JSON_VALUES_MAX} values" in world.ask("values", *both).message
    old = ReferenceWorld(rules=Rules(3))
    old.ask("ns", CreateNamespace(("db",)))
    assert "1001 updates" not in old.ask("over", IcebergChange(EVENTS, "[]", over)).message


def test_metadata_that_explodes_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "ICEBERG_METADATA_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(reading, "ICEBERG_METADATA_VALUES_MAX", 10_000)
    compressed = "/x/00001-y.gz.metadata.json"
    bomb = gzip.compress(b" " * 1_000_001)
    assert len(bomb) < 10_000
    for data, place, why in [
        (bomb, compressed, "decompressed"),
        (b"no gzip", compressed, "is not gzip"),
        (bomb[:-9], compressed, "is not gzip"),
        (b"[" + b"{}," * 10_000 + b"{}]", "/x/y.metadata.json", "values"),
        (b"[" * 5_000, "/x/y.metadata.json", "deeper"),
        (encoded()[:-1] + b',"x":' + b"[" * 101 + b"]" * 101 + b"}", "/x/y.json", "deeper"),
    ]:
        with pytest.raises(Invalid, match=why):
            read_table(data, place)
    assert read_table(gzip.compress(encoded()), compressed).location == f"{ROOT}/ice/events"


def _avro(schema: Any, codec: str = "null", *, rows: int = 1, row: Any = None) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema, [row or {}] * rows, codec=codec, sync_interval=1 << 40)
    return out.getvalue()


def test_a_manifest_that_explodes_is_refused_before_it_is_read() -> None:
    text = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]}
    for codec in ("null", "deflate"):
        data = _avro(text, codec, row={"a": "x" * 100_000})
        check_avro(data, 200_000)
        with pytest.raises(UnsupportedFormat, match="decompressed"):
            check_avro(data, 50_000)
    assert len(_avro(text, "deflate", row={"a": "x" * 100_000})) < 1_000
    empty = {"type": "record", "name": "r", "fields": []}
    nulls = {"type": "array", "items": "null"}
    hidden = {"type": "array", "items": {"type": "record", "name": "s", "fields": []}}
    for schema in (
        empty,
        {**empty, "fields": [{"name": "a", "type": nulls}]},
        {**empty, "fields": [{"name": "a", "type": ["null", hidden]}]},
    ):
        row: Any = {"a": []} if schema is not empty else {}
        with pytest.raises(UnsupportedFormat, match="bytes"):
            read_list(_avro(schema, row=row))
    for broken in (b"", b"Obj\x01", b"Obj\x01\xff" * 9, _avro(text, row={"a": "b"})[:-20]):
        with pytest.raises(UnsupportedFormat):
            read_list(broken)
    with pytest.raises(UnsupportedFormat, match="bzip2"):
        check_avro(_avro(text, "bzip2", row={"a": "b"}), 1_000)
