"""Cases of tables: made, written to, changed, at other versions and on branches."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.lancedb_cases import Cases, all_rows, is_refused, items, pairs

lancedb: Any = pytest.importorskip("lancedb")
models: Any = pytest.importorskip("lancedb.pydantic")

VECTORS = pa.list_(pa.float32(), 2)
ITEMS = pa.schema([("vector", VECTORS), ("item", pa.string()), ("price", pa.float64())])
NAN = float("nan")

TABLES = Cases("python/tests/test_table.py")
DOCUMENTED = Cases("python/tests/docs")


@TABLES.named("test_input_data_type", "test_create_table")
def _rows_come_in_any_form(db: Any, new: str) -> Any:
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["x", "y", "z"]})
    batch = rows.to_batches()[0]
    forms = (
        rows,
        batch,
        pa.RecordBatchReader.from_batches(batch.schema, [batch]),
        rows.to_pylist(),
    )
    for number, form in enumerate(forms):
        made = db.create_table(f"{new}_{number}", form, schema=rows.schema)
        assert (made.schema, made.count_rows()) == (rows.schema, 3)
        assert all_rows(made) == rows


@TABLES.named("test_create_table_rejects_single_dictionary", "test_add_dictionary")
def _one_dictionary_is_no_list_of_rows(db: Any, new: str) -> Any:
    row = {"vector": [3.0, 4.0], "item": "one", "price": 10.0}
    assert is_refused(lambda: db.create_table(new, row), "list of dictionaries")
    made = db.create_table(new, schema=ITEMS)
    assert is_refused(lambda: made.add(row), "list of dictionaries")


@TABLES.named(
    "test_empty_table", "test_add", "test_add_async", "test_create_table_empty_list_with_schema"
)
def _rows_are_added_to_tables_with_and_without(db: Any, new: str) -> Any:
    empty = db.create_table(f"{new}_e", [], schema=ITEMS)
    assert (empty.count_rows(), empty.schema) == (0, ITEMS)
    full = items(db, new)
    for made, version in ((full, 2), (empty, 2)):
        added = made.add([{"vector": [1.0, 2.0], "item": "three", "price": 30.0}])
        assert added.version == version
    assert [full.count_rows(), empty.count_rows()] == [3, 1]
    return all_rows(full, "price"), full.schema


@TABLES.named("test_create_table_empty_list_no_schema_error")
def _no_rows_and_no_schema_make_no_table(db: Any, new: str) -> Any:
    assert is_refused(lambda: db.create_table(new, []), "schema")


@TABLES.named(
    "test_create_table_infers_large_int_vectors", "test_create_table_async_infers_large_int_vectors"
)
def _whole_numbers_are_vectors_if_their_column_says_so(db: Any, new: str) -> Any:
    made = db.create_table(new, [{"vector": [300, 1]}, {"vector": [0, 2]}])
    assert pa.types.is_fixed_size_list(made.schema.field("vector").type)
    return made.schema, made.search([0, 2]).limit(1).to_list()


@TABLES.named("test_add_write_parallelism", "test_add_write_parallelism_async")
def _many_may_write_one_addition(db: Any, new: str) -> Any:
    made = db.create_table(new, schema=pa.schema([("id", pa.int64())]))
    made.add(pa.table({"id": range(1000)}), write_parallelism=4)
    assert made.count_rows() == 1000
    assert is_refused(lambda: made.add(pa.table({"id": [1]}), write_parallelism=0), "parallelism")


@TABLES.named("test_add_struct")
def _structs_are_put_in_the_order_of_the_schema(db: Any, new: str) -> Any:
    kind = pa.struct([("b", pa.int64()), ("a", pa.int64())])
    made = db.create_table(new, schema=pa.schema([("s", kind), ("l", pa.list_(kind))]))
    made.add([{"s": {"b": 1, "a": 2}, "l": [{"b": 1, "a": 2}, {"b": 4}]}])
    made.add([{"s": {"b": 4}, "l": None}])
    return all_rows(made)


@TABLES.named("test_add_subschema")
def _columns_that_may_be_null_may_be_left_out(db: Any, new: str) -> Any:
    schema = ITEMS.set(2, pa.field("price", pa.float64(), nullable=False))
    made = db.create_table(new, schema=schema)
    made.add([{"price": 1.0, "item": "one"}])
    made.add(pa.table({"price": [2.0], "vector": [[3.0, 4.0]]}))
    assert is_refused(lambda: made.add([{"item": "three"}]))
    made.alter_columns({"path": "price", "nullable": True})
    made.add([{"item": "three"}])
    return all_rows(made), made.schema


@TABLES.named("test_add_nullability")
def _nulls_are_refused_where_none_may_be(db: Any, new: str) -> Any:
    strict = pa.schema([pa.field("id", pa.string(), nullable=False)])
    made = db.create_table(new, schema=strict)
    made.add(pa.table({"id": ["x"]}))
    assert is_refused(lambda: made.add(pa.table({"id": pa.array([None], pa.string())})), "null")
    made.alter_columns({"path": "id", "nullable": True})
    made.add(pa.table({"id": pa.array([None], pa.string())}))
    return all_rows(made)


@TABLES.named("test_add_pydantic_model", "test_create_table_without_data_with_vector_schema")
@DOCUMENTED.named("test_pydantic_integration.test_pydantic_model")
def _models_are_rows_and_come_back_as_such(db: Any, new: str) -> Any:
    class Document(models.LanceModel):  # type: ignore[misc]
        id: str
        vector: models.Vector(2)  # type: ignore[valid-type]
        numbers: list[int]

    made = db.create_table(new, schema=Document, mode="overwrite")
    assert made.schema == Document.to_arrow_schema()
    one = Document(id="x", vector=[0.0, 1.0], numbers=[1, 2])
    assert made.add([one]).version == 2
    assert made.search([0.0, 1.0]).limit(1).to_pydantic(Document) == [one]


@TABLES.named("test_add_overwrite_infers_vector_schema")
def _rows_that_replace_all_have_vectors_as_well(db: Any, new: str) -> Any:
    made = items(db, new)
    added = made.add([{"vector": [1.0, 2.0, 3.0], "item": "x"}], mode="overwrite")
    assert added.version == 2
    assert made.schema.field("vector").type == pa.list_(pa.float32(), 3)


@TABLES.named(
    *("test_add_progress_callback", "test_add_progress_callback_async", "test_add_progress_bool"),
    *("test_add_progress_tqdm_like", "test_add_progress_callback_error"),
)
def _an_addition_tells_how_far_it_is(db: Any, new: str) -> Any:
    made = items(db, new)
    told: list[Any] = []
    row = [{"vector": [1.0, 2.0], "item": "three", "price": 30.0}]
    made.add(row, progress=lambda said: told.append(dict(said)))
    assert told[-1]["done"] is True
    made.add(row, progress=True)

    def fails(said: Any) -> None:
        raise RuntimeError("on purpose")

    made.add(row, progress=fails)
    return made.count_rows(), sorted(told[-1])


@TABLES.named("test_versioning", "test_time_travel", "test_restore")
def _versions_are_gone_back_to_and_restored(db: Any, new: str) -> Any:
    made = items(db, new)
    row = [{"vector": [1.0, 2.0], "item": "three", "price": 30.0}]
    made.add(row)
    assert [one["version"] for one in made.list_versions()] == [1, 2]
    made.checkout(1)
    assert (made.version, made.count_rows()) == (1, 2)
    assert is_refused(lambda: made.add(row))
    assert is_refused(lambda: made.checkout(99))
    made.checkout_latest()
    assert made.count_rows() == 3
    made.restore(1)
    assert (made.version, made.count_rows()) == (3, 2)
    made.checkout(2)
    made.restore()
    assert (made.version, made.count_rows()) == (4, 3)
    made.restore(4)
    assert is_refused(lambda: made.restore(9))
    assert is_refused(lambda: made.restore(0))
    return len(made.list_versions())


@TABLES.named("test_tags", "test_async_tags", "test_restore_with_tags")
def _tags_name_versions(db: Any, new: str) -> Any:
    made = items(db, new)
    made.tags.create("first", 1)
    made.delete("price > 15")
    made.tags.create("second", 2)
    assert is_refused(lambda: made.tags.create("first", 2), "exists")
    assert {name: tag["version"] for name, tag in made.tags.list().items()} == {
        "first": 1,
        "second": 2,
    }
    made.checkout("first")
    assert (made.version, made.count_rows()) == (1, 2)
    made.restore()
    assert made.count_rows() == 2
    made.restore("second")
    assert made.count_rows() == 1
    made.tags.update("first", 2)
    assert made.tags.get_version("first") == 2
    made.tags.delete("second")
    assert list(made.tags.list()) == ["first"]
    assert is_refused(lambda: made.restore("second"))


@TABLES.named(
    *("test_branches", "test_async_branches", "test_open_table_with_branch"),
    *("test_open_table_with_branch_version", "test_async_open_table_with_branch_version"),
)
def _branches_go_their_own_way(db: Any, new: str) -> Any:
    made = items(db, new)
    branch = made.branches.create("exp")
    branch.add([{"vector": [1.0, 2.0], "item": "three", "price": 30.0}])
    shared = branch.version
    branch.delete("price < 15")
    made.add([{"vector": [1.0, 2.0], "item": f"m{i}", "price": 40.0 + i} for i in range(3)])
    assert made.branches.list()["exp"]["parent_branch"] is None
    pinned = db.open_table(new, branch="exp", version=shared)
    assert (pinned.current_branch(), pinned.count_rows()) == ("exp", 3)
    assert (pinned.count_rows("price = 30"), pinned.count_rows("price >= 40")) == (1, 0)
    assert is_refused(lambda: pinned.delete("true"))
    assert made.branches.checkout("exp", shared).count_rows() == 3
    assert db.open_table(new, branch="exp").count_rows() == 2
    on_main = db.open_table(new, branch="main", version=shared)
    assert (on_main.current_branch(), on_main.count_rows()) == (None, 5)
    assert is_refused(lambda: db.open_table(new, version=99))
    assert is_refused(lambda: db.open_table(new, branch="exp", version=99))
    pinned.checkout_latest()
    assert (pinned.current_branch(), pinned.count_rows()) == ("exp", 2)
    pinned.add([{"vector": [1.0, 2.0], "item": "four", "price": 50.0}])
    assert pinned.count_rows() == 3
    made.branches.delete("exp")
    assert list(made.branches.list()) == []


@TABLES.named("test_branch_handle_tracks_concurrent_writes")
def _what_one_handle_of_a_branch_writes_another_reads(db: Any, new: str) -> Any:
    made = items(db, new)
    first = made.branches.create("exp")
    second = made.branches.checkout("exp")
    first.delete("price > 15")
    second.checkout_latest()
    assert second.count_rows() == 1


@TABLES.named("test_branch_name_validation")
def _branches_have_names(db: Any, new: str) -> Any:
    made = items(db, new)
    for wrong in ("a//b", "../x", "main"):
        assert is_refused(lambda: made.branches.create(wrong))  # noqa: B023


@TABLES.named("test_create_with_nans", "test_add_with_nans")
def _vectors_with_nan_or_of_another_length_are_refused_dropped_or_filled(db: Any, new: str) -> Any:
    good = {"vector": [3.0, 4.0], "item": "good", "price": 1.0}
    bad = [
        {"vector": [NAN], "item": "bad", "price": 2.0},
        {"vector": [5.0], "item": "bad", "price": 3.0},
        {"vector": [NAN, 6.0], "item": "bad", "price": 4.0},
    ]
    for one in bad:
        assert is_refused(lambda: db.create_table(f"{new}_e", [good, one]))  # noqa: B023
    dropped = db.create_table(f"{new}_d", [good, *bad], on_bad_vectors="drop")
    filled = db.create_table(f"{new}_f", [good, *bad], on_bad_vectors="fill", fill_value=0.0)
    dropped.add([good, *bad], on_bad_vectors="drop")
    assert dropped.count_rows() == 2
    return all_rows(filled, "price")["vector"].to_pylist()


@TABLES.named(
    *("test_add_nullable_fixed_size_list_with_none", "test_add_nullable_struct_with_none"),
    "test_on_bad_vectors_all_null_schema_vector_batches_do_not_crash",
)
def _vectors_and_structs_may_be_null(db: Any, new: str) -> Any:
    kind = pa.struct([("x", pa.float32())])
    schema = pa.schema([("id", pa.string()), ("vector", VECTORS), ("data", kind)])
    made = db.create_table(new, schema=schema)
    made.add([{"id": "1", "vector": [1.0, 2.0], "data": {"x": 1.0}}])
    made.add([{"id": "2", "vector": None, "data": None}], on_bad_vectors="drop")
    return all_rows(made, "id")


@TABLES.named(
    *("test_add_with_integer_embeddings_preserves_casting", "test_create_f16_table"),
    *(
        "test_create_f16_table_from_arrow_data",
        "test_add_with_empty_fixed_size_list_drops_bad_rows",
    ),
)
def _vectors_take_the_kind_of_the_schema(db: Any, new: str) -> Any:
    halves = pa.list_(pa.float16(), 2)
    made = db.create_table(new, schema=pa.schema([("id", pa.int64()), ("vector", halves)]))
    rows = [{"id": i, "vector": [i, 1]} for i in range(300)]
    made.add([*rows, {"id": 300, "vector": []}], on_bad_vectors="drop")
    made.create_index(num_partitions=2, num_sub_vectors=2)
    assert made.schema.field("vector").type == halves
    assert made.search([7, 1]).bypass_vector_index().limit(1).to_list()[0]["id"] == 7
    return made.count_rows()


@TABLES.named("test_read_mostly_null_list_v2_2_page_boundary")
def _lists_that_are_mostly_null_are_read_whole(db: Any, new: str) -> Any:
    lists = pa.array([[1.0, 2.0]] * 200 + [None] * 20_000, pa.list_(pa.float32()))
    rows = pa.table({"id": range(20_200), "coords": lists})
    made = db.create_table(new, rows)
    assert all_rows(made) == rows


@TABLES.named("test_count_rows")
def _rows_are_counted(db: Any, new: str) -> Any:
    made = items(db, new)
    assert (made.count_rows(), made.count_rows(filter="item = 'two'")) == (2, 1)


@TABLES.named("test_consistency", "test_restore_consistency")
def _a_handle_at_a_version_stays_there(db: Any, new: str) -> Any:
    made = db.create_table(new, pairs(0, 1))
    other = db.open_table(new)
    other.checkout(1)
    made.add(pairs(1, 2))
    assert (other.version, other.count_rows()) == (1, 1)
    other.checkout_latest()
    assert (other.version, other.count_rows()) == (2, 2)


@TABLES.named("test_add_columns", "test_add_columns_async", "test_add_columns_with_schema")
def _columns_are_added(db: Any, new: str) -> Any:
    made = db.create_table(new, pa.table({"id": [0, 1]}))
    assert made.add_columns({"more": "id + 2"}).version == 2
    assert made.add_columns({"none": "cast(null as bigint)"}).version == 3
    fields = [pa.field("x", pa.int64()), pa.field("vector", pa.list_(pa.float32(), 8))]
    assert made.add_columns(pa.schema(fields)).version == 4
    assert made.add_columns([pa.field("y", pa.int64())]).version == 5
    return made.schema, all_rows(made, "id")


@TABLES.named(
    *("test_alter_columns", "test_alter_columns_async", "test_drop_columns"),
    *("test_drop_columns_async", "test_update_field_metadata"),
)
def _columns_are_altered_described_and_dropped(db: Any, new: str) -> Any:
    made = db.create_table(new, pairs(0, 2))
    assert made.alter_columns({"path": "a", "rename": "id"}).version == 2
    change = {"path": "id", "data_type": pa.int16(), "nullable": True}
    assert made.alter_columns(change).version == 3
    said = made.update_field_metadata({"path": "b", "metadata": {"unit": "u", "pii": "no"}})
    assert said.version == 4
    made.update_field_metadata({"path": "b", "metadata": {"from": "x", "pii": None}})
    assert made.schema.field("b").metadata == {b"unit": b"u", b"from": b"x"}
    assert made.drop_columns(["b"]).version == 6
    assert is_refused(lambda: made.drop_columns(["b"]), "b")
    return made.schema, all_rows(made, "id")


@TABLES.named("test_stats")
def _statistics_count_rows_fragments_and_indices(db: Any, new: str) -> Any:
    made = db.create_table(new, pairs(0, 2))
    made.add(pairs(2, 6))
    made.add(pairs(6, 16))
    made.create_scalar_index("a")
    said = made.stats()
    assert said.pop("total_bytes") > 0
    # Which length is the median of few is another matter to each.
    for part in (25, 50, 75, 99):
        assert said["fragment_stats"]["lengths"].pop(f"p{part}") in (2, 4, 10)
    return said


@TABLES.named("test_index_config_fields", "test_create_scalar_index")
def _indices_say_what_they_have(db: Any, new: str) -> Any:
    made = db.create_table(new, pairs(0, 300))
    made.create_scalar_index("b", name="mine")
    (one,) = made.list_indices()
    assert one.size_bytes > 0
    assert one.created_at.tzinfo == datetime.UTC
    assert len(made.search().where("b = 'old7'").to_list()) == 1
    rows = one.num_indexed_rows, one.num_unindexed_rows, one.num_segments
    made.drop_index("mine")
    assert list(made.list_indices()) == []
    return one.name, one.index_type, one.columns, rows, type(one.index_details)


@TABLES.named("test_empty_query")
def _a_search_for_nothing_finds_all(db: Any, new: str) -> Any:
    made = db.create_table(new, pairs(0, 100))
    found = [
        query.to_arrow().num_rows
        for query in (
            made.search().select(["a"]),
            made.search().select(["a"]).limit(None),
            made.search().select(["a"]).limit(-1),
            made.search().select(["a"]).limit(42),
            made.search().where("b = 'old3'").limit(1),
        )
    ]
    assert found == [100, 100, 100, 42, 1]


@TABLES.named(
    *("test_multiple_vector_columns", "test_search_with_schema_inf_multiple_vector"),
    *("test_search_with_schema_inf_single_vector", "test_search_nested_vector_no_candidates"),
)
def _a_search_needs_to_know_which_vectors(db: Any, new: str) -> Any:
    vectors = pa.array([[0.0, 1.0], [5.0, 1.0]], VECTORS)
    backward = pa.array([[5.0, 1.0], [0.0, 1.0]], VECTORS)
    one = db.create_table(f"{new}_1", pa.table({"id": [0, 1], "v": vectors}))
    two = db.create_table(f"{new}_2", pa.table({"id": [0, 1], "v": vectors, "w": backward}))
    none = db.create_table(f"{new}_0", pa.table({"id": [0, 1]}))
    assert one.search([5.0, 1.0]).limit(1).to_list()[0]["id"] == 1
    found = [
        two.search([5.0, 1.0], vector_column_name=name).limit(1).to_list()[0]["id"]
        for name in ("v", "w")
    ]
    assert found == [1, 0]
    assert is_refused(lambda: two.search([5.0, 1.0]).limit(1).to_arrow(), "v")
    assert is_refused(lambda: none.search([5.0, 1.0]).limit(1).to_arrow(), "vector column")


@TABLES.named(
    *("test_search_nested_vector_multiple_candidates", "test_search_infers_single_nested_vector"),
    *(
        "test_create_index_nested_field_paths",
        "test_search_preserves_nulls_from_sliced_arrow_table",
    ),
)
def _vectors_are_found_within_structs(db: Any, new: str) -> Any:
    kind = pa.struct([("embedding", VECTORS)])
    first = pa.array([{"embedding": [float(i), 1.0]} for i in range(4)], kind)
    names = pa.array(["x", None, "y", None]).slice(1, 3)
    one = db.create_table(f"{new}_1", pa.table({"image": first.slice(1), "name": names}))
    two = db.create_table(f"{new}_2", pa.table({"image": first, "text": first}))
    assert is_refused(lambda: two.search([0.0, 1.0]).to_arrow(), "image.embedding")
    return one.search([3.0, 1.0]).limit(3).to_list()


@TABLES.named(
    *("test_branches_preserve_namespace", "test_namespace_open_table_with_branch_version"),
    *("test_async_namespace_open_table_with_branch",),
    "test_async_namespace_open_table_with_branch_version",
)
def _tables_of_namespaces_have_branches(db: Any, new: str) -> Any:
    db.create_namespace([new])
    made = db.create_table("t", pairs(0, 2), namespace_path=[new])
    branch = made.branches.create("exp")
    branch.add(pairs(2, 3))
    for version, rows in ((None, 3), (2, 3), (1, 2)):
        opened = db.open_table("t", namespace_path=[new], branch="exp", version=version)
        assert (opened.current_branch(), opened.count_rows()) == ("exp", rows)
    assert made.count_rows() == 2


@TABLES.named(
    *("test_on_bad_vectors_with_schema_list_vector_still_sanitizes", "test_basic", "test_close"),
    *("test_on_bad_vectors_does_not_handle_non_vector_fixed_size_lists",),
    *("test_on_bad_vectors_does_not_handle_custom_named_fixed_size_lists",),
    *("test_on_bad_vectors_does_not_handle_non_vector_list_columns",),
    *("test_on_bad_vectors_fill_preserves_arrow_nested_vector_type",),
    *("test_on_bad_vectors_handles_typed_custom_fixed_vectors_for_list_schema",),
    *("test_on_bad_vectors_with_schema_list_vector_ignores_invalid_prefix_batches",),
    "test_create_index_async_returns_done_job",
)
def _lists_of_any_length_are_no_vectors(db: Any, new: str) -> Any:
    lists = pa.list_(pa.float32())
    made = db.create_table(new, schema=pa.schema([("vector", lists), ("past", lists)]))
    rows = [{"vector": [1.0, 2.0], "past": [1.0]}, {"vector": [3.0], "past": [1.0, 2.0]}]
    made.add([*rows, {"vector": [4.0, 5.0], "past": []}], on_bad_vectors="drop")
    fixed = pa.array([[1.0, 2.0], [NAN, 3.0]], VECTORS)
    past = pa.array([[1.0]] * 2, lists)
    filled = pa.table({"vector": fixed, "past": past})
    made.add(filled, on_bad_vectors="fill", fill_value=0.0)
    boxes = pa.schema([("vector", VECTORS), ("box", VECTORS)])
    other = db.create_table(f"{new}_b", schema=boxes)
    row = [{"vector": [1.0, 2.0], "box": [1.0]}]
    assert is_refused(lambda: other.add(row, on_bad_vectors="drop"))
    return all_rows(made)
