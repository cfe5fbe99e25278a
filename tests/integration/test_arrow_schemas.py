"""Operations with an Arrow schema, which names columns and has no field ids, mean the names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.fragment import write_fragments

from commitlog import CommitLog, InvalidTransaction
from tests.service import service

T = "shop$people"
POINT = pa.struct([("x", pa.int32()), ("y", pa.int32())])
SCHEMA = pa.schema(
    [("gone", pa.int64()), ("id", pa.int64()), ("p", POINT), ("tags", pa.list_(pa.string()))]
)
KEPT = pa.schema([("more", pa.int64()), ("p", POINT), ("id", pa.int64())])


@pytest.fixture
def client(tmp_path: Path) -> Iterator[CommitLog]:
    """Make a table whose field ids aren't its columns' numbers."""
    with service(tmp_path / "root") as world:
        world.client.create_table(T, SCHEMA)
        world.client.append(T, [{"gone": 0, "id": 1, "p": {"x": 2, "y": 3}, "tags": ["a"]}])
        world.client.drop_columns(T, ["gone"])
        world.client.add_columns(T, {"more": "id + 10"})
        yield world.client


def rows(client: CommitLog) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.open(T).to_table().to_pylist()
    return found


def test_a_project_keeps_the_columns_that_it_names(client: CommitLog) -> None:
    client.submit(T, LanceOperation.Project(KEPT)).result().raise_for_conflict()
    assert rows(client) == [{"more": 11, "p": {"x": 2, "y": 3}, "id": 1}]
    assert client.open(T).schema.names == ["more", "p", "id"]


def test_a_project_of_a_list_whose_items_have_another_name(client: CommitLog) -> None:
    tags = pa.schema([("tags", pa.list_(pa.field("element", pa.string())))])
    client.submit(T, LanceOperation.Project(tags)).result().raise_for_conflict()
    assert rows(client) == [{"tags": ["a"]}]


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (pa.schema([("renamed", pa.int64())]), "renamed"),
        (pa.schema([("p", pa.struct([("x", pa.int32()), ("z", pa.int32())]))]), "z"),
    ],
)
def test_a_project_of_unknown_columns_is_refused(
    client: CommitLog, schema: pa.Schema, name: str
) -> None:
    with pytest.raises(InvalidTransaction, match=f"has no column '{name}'"):
        client.submit(T, LanceOperation.Project(schema))


def test_an_overwrite_takes_files_that_are_numbered_as_its_schema(client: CommitLog) -> None:
    dataset = client.open(T)
    data = pa.Table.from_pylist([{"more": 5, "p": {"x": 6, "y": 7}, "id": 8}], schema=KEPT)
    of_table = write_fragments(data, dataset)
    with pytest.raises(InvalidTransaction, match="numbers its columns from 0 to 4"):
        client.submit(T, LanceOperation.Overwrite(KEPT, of_table))
    with pytest.raises(InvalidTransaction, match="numbers its columns"), client.transact() as block:
        block.submit(T, LanceOperation.Overwrite(KEPT, of_table))
    own = LanceOperation.Overwrite(dataset.lance_schema, of_table)
    client.submit(T, own).result().raise_for_conflict()
    assert rows(client) == [{"id": 8, "p": {"x": 6, "y": 7}, "tags": None, "more": 5}]
    anew = write_fragments(data, dataset, mode="overwrite")
    client.submit(T, LanceOperation.Overwrite(KEPT, anew)).result().raise_for_conflict()
    assert rows(client) == data.to_pylist()
    # From here on, the table and the schema agree, in whatever order the file has the columns.
    turned = write_fragments(data.select(["id", "more", "p"]), client.open(T))
    assert turned[0].files[0].fields[0] == 4
    client.submit(T, LanceOperation.Overwrite(KEPT, turned)).result().raise_for_conflict()
    assert rows(client) == data.to_pylist()
