"""Cases of deletes, updates and merges."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.conformance.lancedb_cases import Cases, all_rows, items, pairs

expressions: Any = pytest.importorskip("lancedb.expr")

TABLES = Cases("python/tests/test_table.py")
DOCUMENTED = Cases("python/tests/docs")


@TABLES.named("test_delete", "test_delete_expr", "test_delete_expr_async")
def _rows_are_deleted_by_text_and_by_expression(db: Any, new: str) -> Any:
    made = db.create_table(new, pairs(0, 4))
    first = made.delete("a = 0")
    second = made.delete(expressions.col("a") == expressions.lit(1))
    assert [one.version for one in (first, second)] == [2, 3]
    assert [one.num_deleted_rows for one in (first, second)] == [1, 1]
    return all_rows(made, "a")


@TABLES.named("test_concurrent_deletes_are_thread_safe")
def _deletes_at_once_all_count(db: Any, new: str) -> Any:
    made = db.create_table(new, pairs(0, 6))
    together = threading.Barrier(6)

    def delete(row: int) -> Any:
        together.wait()
        return made.delete(f"a = {row}")

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(delete, range(6)))
    assert [one.num_deleted_rows for one in results] == [1] * 6
    assert sorted(one.version for one in results) == list(range(2, 8))
    assert made.count_rows() == 0


@TABLES.named("test_update", "test_update_async", "test_update_with_arrow_scalar")
def _updates_count_rows_and_take_arrow_values(db: Any, new: str) -> Any:
    made = items(db, new)
    said = made.update(where="item = 'one'", values={"vector": [1.0, 1.0]})
    assert (said.rows_updated, said.version) == (1, 2)
    value = made.search().where("item = 'one'").select(["vector"]).to_arrow()["vector"][0]
    said = made.update(where="item = 'two'", values={"vector": value})
    assert (said.rows_updated, said.version) == (1, 3)
    said = made.update(values_sql={"price": "price + 1"})
    assert (said.rows_updated, said.version) == (2, 4)
    return all_rows(made, "price")


@TABLES.named("test_update_types")
def _values_of_all_kinds_are_updated(db: Any, new: str) -> Any:
    day = datetime.date(2021, 1, 1)
    made = db.create_table(
        new,
        [
            {
                "id": 0,
                "str": "x",
                "float": 1.5,
                "day": day,
                "binary": b"abc",
                "at": datetime.datetime(2021, 1, 1),
                "v1": [1.0, 0.0],
                "v2": [1.0, 1.0],
            }
        ],
    )
    texts = {"id": "1", "str": "'y'", "float": "2.5", "day": "DATE '2021-01-02'"}
    texts |= {"at": "TIMESTAMP '2021-01-02 00:00:00'", "v1": "[2.0, 2.0]", "binary": "X'646566'"}
    made.update(values_sql=texts)
    found = [all_rows(made).to_pylist()]
    values = {"id": 2, "str": "z", "float": 3.5, "day": datetime.date(2021, 1, 3), "binary": b"x"}
    values |= {"at": datetime.datetime(2021, 1, 3), "v1": [3.0, 3.0], "v2": np.array([4.0, 4.0])}
    made.update(values=values)
    found.append(all_rows(made).to_pylist())
    assert (found[0][0]["binary"], found[1][0]["v2"]) == (b"def", [4.0, 4.0])
    return found


def counts(said: Any) -> tuple[int, ...]:
    return said.version, said.num_inserted_rows, said.num_updated_rows, said.num_deleted_rows


@TABLES.named("test_merge_insert", "test_merge_insert_async")
@DOCUMENTED.named(
    *("test_merge_insert.test_upsert", "test_merge_insert.test_upsert_async"),
    *("test_merge_insert.test_replace_range", "test_merge_insert.test_replace_range_async"),
    *("test_merge_insert.test_insert_if_not_exists",),
    "test_merge_insert.test_insert_if_not_exists_async",
)
def _merges_of_all_kinds(db: Any, new: str) -> Any:
    made = db.create_table(new, pairs(1, 4))
    other = pairs(2, 5, "new")
    found = []
    builds: tuple[Callable[[Any], Any], ...] = (
        lambda m: m.when_matched_update_all().when_not_matched_insert_all(),
        lambda m: m.when_matched_update_all(where="target.b = 'old2'"),
        lambda m: m.when_not_matched_insert_all(),
        lambda m: m.when_matched_update_all().when_not_matched_by_source_delete("a < 2"),
        lambda m: m.when_matched_update_all().when_not_matched_by_source_delete(),
        lambda m: m.when_not_matched_insert_all().when_not_matched_by_source_delete(),
        lambda m: m.when_not_matched_by_source_delete("a < 2"),
        lambda m: m.use_index(False).when_not_matched_insert_all(),
    )
    for build in builds:
        said = build(made.merge_insert("a")).execute(other, timeout=datetime.timedelta(seconds=60))
        found.append((counts(said), all_rows(made, "a").to_pylist()))
        made.restore(1)
    return found


@TABLES.named("test_merge_insert_by_source_delete_reconfigure")
def _the_last_word_on_what_a_merge_deletes_holds(db: Any, new: str) -> Any:
    made = db.create_table(new, pairs(1, 4))
    merging = made.merge_insert("a").when_matched_update_all()
    merging = merging.when_not_matched_by_source_delete("a > 2").when_not_matched_by_source_delete()
    assert counts(merging.execute(pairs(2, 3, "new"))) == (2, 0, 1, 2)


@TABLES.named(
    "test_merge_insert_subschema", "test_merge_insert_nullable_pandas_into_pydantic_schema"
)
def _merges_take_some_columns_in_any_form_and_order(db: Any, new: str) -> Any:
    found = []
    forms: tuple[Callable[[Any], Any], ...] = (lambda t: t, lambda t: t.to_pylist())
    for number, form in enumerate(forms):
        made = db.create_table(f"{new}_{number}", pairs(0, 3).append_column("c", [["x"] * 3]))
        merging = made.merge_insert("a").when_matched_update_all().when_not_matched_insert_all()
        merging.execute(form(pa.table({"c": ["y", "y"], "a": [2, 3]})))
        found.append(all_rows(made, "a").to_pylist())
    assert found[0] == found[1]
    return found[0]


@TABLES.named("test_repeated_partial_merge_insert_with_scalar_index")
def _merges_of_some_columns_by_an_index_are_repeated(db: Any, new: str) -> Any:
    made = db.create_table(new, pairs(0, 50))
    made.add(pairs(50, 100))
    made.create_scalar_index("a")
    for text in ("new", "newer"):
        merging = made.merge_insert("a").when_matched_update_all()
        assert merging.execute(pairs(20, 70, text)).num_updated_rows == 50
    return all_rows(made, "a")


@TABLES.named("test_merge_insert_encodes_json", "test_add_sanitization_encodes_json")
def _json_is_json(db: Any, new: str) -> Any:
    def rows(*texts: str) -> pa.Table:
        values = pa.array(texts, pa.json_().storage_type)
        return pa.table(
            {
                "id": range(len(texts)),
                "j": pa.ExtensionArray.from_storage(pa.json_(), values),
            }
        )

    made = db.create_table(new, schema=rows("{}").schema)
    made.add(rows('{"k": 1}', '{"k": 9}'), on_bad_vectors="fill")
    made.merge_insert("id").when_matched_update_all().execute(rows('{"k": 2}'))
    found = made.search().where("json_extract(j, '$.k') = '2'").to_list()
    assert [row["id"] for row in found] == [0]
    return sorted((row["id"], str(row["j"])) for row in made.search().to_list())
