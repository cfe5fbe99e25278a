"""LanceDB's own remote client, unmodified, against the server: `lancedb.connect("db://…")`.

What it does here is what it does to a database of its own on disk: where an answer has rows, the
same steps are taken on `lancedb.connect(folder)` and compared.
"""

from __future__ import annotations

import datetime
import hashlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
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
def local(tmp_path: Path) -> Any:
    return lancedb.connect(tmp_path / "local")


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


def test_tables_are_made_in_all_modes_listed_renamed_and_dropped(remote: Any, name: str) -> None:
    table = remote.create_table(name, rows(0, 10))
    assert table.count_rows() == 10
    assert table.schema.equals(rows(0, 1).schema)
    assert table.version == 1
    with pytest.raises(ValueError, match="already exists"):
        remote.create_table(name, rows(0, 3))
    assert remote.create_table(name, rows(0, 3), exist_ok=True).count_rows() == 10
    over = remote.create_table(name, rows(5, 8), mode="overwrite")
    assert all_ids(over) == [5, 6, 7]
    empty = remote.create_table(f"{name}e", schema=rows(0, 1).schema)
    assert (empty.count_rows(), empty.schema) == (0, rows(0, 1).schema)
    assert {name, f"{name}e"} <= set(remote.table_names(limit=1000))
    assert remote.table_names(page_token=name, limit=1) == [f"{name}e"]
    assert name in remote.list_tables(limit=1000).tables
    remote.rename_table(name, f"{name}r")
    assert remote.open_table(f"{name}r").count_rows() == 3
    with pytest.raises(ValueError, match="not found"):
        remote.open_table(name)
    for left in (f"{name}r", f"{name}e"):
        remote.drop_table(left)
    with pytest.raises(Exception, match="404"):
        remote.drop_table(name)


def test_namespaces(remote: Any, name: str) -> None:
    remote.create_namespace([name])
    assert name in remote.list_namespaces(limit=1000).namespaces
    table = remote.create_table("t", rows(0, 2), namespace_path=[name])
    table.add(rows(2, 3))
    assert remote.table_names(namespace_path=[name]) == ["t"]
    assert remote.open_table("t", namespace_path=[name]).count_rows() == 3
    remote.drop_table("t", namespace_path=[name])
    remote.drop_namespace([name])


MERGES: tuple[Callable[[Any], Any], ...] = (
    lambda t: t.merge_insert("id").when_matched_update_all().when_not_matched_insert_all(),
    lambda t: t.merge_insert("id").when_matched_update_all(),
    lambda t: t.merge_insert("id").when_not_matched_insert_all(),
    lambda t: t.merge_insert("id").when_matched_update_all(where="target.id > 6"),
    lambda t: (
        t.merge_insert("id").when_not_matched_insert_all().when_not_matched_by_source_delete()
    ),
    lambda t: t.merge_insert("id").when_not_matched_by_source_delete("id < 3"),
    lambda t: t.merge_insert("id").use_index(False).when_not_matched_insert_all(),
)


@pytest.mark.parametrize("number", range(len(MERGES)))
def test_merges_do_what_they_do_locally(remote: Any, local: Any, name: str, number: int) -> None:
    found = []
    for db in (remote, local):
        table = db.create_table(name, rows(0, 10))
        counts = MERGES[number](table).execute(rows(5, 12), timeout=WAIT)
        kept = table.search().limit(1000).to_arrow().sort_by("id")
        found.append(
            (
                counts.num_inserted_rows,
                counts.num_updated_rows,
                counts.num_deleted_rows,
                counts.version,
                kept.column("id").to_pylist(),
                kept.column("vector").to_pylist(),
            )
        )
    assert found[0] == found[1]


def test_writes_tell_their_counts_and_versions(remote: Any, local: Any, name: str) -> None:
    found = []
    for db in (remote, local):
        table = db.create_table(name, rows(0, 10))
        said: list[Any] = [table.add(rows(10, 20)).version]
        said.append(table.add([{**one, "id": 99} for one in rows(0, 1).to_pylist()]).version)
        update = table.update(where="id = 5", values={"text": "other"})
        said += [update.rows_updated, update.version]
        update = table.update(values_sql={"id": "id + 100"}, where="id < 3")
        said += [update.rows_updated, update.version]
        delete = table.delete("id = 6 OR id = 7")
        said += [delete.num_deleted_rows, delete.version]
        said += [table.count_rows(), table.count_rows("id > 100")]
        said.append(table.add(rows(50, 52), mode="overwrite").version)
        found.append((said, all_ids(table)))
    assert found[0] == found[1]


@pytest.fixture(scope="module")
def searched(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    made = []
    remote = lancedb.connect("db://x", api_key=KEY, host_override=world.uri)
    for db in (remote, lancedb.connect(tmp_path_factory.mktemp("searched"))):
        table = db.create_table("searched", rows(0, 300))
        table.create_fts_index("text", with_position=True, replace=True)
        made.append(table)
    made[0].wait_for_index(["text_idx"], WAIT)
    return made[0], made[1]


def _match(words: str) -> Any:
    return query.MatchQuery(words, "text")


SEARCHES: dict[str, Callable[[Any], Any]] = {
    "vector": lambda t: t.search(VECTOR).limit(5),
    "metric": lambda t: t.search(VECTOR).distance_type("cosine").limit(5),
    "prefilter": lambda t: t.search(VECTOR).where("id > 250", prefilter=True).limit(5),
    "postfilter": lambda t: t.search(VECTOR).where("id > 100", prefilter=False).limit(50),
    "range": lambda t: t.search(VECTOR).distance_range(0.01, 0.2).limit(20),
    "offset": lambda t: t.search(VECTOR).limit(5).offset(3),
    "columns": lambda t: t.search(VECTOR).select(["id", "nested"]).limit(5),
    "expression": lambda t: t.search().select({"id": "id * 2"}).where("id < 9").limit(20),
    "filter": lambda t: t.search().where("id BETWEEN 10 AND 20 AND kind = 'k1'").limit(50),
    "everything": lambda t: t.search(),
    "many vectors": lambda t: t.search([VECTOR, [0.9, 0.8, 0.7, 0.6]]).limit(3),
    "words": lambda t: t.search("word3", query_type="fts").limit(10),
    "match": lambda t: t.search(query.MatchQuery("word3", "text")).limit(10),
    "fuzzy": lambda t: t.search(query.MatchQuery("wrod3", "text", fuzziness=2)).limit(10),
    "phrase": lambda t: t.search(query.PhraseQuery("common text", "text")).limit(400),
    "boost": lambda t: t.search(
        query.BoostQuery(query.MatchQuery("common", "text"), query.MatchQuery("word1", "text"))
    ).limit(400),
    "multi": lambda t: t.search(query.MultiMatchQuery("word5", ["text"])).limit(60),
    "both": lambda t: t.search(_match("word2") & _match("common")).limit(60),
    "either": lambda t: t.search(_match("word2") | _match("word4")).limit(99),
    "words filtered": lambda t: t.search("word3", query_type="fts").where("id > 200").limit(50),
    "hybrid": lambda t: t.search(query_type="hybrid").vector(VECTOR).text("word1").limit(10),
    "no index": lambda t: t.search(VECTOR).bypass_vector_index().limit(5),
}


@pytest.mark.parametrize("what", SEARCHES)
def test_searches_find_what_they_find_locally(searched: tuple[Any, Any], what: str) -> None:
    found = []
    for table in searched:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows_found = SEARCHES[what](table).to_arrow()
        found.append((sorted(rows_found.column_names), sorted(rows_found.column("id").to_pylist())))
    assert found[0] == found[1]
    assert found[0][1], "finds something"


def test_row_ids_order_plans_and_timeouts(searched: tuple[Any, Any]) -> None:
    table = searched[0]
    assert "_rowid" in table.search(VECTOR).with_row_id(True).limit(2).to_arrow().column_names
    assert "LanceRead" in table.search(VECTOR).explain_plan(True)
    assert "elapsed" in table.search(VECTOR).limit(2).analyze_plan()
    assert len(table.search(VECTOR).limit(2).to_list(timeout=WAIT)) == 2
    with pytest.raises(Exception, match="400"):
        table.search(VECTOR).where("no such column = 1").limit(1).to_list()


def test_indices_are_made_waited_for_described_replaced_and_dropped(remote: Any, name: str) -> None:
    table = remote.create_table(name, rows(0, 600))
    table.create_scalar_index("id", index_type="BTREE", wait_timeout=WAIT)
    table.create_scalar_index("kind", index_type="BITMAP")
    table.create_fts_index("text", wait_timeout=WAIT)
    table.create_index(
        "l2", vector_column_name="vector", index_type="IVF_PQ", num_partitions=2, num_sub_vectors=2
    )
    table.wait_for_index(["id_idx", "kind_idx", "text_idx", "vector_idx"], WAIT)
    kinds = {one.name: (one.index_type, one.columns) for one in table.list_indices()}
    assert kinds == {
        "id_idx": ("BTree", ["id"]),
        "kind_idx": ("Bitmap", ["kind"]),
        "text_idx": ("FTS", ["text"]),
        "vector_idx": ("IvfPq", ["vector"]),
    }
    stats = table.index_stats("vector_idx")
    assert (stats.num_indexed_rows, stats.num_unindexed_rows) == (600, 0)
    assert (stats.index_type, stats.distance_type) == ("IVF_PQ", "l2")
    assert table.index_stats("nope") is None
    with pytest.raises(Exception, match="already exists"):
        table.create_scalar_index("id", index_type="BTREE")
    table.create_scalar_index("id", index_type="BITMAP", replace=True)
    assert {i.name: i.index_type for i in table.list_indices()}["id_idx"] == "Bitmap"
    table.create_index("cosine", vector_column_name="vector", index_type="IVF_HNSW_SQ")
    assert table.index_stats("vector_idx").distance_type == "cosine"
    table.add(rows(600, 610))
    assert table.index_stats("vector_idx").num_unindexed_rows == 10
    found = table.search(VECTOR).fast_search().nprobes(2).refine_factor(2).ef(1500).limit(700)
    assert max(ids(found)) < 600
    table.drop_index("id_idx")
    with pytest.raises(Exception, match="not found"):
        table.drop_index("id_idx")
    assert table.stats()["num_indices"] == 3


def test_indices_are_made_by_defaults_and_by_all_that_the_client_says(
    remote: Any, name: str
) -> None:
    table = remote.create_table(name, rows(0, 600))
    # How a vector is quantized is the database's choice where the client makes none.
    for config in (index.IvfPq(), index.IvfPq(num_bits=4)):
        table.create_index("vector", config=config)
        assert len(ids(table.search(VECTOR).limit(3))) == 3
    table.create_index("text", config=index.Fm())
    assert [i.index_type for i in table.list_indices() if i.columns == ["text"]] == ["Fm"]
    texts = pa.table({"text": ["lance database", "lance is cool"]})
    grams = remote.create_table(f"{name}g", texts)
    grams.create_index("text", config=index.FTS(base_tokenizer="ngram", block_size=256))
    assert grams.search("nce", query_type="fts").to_arrow().num_rows == 2
    assert grams.list_indices()[0].index_details["block_size"] == 256
    begins = index.FTS(base_tokenizer="ngram", ngram_min_length=2, prefix_only=True)
    grams.create_index("text", config=begins)
    found = [grams.search(one, query_type="fts").to_arrow().num_rows for one in ("la", "nce")]
    assert found == [2, 0]
    grams.create_index("text", config=index.FTS(custom_stop_words=["cool"]))
    found = [grams.search(one, query_type="fts").to_arrow().num_rows for one in ("is", "cool")]
    assert found == [1, 0]
    grams.prewarm_index("text_idx")
    with pytest.raises(Exception, match="not found"):
        grams.prewarm_index("nope")


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


def test_columns_are_added_empty_by_their_types(remote: Any, name: str) -> None:
    table = remote.create_table(name, pa.table({"id": [0, 1]}))
    wanted = [pa.field("x", pa.int64()), pa.field("vector", pa.list_(pa.float32(), 8))]
    assert table.add_columns(wanted).version == 2
    assert table.schema == pa.schema([pa.field("id", pa.int64()), *wanted])
    assert table.search().to_arrow()["vector"].null_count == 2


def test_columns_are_added_altered_and_dropped(remote: Any, name: str) -> None:
    table = remote.create_table(name, rows(0, 5))
    table.add_columns({"double": "id * 2"})
    assert table.search().select(["double"]).to_arrow().column(0).to_pylist() == [0, 2, 4, 6, 8]
    table.alter_columns({"path": "double", "rename": "twice"})
    table.alter_columns({"path": "twice", "data_type": pa.int32()})
    table.alter_columns({"path": "day", "nullable": True})
    assert table.schema.field("twice").type == pa.int32()
    table.drop_columns(["twice"])
    assert "twice" not in table.schema.names
    with pytest.raises(Exception, match="no column 'twice'"):
        table.drop_columns(["twice"])


def test_versions_are_listed_read_tagged_and_restored(remote: Any, name: str) -> None:
    table = remote.create_table(name, rows(0, 5))
    table.add(rows(5, 8))
    table.delete("id = 0")
    assert [one["version"] for one in table.list_versions()] == [1, 2, 3]
    table.checkout(1)
    assert (table.version, table.count_rows(), all_ids(table)) == (1, 5, [0, 1, 2, 3, 4])
    with pytest.raises(Exception, match="checkout_latest"):
        table.add(rows(8, 9))
    table.restore()
    assert (table.version, table.count_rows()) == (4, 5)
    table.restore(2)
    assert (table.version, table.count_rows()) == (5, 8)
    with pytest.raises(ValueError, match="not found"):
        table.checkout(99)
    table.tags.create("one", 1)
    with pytest.raises(Exception, match="already exists"):
        table.tags.create("one", 2)
    assert table.tags.get_version("one") == 1
    assert table.tags.list()["one"]["version"] == 1
    table.checkout("one")
    assert table.count_rows() == 5
    table.checkout_latest()
    table.tags.update("one", 2)
    assert table.tags.get_version("one") == 2
    table.tags.delete("one")
    assert table.tags.list() == {}


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
