"""Names that native code can't carry are refused before anything is appended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog import CommitLog, InvalidTransaction
from commitlog.adapters.memory import MemoryLog
from commitlog.core.schema_check.schema import schema_problem
from commitlog.lancepb.file_pb2 import Field
from commitlog.model.limits import NAME_PARTS_MAX
from commitlog.model.names import (
    column_problem,
    key_problem,
    label_problem,
    location_problem,
    part_problem,
)
from commitlog.model.operations import AlterProperties, CreateNamespace, DeclareTable, RenameTable
from tests.steered_leader import SCHEMA

NUL, LONE = "a\0b", "a\ud800b"


@pytest.fixture
def client(client: CommitLog) -> CommitLog:
    client.create_table("a$t", SCHEMA)
    return client


@pytest.mark.parametrize("check", [column_problem, key_problem, label_problem, part_problem])
def test_every_name_is_text_without_nul_and_bounded(check: Any) -> None:
    assert check(NUL)
    assert check(LONE)
    assert check("x" * 5_000)
    for good in ("x", "é", "\U0001f600", "x" * 255, "two words"):
        assert check(good) is None, good


@pytest.mark.parametrize("part", ["", ".", "..", "a/b", "a\\b", "a$b", "a\nb", "a\x7fb", "x" * 256])
def test_parts_of_table_names(part: str) -> None:
    assert part_problem(part)


@pytest.mark.parametrize("name", ["", "a.b", "a`b", "_rowid", "_row_last_updated_at_version"])
def test_top_level_columns_are_named_in_lances_plans(name: str) -> None:
    assert column_problem(name)
    assert not column_problem(name, is_nested=True)


def test_who_names_a_column_with_a_dot_is_told_which_names_are_allowed(client: CommitLog) -> None:
    with pytest.raises(InvalidTransaction, match=r"'a\.b' .*choose a name without them") as refused:
        client.create_table("a$dotted", pa.schema([("a.b", pa.int64())]))
    assert refused.value.field == "column"


def test_locations() -> None:
    assert location_problem("/tables/" + "é" * 128)
    assert location_problem("/tables/a\nb")
    assert location_problem("s3://bucket/" + "x/" * 1_000)
    assert not location_problem("s3://bucket/a%20b/é")


def test_the_client_appends_nothing_that_has_a_bad_name(client: CommitLog, log: MemoryLog) -> None:
    end = log.read_transactions(0).end_offset()
    column = lance.LanceOperation.UpdateConfig(
        config_updates=lance.LanceOperation.UpdateMap({NUL: "x"}, replace=False)
    )
    reserved = pa.schema([("_rowid", pa.int64())])
    create, submit = client.create_table, client.submit
    tries: list[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        ("table", create, ("a\nb", SCHEMA), {}),
        ("table", create, (LONE, SCHEMA), {}),
        ("column", create, ("x", pa.schema([(NUL, pa.int64())])), {}),
        ("column", create, ("x", pa.schema([("a.b", pa.int64())])), {}),
        ("column", create, ("x", reserved), {}),
        ("properties", create, ("x", SCHEMA), {"properties": {NUL: ""}}),
        ("properties", create, ("x", SCHEMA), {"properties": {"k": LONE}}),
        ("location", create, ("x", SCHEMA), {"location": "/tmp/" + "x" * 256}),
        ("metadata key", create, ("x", SCHEMA.with_metadata({NUL: "x"})), {}),
        ("metadata key", submit, ("a$t", column), {}),
        ("table", submit, (None, RenameTable(("a", "t"), ("a\x01",))), {}),
        ("namespace", submit, (None, CreateNamespace((LONE,))), {}),
        ("namespace", submit, (None, CreateNamespace(("n",) * (NAME_PARTS_MAX + 1))), {}),
        ("table", create, (("n",) * (NAME_PARTS_MAX + 1), SCHEMA), {}),
        ("table", client.rename_table, ("a$t", "$".join("n" * (NAME_PARTS_MAX + 1))), {}),
        ("properties", submit, (None, AlterProperties(("a", "t"), upserts=(("\0", ""),))), {}),
        ("location", submit, (None, DeclareTable(("d",), "i", "/tmp/a\nb")), {}),
        ("transaction_id", submit, ("a$t", b""), {"transaction_id": LONE}),
        (
            "properties",
            client.append,
            ("a$t", {"id": [1], "v": ["a"]}),
            {"properties": {"k": LONE}},
        ),
    ]
    for field, call, arguments, options in tries:
        with pytest.raises(InvalidTransaction) as caught:
            call(*arguments, **options)
        assert caught.value.field == field, caught.value
        assert caught.value.value is not None
    assert log.read_transactions(0).end_offset() == end


def test_a_long_name_finds_a_place(client: CommitLog) -> None:
    client.create_table(["n" * 255, "t" * 255], SCHEMA)
    client.append(["n" * 255, "t" * 255], {"id": [1], "v": ["a"]})
    assert client.open(["n" * 255, "t" * 255]).count_rows() == 1


def field(name: str, kind: str, field_id: int, parent: int = -1, **metadata: bytes) -> Field:
    made = Field(name=name, id=field_id, parent_id=parent, logical_type=kind, nullable=True)
    made.metadata.update({key.replace("__", ":"): value for key, value in metadata.items()})
    return made


@pytest.mark.parametrize(
    "fields",
    [
        [field("a", "int65", 0)],
        [field("a", "list", 0)],
        [field("a", "list", 0), field("b", "int8", 1, 0), field("c", "int8", 2, 0)],
        [field("a", "map", 0), field("b", "int8", 1, 0)],
        [field("a", "fixed_size_list:float:0", 0)],
        [field("a", "fixed_size_list:string:2", 0)],
        [field("a", "fixed_size_list:fixed_size_list:large_binary:3:2", 0)],
        [field("a", "fixed_size_list:dict:string:int8:false:2", 0)],
        [
            field("a", "fixed_size_list:struct:2", 0),
            field("b", "struct", 1, 0),
            field("c", "int8", 2, 1),
        ],
        [field("a", "fixed_size_list:float:2147483648", 0)],
        [field("a", "decimal:128:39:2", 0)],
        [field("a", "timestamp:us", 0)],
        [field("a", "dict:string:string:false", 0)],
        [field("a", "int8", 0), field("b", "int8", 1, 0)],
        [field("a", "struct", 0), field("b", "int8", 1, 7)],
        [field("b", "int8", 1, 0), field("a", "struct", 0)],
        [field("a", "int8", 0), field("a", "int8", 1)],
        [field("a", "int8", 0), field("b", "int8", 0)],
        [field("a", "int8", -1)],
        [field("a", "string", 0, ARROW__extension__name=b"arrow.uuid")],
        [field("a", "string", 0, ARROW__extension__name=b"lance.blob.v2")],
    ],
)
def test_schemas_that_lance_cannot_open(fields: list[Field]) -> None:
    assert schema_problem(fields) is not None


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("x", pa.int64()), ("a.b", pa.map_(pa.string(), pa.date32()))])),
        pa.large_list(pa.list_(pa.float16(), 4)),
        pa.list_(pa.list_(pa.list_(pa.bool_(), 3), 2)),
        pa.list_(pa.binary(3), 2),
        pa.list_(pa.timestamp("us", "UTC"), 2),
        pa.dictionary(pa.int8(), pa.large_string()),
        pa.decimal256(76, -3),
        pa.timestamp("ns", "Europe/Berlin"),
        pa.duration("ms"),
        pa.time64("ns"),
        pa.binary(16),
        pa.uuid(),
        pa.json_(),
        pa.bool8(),
        pa.fixed_shape_tensor(pa.float32(), [2, 3]),
        pa.opaque(pa.int32(), "type", "vendor"),
        pa.struct([]),
        pa.null(),
    ],
    ids=str,
)
def test_schemas_that_lance_writes_pass(kind: pa.DataType) -> None:
    from commitlog.codecs.lance_schema import schema_fields

    fields, _ = schema_fields(pa.schema([pa.field("column", kind)]))
    assert schema_problem(fields) is None
