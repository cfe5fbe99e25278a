"""Cases of indices of all kinds, and of fields within structs; of databases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.conformance.lancedb_cases import Cases, all_rows, is_refused, items

lancedb: Any = pytest.importorskip("lancedb")
index: Any = pytest.importorskip("lancedb.index")

INDICES = Cases("python/tests/test_index.py")
NESTED = Cases("python/tests/test_nested_fields.py")
DATABASES = Cases("python/tests/test_db.py")
GUIDES = Cases("python/tests/docs")
ROWS = 256
ODD = ("rowId", "`row-id`", "MetaData.userId", "`meta-data`.`user-id`", "literal.`a.b`")


def many(db: Any, new: str) -> Any:
    """Make a table that any index can be built on."""
    chance = np.random.default_rng(7)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(chance.random(ROWS * 8), pa.float32()), 8)
    rows = {
        "id": range(ROWS),
        "vector": vectors,
        "fsb": pa.array([i.to_bytes(8, "big") for i in range(ROWS)], pa.binary(8)),
        "tags": [[f"tag{i % 2}", "shared"] for i in range(ROWS)],
        "active": [i % 2 == 0 for i in range(ROWS)],
        "data": [f"{i:04} bytes" for i in range(ROWS)],
    }
    return db.create_table(new, pa.table(rows))


def nested(db: Any, new: str, rows: int = ROWS) -> Any:
    """Make a table of fields whose names need care."""
    made = [
        {
            "rowId": i,
            "row-id": i,
            "MetaData": {"userId": i},
            "meta-data": {"user-id": i},
            "literal": {"a.b": i},
            "A": {"userId": i},
            "B": {"userId": i * 10},
            "image": {"embedding": [float(i), 1.0]},
            "payload": {"text": f"document {i}"},
        }
        for i in range(rows)
    ]
    image = pa.struct([("embedding", pa.list_(pa.float32(), 2))])
    table = pa.Table.from_pylist(made)
    at = table.schema.get_field_index("image")
    table = table.set_column(at, "image", pa.array([one["image"] for one in made], image))
    return table if db is None else db.create_table(new, table)


def listed(table: Any) -> list[Any]:
    return sorted((one.name, one.index_type, one.columns) for one in table.list_indices())


@INDICES.named("test_create_scalar_index", "test_create_index_async_returns_done_job")
@GUIDES.named("test_guide_index.test_scalar_index", "test_guide_index.test_scalar_index_async")
def _an_index_is_replaced_kept_and_dropped(db: Any, new: str) -> Any:
    made = many(db, new)
    made.create_index("id", config=index.BTree())
    made.create_index("id", config=index.BTree(), replace=True)
    assert is_refused(
        lambda: made.create_index("id", config=index.BTree(), replace=False), "already exists"
    )
    made.create_index_async("active", config=index.Bitmap()).wait()
    found = listed(made)
    assert made.index_stats("nope") is None
    made.drop_index("id_idx")
    assert is_refused(lambda: made.drop_index("id_idx"), "not found")
    made.drop_index("active_idx")
    assert listed(made) == []
    return found


@INDICES.named(
    *("test_create_fixed_size_binary_index", "test_create_fm_index", "test_create_bitmap_index"),
    *("test_create_label_list_index", "test_create_large_list_label_list_index"),
    *("test_full_text_search_index", "test_create_label_list_index_rejects_list_struct"),
)
def _scalars_of_all_kinds_are_indexed(db: Any, new: str) -> Any:
    made = many(db, new)
    for column, config in (
        ("fsb", index.BTree()),
        ("data", index.Fm()),
        ("active", index.Bitmap()),
        ("tags", index.LabelList()),
    ):
        made.create_index(column, config=config)
    assert "ScalarIndexQuery" in made.search().where("active = TRUE").explain_plan()
    assert "ScalarIndexQuery" in made.search().where("array_has(tags, 'tag0')").explain_plan()
    found = listed(made)
    stats = made.index_stats("active_idx")
    made.create_index("tags", config=index.FTS(with_position=False))
    made.prewarm_index("tags_idx")
    assert is_refused(lambda: made.prewarm_index("nope"), "not found")
    assert made.search("tag0", query_type="fts").to_arrow().num_rows == 10
    large = pa.table({"tags": pa.array([["x"], ["y"]], pa.large_list(pa.string()))})
    other = db.create_table(f"{new}_l", large)
    other.create_index("tags", config=index.LabelList())
    assert other.search().where("array_has(tags, 'x')").to_arrow().num_rows == 1
    structs = db.create_table(f"{new}_s", [{"tags": [{"a": "b"}]}])
    assert is_refused(lambda: structs.create_index("tags", config=index.LabelList()))
    return found, (stats.index_type, stats.num_indexed_rows, stats.num_unindexed_rows)


@INDICES.named(
    *("test_create_vector_index", "test_create_4bit_ivfpq_index", "test_create_ivfrq_index"),
    *("test_create_hnswsq_index", "test_create_hnswsq_alias_index", "test_create_ivfsq_index"),
    *("test_create_hnswflat_index", "test_create_hnswflat_alias_index"),
)
@GUIDES.named("test_guide_index.test_ann_index", "test_guide_index.test_ann_index_async")
def _vectors_are_indexed_in_all_ways(db: Any, new: str) -> Any:
    made = many(db, new)
    vector = made.search().limit(1).to_list()[0]["vector"]
    found = []
    for config in (
        index.IvfPq(),  # how a vector is quantized is the database's choice
        index.IvfPq(num_partitions=2, num_sub_vectors=2),
        index.IvfPq(num_bits=4, num_partitions=2, num_sub_vectors=2),
        index.IvfRq(num_bits=1, num_partitions=2),
        index.IvfSq(num_partitions=2),
        index.HnswSq(num_partitions=1),
        index.HnswFlat(num_partitions=1),
    ):
        made.create_index("vector", config=config)
        stats = made.index_stats("vector_idx")
        found.append((listed(made), stats.index_type, stats.distance_type, stats.num_indexed_rows))
        assert len(made.search(vector).limit(3).to_list()) == 3
    assert is_refused(
        lambda: made.create_index("vector", config=index.IvfSq(), replace=False), "already exists"
    )
    return found


@INDICES.named("test_create_ivf_index_reports_unsplittable_partitions")
def _vectors_that_are_all_alike_make_no_partitions(db: Any, new: str) -> Any:
    same = [[float(row == i) for i in range(4)] for row in range(4)] * 100
    made = db.create_table(new, pa.table({"vector": pa.array(same, pa.list_(pa.float32(), 4))}))
    wanted = index.IvfFlat(distance_type="dot", num_partitions=300, max_iterations=5)
    assert is_refused(lambda: made.create_index("vector", config=wanted), "partitions")
    assert listed(made) == []


@INDICES.named("test_create_nested_scalar_index_lists_canonical_paths")
@NESTED.named(
    *("test_top_level_camelcase_field", "test_top_level_hyphenated_field_escaped"),
    *("test_struct_leaf_literal_dot_field_escaped", "test_nested_mixed_case_path"),
    *("test_nested_hyphenated_path_escaped", "test_filter_on_nested_mixed_case"),
    *("test_append_and_list_indices_stable", "test_same_name_leaves_are_distinct"),
    "test_index_stats_canonical_path",
)
def _fields_are_indexed_by_their_whole_paths(db: Any, new: str) -> Any:
    made = nested(db, new)
    for number, path in enumerate((*ODD, "A.userId", "B.userId")):
        made.create_scalar_index(path, name=f"i{number}")
    made.add(nested(None, "", 4))
    assert [columns for _, _, columns in listed(made)] == [
        [p] for p in (*ODD, "A.userId", "B.userId")
    ]
    assert made.index_stats("i2").num_indexed_rows == ROWS
    assert made.index_stats("i2").num_unindexed_rows == 4
    found = [len(made.search().where(f"{path} = 42").to_list()) for path in ODD]
    assert found == [1] * len(ODD)
    return listed(made)


@NESTED.named(
    *("test_nested_vector_index_full_path", "test_nested_vector_search"),
    *(
        "test_nested_vector_index_stats",
        "test_nested_fts_index_full_path",
        "test_nested_fts_search",
    ),
)
def _vectors_and_words_within_structs_are_indexed(db: Any, new: str) -> Any:
    made = nested(db, new)
    vectors = index.IvfPq(num_partitions=1, num_sub_vectors=1)
    made.create_index("image.embedding", config=vectors, name="vectors")
    made.create_index("payload.text", config=index.FTS(with_position=False), name="words")
    near = made.search([7.0, 1.0], vector_column_name="image.embedding").limit(3).to_list()
    assert len(near) == 3
    found = made.search("44", query_type="fts").to_list()
    assert [row["payload"]["text"] for row in found] == ["document 44"]
    made.add(nested(None, "", 4))
    stats = [made.index_stats(name) for name in ("vectors", "words")]
    assert [(s.num_indexed_rows, s.num_unindexed_rows) for s in stats] == [(ROWS, 4)] * 2
    return listed(made)


@DATABASES.named("test_basic", "test_open_table", "test_open_table_sync")
def _a_table_is_opened_by_its_name(db: Any, new: str) -> Any:
    rows = [{"vector": [3.1, 4.1], "item": "foo"}, {"vector": [5.9, 26.5], "item": "bar"}]
    made = db.create_table(new, rows)
    assert [row["item"] for row in made.search([100, 100]).limit(1).to_list()] == ["bar"]
    assert new in list(db.table_names(limit=10_000))
    again = db.open_table(new)
    assert (again.name, again.count_rows()) == (new, 2)
    assert is_refused(lambda: db.open_table(f"{new}_none"), "not found")


@DATABASES.named(
    "test_ingest_iterator",
    "test_create_table_from_iterator",
    "test_create_table_from_iterator_async",
)
def _rows_come_from_iterators(db: Any, new: str) -> Any:
    schema = pa.schema([("vector", pa.list_(pa.float32(), 2)), ("id", pa.int64())])

    def batches() -> Any:
        for i in range(5):
            yield pa.RecordBatch.from_pylist([{"vector": [i, 1.0], "id": i}], schema=schema)

    made = db.create_table(new, batches(), schema=schema)
    made.add(batches())
    assert made.count_rows() == 10
    return all_rows(made, "id").schema


@DATABASES.named("test_table_names", "test_table_names_async")
def _names_come_in_pages(db: Any, new: str) -> Any:
    names = [f"{new}_{i}" for i in range(5)]
    for name in reversed(names):
        db.create_table(name, [{"id": 1}])
    pages, token = [], f"{new}_"
    while page := list(db.table_names(page_token=token, limit=2)):
        pages += [name for name in page if name.startswith(new)]
        token = page[-1]
    assert pages == names


@DATABASES.named(
    "test_create_mode",
    "test_create_mode_async",
    "test_create_exist_ok",
    "test_create_exist_ok_async",
)
def _modes_of_making_a_table(db: Any, new: str) -> Any:
    items(db, new)
    assert is_refused(lambda: items(db, new), "already exists")
    assert is_refused(lambda: db.create_table(new, [{"id": 1}], mode="no mode"))
    schema = db.open_table(new).schema
    assert db.create_table(new, schema=schema, exist_ok=True).count_rows() == 2
    over = db.create_table(new, [{"id": 1}], mode="overwrite")
    assert (over.count_rows(), over.schema.names) == (1, ["id"])


@DATABASES.named("test_delete_table", "test_drop_table_async", "test_drop_table_async_connection")
def _a_table_is_dropped_and_made_again(db: Any, new: str) -> Any:
    items(db, new)
    db.drop_table(new)
    assert is_refused(lambda: db.open_table(new), "not found")
    assert is_refused(lambda: db.drop_table(new))
    assert items(db, new).count_rows() == 2


@DATABASES.named("test_empty_or_nonexistent_table")
def _nothing_makes_no_table(db: Any, new: str) -> Any:
    assert is_refused(lambda: db.create_table(new))
    assert is_refused(lambda: db.open_table(f"{new}_none"))
    made = db.create_table(new, schema=pa.schema([("a", pa.int32())]))
    assert made.count_rows() == 0


@DATABASES.named("test_replace_index", "test_prefilter_with_index", "test_bypass_vector_index_sync")
def _indices_are_replaced_and_passed_by(db: Any, new: str) -> Any:
    made = many(db, new)
    config = index.IvfPq(num_partitions=2, num_sub_vectors=2)
    made.create_index("vector", config=config)
    made.create_index("vector", config=config, replace=True)
    assert is_refused(
        lambda: made.create_index("vector", config=config, replace=False), "already exists"
    )
    vector = made.search().where("id = 9").to_list()[0]["vector"]
    assert made.search(vector).where("id > 200").limit(5).to_arrow().num_rows == 5
    exact = made.search(vector).bypass_vector_index()
    assert "ANN" not in exact.explain_plan(True)
    assert exact.limit(1).to_list()[0]["id"] == 9


@DATABASES.named("test_create_table_with_invalid_names")
def _names_are_checked(db: Any, new: str) -> Any:
    for wrong in (f"{new}/a", f"{new}@a", f"{new}$$a"):
        assert is_refused(lambda: db.create_table(wrong, [{"id": 1}]))  # noqa: B023
    assert db.create_table(f"{new}.a-b_c", [{"id": 1}]).count_rows() == 1


@DATABASES.named("test_local_namespace_operations", "test_namespace_client_operations")
def _namespaces_are_made_listed_and_dropped(db: Any, new: str) -> Any:
    db.create_namespace([new])
    assert new in db.list_namespaces(limit=10_000).namespaces
    db.create_namespace([new, "inner"])
    assert db.list_namespaces([new]).namespaces == ["inner"]
    db.create_table("t", [{"id": 1}], namespace_path=[new, "inner"])
    assert list(db.table_names(namespace_path=[new, "inner"])) == ["t"]
    assert db.open_table("t", namespace_path=[new, "inner"]).count_rows() == 1
    assert is_refused(lambda: db.drop_namespace([new, "inner"]))
    db.drop_table("t", namespace_path=[new, "inner"])
    db.drop_namespace([new, "inner"])
    db.drop_namespace([new])
    assert new not in db.list_namespaces(limit=10_000).namespaces


@DATABASES.named(
    *("test_create_namespace_invalid_mode_raises", "test_drop_namespace_invalid_mode_raises"),
    "test_drop_namespace_invalid_behavior_raises",
)
def _settings_of_namespaces_are_checked(db: Any, new: str) -> Any:
    assert is_refused(lambda: db.create_namespace([new], mode="no mode"))
    db.create_namespace([new], mode="create")
    assert is_refused(lambda: db.drop_namespace([new], mode="no mode"))
    assert is_refused(lambda: db.drop_namespace([new], behavior="no behavior"))
    db.drop_namespace([new])


@INDICES.named("test_create_index_with_binary_vectors")
def _vectors_of_bits_are_indexed(db: Any, new: str) -> Any:
    kind = pa.list_(pa.uint8(), 16)
    rows = pa.table({"id": range(ROWS), "vector": pa.array([[i] * 16 for i in range(ROWS)], kind)})
    made = db.create_table(new, rows)
    config = index.IvfFlat(distance_type="hamming", num_partitions=10)
    made.create_index("vector", config=config)
    found = [made.search([i] * 16).limit(1).to_list()[0]["id"] for i in range(0, ROWS, 37)]
    assert found == list(range(0, ROWS, 37))
    stats = made.index_stats("vector_idx")
    return stats.index_type, stats.distance_type, stats.num_indexed_rows
