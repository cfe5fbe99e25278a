"""The machine commits nothing that Lance couldn't open, from protocol 4 on."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from pyroaring import BitMap

from commitlog.core.decisions import Refused
from commitlog.core.lance.new_version import check_header
from commitlog.core.lance.operation_check import operation_problem
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import DeltaRefused
from commitlog.core.manifest.roaring import portable
from commitlog.core.manifest.row_lineage import check_lineage, new_row_lineage
from commitlog.core.schema_check.index_entries import index_problem
from commitlog.core.schema_check.messages import fragments_problem
from commitlog.core.schema_check.schema import format_problem, schema_problem
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import (
    DataFragment,
    DataOverlayFile,
    FragmentReuseIndexDetails,
    IndexMetadata,
    Manifest,
)
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.limits import NAMES_CHECKED_SINCE, Rules
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    CreateTable,
    DeclareTable,
    DropTable,
    IcebergChange,
    Operation,
    RenameTable,
)
from tests.core_world import FORMAT, ROOT, World, append, column, commit, delete, new_fragment

BEFORE, SINCE = Rules(NAMES_CHECKED_SINCE - 1), Rules(NAMES_CHECKED_SINCE)


def made(rules: Rules) -> World:
    world = World(rules=rules)
    world.create()
    world.ask("first", append(1, "first.lance"))
    return world


def config(key: str) -> Operation:
    message = LanceMessage(read_version=2, uuid="u")
    message.update_config.config_updates.update_entries.add(key=key, value="x")
    return commit(message)


def schema_config(key: str) -> Operation:
    message = LanceMessage(read_version=2, uuid="u")
    message.update_config.schema_metadata_updates.update_entries.add(key=key, value="arrow.uuid")
    return commit(message)


def table(name: str, *fields: bytes) -> CreateTable:
    place = f"{ROOT}/{name}".replace("\0", "")
    return CreateTable((name,), "i", place, fields, data_storage_version=FORMAT)


BAD: dict[str, tuple[Operation, str]] = {
    "column": (table("x", column("a\0", 0)), "WRONG_SCHEMA"),
    "reserved": (table("x", column("_rowid", 0)), "WRONG_SCHEMA"),
    "type": (table("x", column("a", 0, "int65")), "WRONG_SCHEMA"),
    "table": (table("x\0", column("a", 0)), "INVALID_OPERATION"),
    "location": (DeclareTable(("x",), "i", f"{ROOT}/a\nb"), "LOCATION_NOT_ALLOWED"),
    "long": (DeclareTable(("x",), "i", f"{ROOT}/{'x' * 256}"), "LOCATION_NOT_ALLOWED"),
    "rename": (RenameTable(("t",), ("\x7f",)), "INVALID_OPERATION"),
    "namespace": (CreateNamespace(("a\nb",)), "INVALID_OPERATION"),
    "property": (AlterProperties(("t",), upserts=(("\0", ""),)), "INVALID_OPERATION"),
    "config": (config("a\0b"), "INVALID_OPERATION"),
    "schema key": (schema_config("ARROW:extension:name"), "INVALID_OPERATION"),
    "empty struct before others": (
        CreateTable(
            ("x",),
            "i",
            f"{ROOT}/x",
            (column("e", 0, "struct"), column("i", 1)),
            data_storage_version="2.1",
        ),
        "WRONG_SCHEMA",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_names_are_refused_from_protocol_4_on(name: str) -> None:
    operation, code = BAD[name]
    outcome = made(SINCE).ask("x", operation)
    assert (outcome.status, outcome.code) == ("rejected", code), outcome.message
    assert len(outcome.message) < 400
    # Logs of older protocols hold such commits, and decide them again as they did.
    assert made(BEFORE).ask("x", operation).status == "committed"


@pytest.mark.parametrize(
    ("fields", "storage_version", "is_bad"),
    [
        (["struct", "int32"], "2.0", False),
        (["struct", "int32"], "2.2", True),
        (["int32", "struct"], "2.2", False),
        (["map"], "2.1", True),
        (["map"], "2.2", False),
    ],
)
def test_what_lance_cannot_write_or_would_misread_in_a_file_format(
    fields: list[str], storage_version: str, is_bad: bool
) -> None:
    read = [Field.FromString(column(f"c{i}", i, kind)) for i, kind in enumerate(fields)]
    assert (format_problem(read, storage_version) is not None) is is_bad


@pytest.mark.parametrize("kind", ["list", "large_list"])
def test_a_list_says_whether_its_item_is_a_struct(kind: str) -> None:
    for name, item, is_bad in (
        (kind, "int64", False),
        (kind, "struct", True),
        (f"{kind}.struct", "int64", True),
        (f"{kind}.struct", "struct", False),
    ):
        fields = [Field.FromString(column("a", 0, name)), Field.FromString(column("item", 1, item))]
        fields[1].parent_id = 0
        if item == "struct":
            fields.append(Field.FromString(column("x", 2)))
            fields[2].parent_id = 1
        assert (schema_problem(fields) is not None) is is_bad, (name, item)


def test_fragments_and_overlays_are_read_in_all_their_parts() -> None:
    fragment, overlay = new_fragment("a.lance"), DataOverlayFile()
    overlay.field_coverage.offset_bitmaps.append(portable(BitMap([1])))
    fragment.overlays.append(overlay)
    assert fragments_problem([fragment]) is None
    for name in ("row_ids", "created_at_versions", "last_updated_at_versions"):
        broken = DataFragment(id=1)
        setattr(broken, f"inline_{name}", b"\xff")
        assert fragments_problem([fragment, broken]) is not None, name
    for rubbish in ("shared", "by field"):
        broken = new_fragment("b.lance")
        broken.overlays.append(overlay)
        if rubbish == "shared":
            broken.overlays[0].shared_offset_bitmap = b"\xff"
        else:
            broken.overlays[0].field_coverage.offset_bitmaps.append(b"\xff")
        assert fragments_problem([fragment, broken]) is not None, rubbish


def test_a_field_that_is_there_twice_is_a_change_of_the_schema() -> None:
    field = Field.FromString(column("a", 0))
    once, twice = (ManifestHeader.of(Manifest(fields=[field] * n)) for n in (1, 2))
    check_header(once, once, "t", renumbers_fields=False)
    with pytest.raises(Refused, match="operation_unusable"):
        check_header(once, twice, "t", renumbers_fields=False)


@pytest.mark.parametrize(("mark", "is_bad"), [(-2, True), (0, True), (1, False), (2**31 - 1, True)])
def test_the_last_field_id_given_is_one_of_a_field_or_later(mark: int, is_bad: bool) -> None:
    fields = [Field.FromString(column(f"c{i}", i)) for i in range(2)]
    before = ManifestHeader.of(Manifest(fields=fields))
    after = ManifestHeader.of(Manifest(fields=fields, max_allocated_field_id=mark))
    if not is_bad:
        check_header(before, after, "t", renumbers_fields=False)
        return
    with pytest.raises(Refused, match="operation_unusable|field_id_mark_unusable"):
        check_header(before, after, "t", renumbers_fields=False)


@pytest.mark.parametrize(("rows", "is_bad"), [(4, False), (3, True), (0, True)])
def test_stable_rows_all_have_a_version(rows: int, is_bad: bool) -> None:
    fragment = DataFragment.FromString(new_row_lineage(0, 4, 1))
    fragment.physical_rows = 4
    made = DataFragment.FromString(new_row_lineage(0, rows, 1))
    fragment.inline_created_at_versions = made.inline_created_at_versions
    if not is_bad:
        check_lineage(fragment, is_stable=True)
        return
    with pytest.raises(DeltaRefused):
        check_lineage(fragment, is_stable=True)


def test_a_table_with_a_bad_name_can_be_dropped() -> None:
    world = made(BEFORE)
    assert world.ask("x", BAD["table"][0]).status == "committed"
    world.machine.rules = SINCE
    assert world.ask("y", DropTable(("x\0",))).status == "committed"


def test_a_bad_column_from_before_stays_usable_as_far_as_it_is() -> None:
    world = made(BEFORE)
    world.ask("x", table("x", column("a.b", 0)))
    world.machine.rules = SINCE
    assert world.ask("y", append(1, "a.lance", table=("x",))).status == "committed"


@pytest.mark.parametrize("field", ["new_indices", "removed_indices"])
def test_a_set_of_fragments_that_is_none(field: str) -> None:
    message = LanceMessage(read_version=2, uuid="u")
    index = getattr(message.create_index, field).add(name="i", fields=[0], fragment_bitmap=b"\xff")
    index.uuid.uuid = b"x" * 16
    assert made(SINCE).ask("x", commit(message)).code == "INVALID_OPERATION"


@pytest.mark.parametrize("part", ["column", "schema_metadata", "config", "fragments", "nothing"])
def test_all_that_an_overwrite_brings_is_looked_at_beforehand(part: str) -> None:
    message = LanceMessage(read_version=2, uuid="u")
    body = message.overwrite
    body.schema.append(Field.FromString(column("a\0" if part == "column" else "a", 0)))
    body.fragments.append(new_fragment("a.lance"))
    if part == "schema_metadata":
        body.schema_metadata["ARROW:extension:name"] = b"arrow.uuid"
    elif part == "config":
        body.config_upsert_values["a\0b"] = "x"
    elif part == "fragments":
        body.fragments[0].inline_row_ids = b"\xff"
    problem = operation_problem(commit(message), message)
    assert (problem is None) is (part == "nothing")


def test_a_deletion_file_that_is_not_there() -> None:
    for rules, status in ((BEFORE, "committed"), (SINCE, "rejected")):
        world = made(rules)
        operation = delete(world, 2, {0: [1]}, with_rows=False)
        world.vectors.clear()
        outcome = world.ask("x", operation)
        assert outcome.status == status, outcome.message
        assert rules is BEFORE or outcome.code == "MISSING_FILE"


def test_a_merge_brings_no_fragment_id_that_leaves_no_room_for_others() -> None:
    """Lance counts on from the highest one, with 32 bits."""
    for rules, status in ((BEFORE, "committed"), (SINCE, "rejected")):
        world = made(rules)
        message = LanceMessage(read_version=2, uuid="u")
        body, state = message.merge, world.state()
        body.schema.extend(state.header.message.fields)
        body.fragments.extend(DataFragment.FromString(f) for f in state.fragments.values())
        body.fragments.append(new_fragment("more.lance"))
        body.fragments[-1].id = 2**32 - 1
        outcome = world.ask("x", commit(message))
        assert outcome.status == status, outcome.message
        assert rules is BEFORE or "max_fragment_id would be 4294967295" in outcome.message


def test_an_overwrite_that_keeps_files_keeps_the_types_of_their_fields() -> None:
    for kind, status in (("int64", "committed"), ("string", "rejected")):
        world = made(SINCE)
        message = LanceMessage(read_version=2, uuid="u")
        body, state = message.overwrite, world.state()
        body.schema.append(Field.FromString(column("c0", 0, kind)))
        body.fragments.extend(DataFragment.FromString(f) for f in state.fragments.values())
        outcome = world.ask("x", commit(message))
        assert outcome.status == status, outcome.message
        assert status == "committed" or "another type or encoding than its files" in outcome.message


def test_a_table_does_not_go_back_to_the_oldest_file_format() -> None:
    """Lance writes newer files, and reads no table of both."""
    message = Manifest(version=2, fields=[Field.FromString(column("id", 0, "int64"))])
    message.data_format.CopyFrom(Manifest.DataStorageFormat(file_format="lance", version="2.2"))
    before = ManifestHeader(message.SerializeToString())
    for version, is_bad in (("2.1", False), ("0.1", True), ("", True)):
        message.data_format.version = version
        after = ManifestHeader(message.SerializeToString())
        with pytest.raises(Refused) if is_bad else nullcontext():
            check_header(before, after, "t", renumbers_fields=True)


def entry(name: str, details: bytes | None) -> IndexMetadata:
    index = IndexMetadata(name=name)
    index.uuid.uuid = b"x" * 16
    if details is not None:
        index.index_details.type_url = "/lance.table.FragmentReuseIndexDetails"
        index.index_details.value = details
    return index


@pytest.mark.parametrize(
    ("covering", "is_bad"),
    [([], False), ([1], False), ([0], False), ([0, 1], True), ([1, 1], True), ([2], True)],
)
def test_an_index_covers_some_of_its_fields_and_not_all(covering: list[int], is_bad: bool) -> None:
    index = entry("by_id", None)
    index.fields.extend([0, 1])
    index.covering_fields.extend(covering)
    assert (index_problem(index) is not None) is is_bad


def test_reuse_details_that_lance_cannot_open() -> None:
    name = "__lance_frag_reuse"
    inline = FragmentReuseIndexDetails()
    inline.inline.legacy_versions.add().groups.add(changed_row_addrs=b"rubbish")
    for details in (None, b"", b"\xff\xff", inline.SerializeToString()):
        assert index_problem(entry(name, details))
    inline.inline.legacy_versions[0].groups[0].changed_row_addrs = bytes(8)
    assert not index_problem(entry(name, inline.SerializeToString()))
    assert index_problem(entry("__lance_mem_wal", None))
    assert index_problem(entry("__lance_other", None))


@pytest.mark.parametrize(
    "update",
    [
        {"action": "add-schema", "schema": {"type": "struct", "fields": [{"name": "a\0b"}]}},
        {"action": "set-properties", "updates": {"a\0b": "x"}},
    ],
)
def test_names_in_iceberg_updates(update: dict[str, Any]) -> None:
    change = IcebergChange(("i",), "[]", json.dumps([update]))
    problem = operation_problem(change, None)
    assert problem is not None
    assert problem.value == "a\0b"
    text = json.dumps([update]).replace("\\u0000", "")
    assert operation_problem(IcebergChange(("i",), "[]", text), None) is None
