"""LanceDB's own remote client, unmodified, against a server that asks for keys.

`lancedb_cases` has what the client does here as it does to a database of its own on disk.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Security
from consumers.servers.server import ServerSettings
from tests.namespace_world import World

lancedb: Any = pytest.importorskip("lancedb")
index: Any = pytest.importorskip("lancedb.index")
query: Any = pytest.importorskip("lancedb.query")
remoting: Any = pytest.importorskip("lancedb.remote")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
KEY = "alice-0123456789abcdef"
WAIT = datetime.timedelta(seconds=60)
VECTOR = [0.1, 0.2, 0.3, 0.4]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("remote")
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    access = (
        f'[keys]\nalice = "sha256:{digest}"\n[[grants]]\nto = "alice"\non = "$"\ncan = "admin"\n'
    )
    (root / "access.toml").write_text(access)
    security = Security(AccessFile(root / "access.toml"))
    made = World(root, server=ServerSettings(security=security))
    yield made
    made.close()


@pytest.fixture
def remote(world: World) -> Any:
    return lancedb.connect("db://anything", api_key=KEY, host_override=world.uri)


@pytest.fixture
def name(world: World) -> str:
    return world.fresh_name()


def rows(first: int, last: int) -> pa.Table:
    chance = np.random.default_rng(first)
    count = last - first
    vectors = pa.array(chance.random(count * 4), pa.float32())
    return pa.table(
        {
            "id": pa.array(range(first, last), pa.int64()),
            "text": [f"word{i % 7} common text" for i in range(first, last)],
            "vector": pa.FixedSizeListArray.from_arrays(vectors, 4),
            "at": pa.array([datetime.datetime(2020, 1, 1)] * count, pa.timestamp("us", "UTC")),
            "price": pa.array([i % 5 for i in range(count)], pa.decimal128(10, 2)),
            "day": pa.array([i % 5 for i in range(count)], pa.date32()),
            "kind": pa.array([f"k{i % 3}" for i in range(count)], pa.large_string()),
            "nested": [{"a": i, "b": [i, i]} for i in range(count)],
        }
    )


def ids(found: Any) -> list[int]:
    return sorted(found.to_arrow().column("id").to_pylist())


def all_ids(table: Any) -> list[int]:
    return ids(table.search().select(["id"]).limit(100_000))


def test_wrong_keys_are_refused(world: World) -> None:
    stranger = lancedb.connect("db://x", api_key="mallory-0123456789", host_override=world.uri)
    with pytest.raises(Exception, match="401"):
        stranger.table_names()


def test_the_vectors_that_are_searched_may_be_fields_and_are_told_apart_by_length(
    remote: Any, name: str
) -> None:
    kind = pa.struct([pa.field("embedding", pa.list_(pa.float32(), 2))])
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.eye(4, 3, dtype=np.float32))
    images = pa.array([{"embedding": [float(i), 1.0]} for i in range(4)], kind)
    table = remote.create_table(name, pa.table({"image": images, "id": range(4)}))
    assert ids(table.search([3.0, 1.0]).limit(1)) == [3]
    table.create_index("image.embedding", config=index.IvfFlat(num_partitions=1))
    assert table.list_indices()[0].columns == ["image.embedding"]
    both = remote.create_table(
        f"{name}b", pa.table({"image": images, "t": tensors, "id": range(4)})
    )
    assert ids(both.search([2.0, 1.0]).limit(1)) == [2]
    assert ids(both.search([0.0, 1.0, 0.0]).limit(1)) == [1]
    with pytest.raises(Exception, match="image.embedding.*t"):
        both.search([1.0] * 5).limit(1).to_arrow()
    none = remote.create_table(f"{name}n", pa.table({"id": [1]}))
    with pytest.raises(Exception, match="no vector column"):
        none.search([1.0, 2.0]).limit(1).to_arrow()


def test_branches_have_rows_of_their_own(remote: Any, name: str) -> None:
    table = remote.create_table(name, rows(0, 5))
    branch = table.branches.create("dev")
    assert list(table.branches.list()) == ["dev"]
    with pytest.raises(Exception, match="already exists"):
        table.branches.create("dev")
    assert branch.add(rows(5, 8)).version > 1
    assert branch.delete("id = 0").num_deleted_rows == 1
    assert branch.update(where="id = 1", values={"text": "other"}).rows_updated == 1
    merge = branch.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    counts = merge.execute(rows(7, 10))
    assert (counts.num_updated_rows, counts.num_inserted_rows) == (1, 2)
    branch.add_columns({"double": "id * 2"})
    branch.create_scalar_index("id")
    assert [one.name for one in branch.list_indices()] == ["id_idx"]
    again = table.branches.checkout("dev")
    assert ids(again.search().where("double >= 2").limit(100)) == list(range(1, 10))
    assert "double" in again.schema.names
    assert all_ids(table) == [0, 1, 2, 3, 4]
    assert table.list_indices() == []
    again.tags.create("on_dev", again.version)
    table.tags.delete("on_dev")
    table.branches.delete("dev")
    with pytest.raises(Exception, match="not found"):
        table.branches.checkout("dev")


def test_a_request_that_is_sent_again_is_carried_out_once(world: World, name: str) -> None:
    config = {"retry_config": {"retries": 5, "backoff_factor": 0.01}}
    db = lancedb.connect("db://x", api_key=KEY, host_override=world.uri, client_config=config)
    table = db.create_table(name, rows(0, 5))
    world.faults.path, world.faults.answers = "/update/", ["503", "502"]
    assert table.update(values_sql={"id": "id + 100"}).version == 2
    world.faults.path, world.faults.answers = "/delete/", ["503"]
    assert table.delete("id = 100").num_deleted_rows == 1
    world.faults.path, world.faults.answers = "/add_columns/", ["503"]
    assert table.add_columns({"double": "id * 2"}).version == 4
    world.faults.path = ""
    assert all_ids(table) == [101, 102, 103, 104]


def test_headers_of_a_provider_are_heeded(world: World, name: str) -> None:
    class Keys(remoting.HeaderProvider):  # type: ignore[misc]
        def get_headers(self) -> dict[str, str]:
            return {"x-api-key": KEY, "x-lance-ctx-job": "nightly"}

    db = lancedb.connect(
        "db://x",
        api_key="not-the-one-0123456",
        host_override=world.uri,
        client_config=remoting.ClientConfig(header_provider=Keys()),
    )
    assert db.create_table(name, rows(0, 2)).count_rows() == 2
