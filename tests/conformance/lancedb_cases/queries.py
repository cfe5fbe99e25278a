"""Cases of queries: by vectors, by words, by both, by filters, and what they return."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.conformance.lancedb_cases import Cases, is_refused

lancedb: Any = pytest.importorskip("lancedb")
expressions: Any = pytest.importorskip("lancedb.expr")
indices: Any = pytest.importorskip("lancedb.index")
query: Any = pytest.importorskip("lancedb.query")
rerankers: Any = pytest.importorskip("lancedb.rerankers")

QUERIES = Cases("python/tests/test_query.py")
WORDS = Cases("python/tests/test_fts.py")
HYBRIDS = Cases("python/tests/test_hybrid_query.py")
RERANKED = Cases("python/tests/test_rerankers.py")
DOCUMENTED = Cases("python/tests/docs")

NEAR = [1.0, 2.0]
NOUNS, VERBS = ("puppy", "car", "rabbit"), ("runs", "hits", "jumps", "drives")


def two(db: Any, new: str) -> Any:
    """Make a table of two rows."""
    rows = {
        "vector": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)),
        "id": [1, 2],
        "text": ["a", "dog"],
        "camelCase": [1.0, 2.0],
        "s": [{"x": 1, "y": 2}, {"x": 3, "y": 4}],
    }
    return db.create_table(new, pa.table(rows))


def texts(db: Any, new: str, *indexed: str, **settings: Any) -> Any:
    """Make a table of sentences, with an index on the columns named."""
    rows = {
        "id": range(60),
        "text": [f"{NOUNS[i % 3]} {VERBS[i % 4]} daily" for i in range(60)],
        "text2": [f"{NOUNS[i % 2]} {VERBS[i % 3]} often" for i in range(60)],
        "nested": [{"text": f"{NOUNS[i % 3]} {VERBS[i % 4]}", "n": i} for i in range(60)],
        "count": [(i * 37) % 100 for i in range(60)],
        "vector": pa.array([[float(i), 1.0] for i in range(60)], pa.list_(pa.float32(), 2)),
    }
    made = db.create_table(new, pa.table(rows))
    for column in indexed:
        made.create_index(column, config=indices.FTS(**settings))
    return made


def ids(found: Any) -> list[int]:
    return [row["id"] for row in found.to_list()]


def distances(found: Any) -> list[float]:
    return [round(row["_distance"], 4) for row in found.to_list()]


def asked(db: Any, name: str, ask: Callable[[Any], Any]) -> Any:
    """Ask a table by the client's other interface, whose queries are awaited."""

    async def work() -> Any:
        if db.__class__.__name__ == "RemoteDBConnection":
            config = {"api_key": db.api_key, "host_override": db.host_override}
            opened = await lancedb.connect_async("db://any", **config)
        else:
            opened = await lancedb.connect_async(db.uri)
        return await ask(await opened.open_table(name))

    return asyncio.run(work())


@QUERIES.named("test_query_builder", "test_query_builder_with_filter", "test_query_to_list_async")
def _a_query_selects_and_filters(db: Any, new: str) -> Any:
    made = two(db, new)
    first = made.search([0, 0]).limit(1).select(["id", "vector"]).to_list()
    assert (first[0]["id"], list(first[0]["vector"])) == (1, [1, 2])
    assert ids(made.search([0, 0]).where("id = 2")) == [2]
    assert is_refused(lambda: made.search([0, 0]).where("no_column = 1").to_list(), "no_column")
    return made.search([0, 0]).to_list()


@QUERIES.named("test_query_search_specified", "test_query_with_f16")
def _what_is_searched_for_is_told(db: Any, new: str) -> Any:
    made = texts(db, new, "text")
    assert is_refused(lambda: made.search("x", query_type="foo").to_list())
    assert is_refused(lambda: made.search("x", query_type="vector").to_list(), "embedding")
    halves = pa.FixedSizeListArray.from_arrays(np.arange(4, dtype=np.float16), 2)
    other = db.create_table(f"{new}_h", pa.table({"vector": halves, "id": [1, 2]}))
    return ids(other.search([np.float16(2), np.float16(3)]))


@QUERIES.named("test_query_multiple_vectors", "test_vector_query_with_no_limit", "test_none_query")
def _many_vectors_are_numbered_and_a_limit_is_needed(db: Any, new: str) -> Any:
    made = two(db, new)
    found = made.search([np.array([1, 2]), np.array([4, 5])]).limit(1).to_list()
    assert {row["query_index"]: row["id"] for row in found} == {0: 1, 1: 2}
    assert is_refused(lambda: made.search([0, 0]).limit(0).to_list())
    assert is_refused(lambda: made.search([0, 0]).limit(None).to_list())


@QUERIES.named(
    "test_with_row_id", "test_take_queries", "test_take_queries_to_batches", "test_getitems"
)
def _rows_are_known_by_their_ids(db: Any, new: str) -> Any:
    made = two(db, new)
    found = made.search().with_row_id(True).to_arrow()["_rowid"].to_pylist()
    assert found == [0, 1]
    assert ids(made.take_row_ids([1])) == [2]
    assert sorted(ids(made.take_offsets([0, 1]))) == [1, 2]
    batches = list(made.take_offsets([1]).select(["id"]).to_batches())
    assert [batch.to_pydict() for batch in batches] == [{"id": [2]}]


@QUERIES.named(
    *("test_where_repeated_combines_with_and", "test_where_repeated_combines_expr"),
    *("test_where_repeated_combines_with_and_async", "test_where_mixed_filter_kinds_combines"),
    "test_where_mixed_filter_kinds_combines_async",
)
def _conditions_that_follow_each_other_all_hold(db: Any, new: str) -> Any:
    made = two(db, new)
    col, lit = expressions.col, expressions.lit
    for first, second in (
        ("id >= 1", "id < 2"),
        (col("id") >= lit(1), col("id") < lit(2)),
        ("id >= 1", col("id") < lit(2)),
    ):
        assert ids(made.search().where(first).where(second).limit(9)) == [1]
    found = asked(db, new, lambda t: t.query().where("id >= 1").where("id < 2").to_list())
    assert [row["id"] for row in found] == [1]


@QUERIES.named("test_distance_range", "test_distance_range_async")
def _distances_lie_in_a_range(db: Any, new: str) -> Any:
    made = two(db, new)
    near, far = distances(made.search([0, 0]))
    assert distances(made.search([0, 0]).distance_range(upper_bound=near)) == []
    assert distances(made.search([0, 0]).distance_range(lower_bound=far)) == [far]
    assert distances(made.search([0, 0]).distance_range(upper_bound=far)) == [near]
    assert distances(made.search([0, 0]).distance_range(lower_bound=near)) == [near, far]


@QUERIES.named(
    "test_distance_range_with_new_rows_async", "test_fast_search", "test_fast_search_async"
)
@DOCUMENTED.named(
    *("test_distance_range.test_binary_vector", "test_distance_range.test_binary_vector_async"),
    "test_search.test_vector_search",
)
def _rows_that_no_index_has_are_found_unless_the_search_is_fast(db: Any, new: str) -> Any:
    def rows(first: int, last: int) -> pa.Table:
        vectors = [[float(i), float(i)] for i in range(first, last)]
        return pa.table(
            {"id": range(first, last), "vector": pa.array(vectors, pa.list_(pa.float32(), 2))}
        )

    made = db.create_table(new, rows(0, 256))
    made.create_index("vector", config=indices.IvfFlat(num_partitions=1))
    made.add(rows(256, 260))
    far = made.search([300.0, 300.0]).limit(3)
    assert ids(far) == [259, 258, 257]
    assert ids(made.search([300.0, 300.0]).fast_search().limit(3)) == [255, 254, 253]
    assert (
        distances(made.search([300.0, 300.0]).distance_range(upper_bound=distances(far)[0])) == []
    )
    plan = made.search([1.0, 1.0]).fast_search().explain_plan(True)
    assert "LanceScan" not in plan


@QUERIES.named("test_multivector", "test_multivector_async")
@DOCUMENTED.named("test_multivector.test_multivector", "test_multivector.test_multivector_async")
def _a_row_may_have_many_vectors(db: Any, new: str) -> Any:
    kind = pa.list_(pa.list_(pa.float32(), 2))
    vectors = pa.array([[[i, i + 1], [i + 2, i + 3]] for i in range(256)], kind)
    made = db.create_table(new, pa.table({"id": range(256), "vector": vectors}))
    made.create_index(
        "vector", config=indices.IvfPq(distance_type="cosine", num_partitions=1, num_sub_vectors=2)
    )
    once = distances(made.search([1, 2]))
    twice = distances(made.search([[1, 2], [1, 2]]))
    assert len(once) == len(twice)
    assert twice[0] == pytest.approx(2 * once[0], abs=1e-3)
    assert is_refused(lambda: made.search([1, 2, 3]).to_arrow())
    assert is_refused(lambda: made.search([[1, 2], [1, 2, 3]]).to_arrow())


@QUERIES.named(
    "test_query_builder_batches", "test_dynamic_projection", "test_query_camelcase_async"
)
def _what_is_selected_comes_in_batches(db: Any, new: str) -> Any:
    made = two(db, new)
    for size, count in ((1, 2), (2, 1)):
        batches = list(made.search([0, 0]).select(["id"]).to_batches(size))
        assert all(isinstance(batch, pa.RecordBatch) for batch in batches)
        assert sum(batch.num_rows for batch in batches) == 2, count
    found = made.search([0, 0]).limit(1).select({"id": "id", "twice": "id * 2"}).to_list()
    assert (found[0]["id"], found[0]["twice"]) == (1, 2)
    return made.search().select(["camelCase"]).to_list()


@QUERIES.named(
    *("test_invalid_nprobes_sync", "test_invalid_nprobes_async", "test_nprobes_works_sync"),
    *("test_nprobes_min_max_works_sync", "test_multiple_nprobes_calls_works_sync"),
)
def _how_much_of_an_index_is_searched_is_checked(db: Any, new: str) -> Any:
    made = two(db, new)
    assert is_refused(lambda: made.search([0, 0]).minimum_nprobes(0).to_list(), "nprobes")
    assert is_refused(lambda: made.search([0, 0]).maximum_nprobes(5).to_list(), "nprobes")
    assert is_refused(lambda: made.search([0, 0]).minimum_nprobes(100).to_list(), "nprobes")
    for fine in (
        made.search([0, 0]).nprobes(30),
        made.search([0, 0]).minimum_nprobes(2).maximum_nprobes(4),
        made.search([0, 0]).nprobes(30).maximum_nprobes(20).minimum_nprobes(20),
        made.search([0, 0]).maximum_nprobes(0),
    ):
        assert sorted(ids(fine)) == [1, 2]


@QUERIES.named("test_query_builder_with_prefilter", "test_query_builder_with_metric")
def _filters_come_first_unless_told(db: Any, new: str) -> Any:
    made = two(db, new)
    assert ids(made.search([0, 0]).where("id = 2", prefilter=True).limit(1)) == [2]
    assert ids(made.search([0, 0]).where("id = 2", prefilter=False).limit(1)) == []
    assert ids(made.search([0, 0]).where("id = 2").limit(1)) == [2]
    assert distances(made.search([4, 8])) == distances(made.search([4, 8]).distance_type("l2"))
    return distances(made.search([4, 8]).distance_type("cosine"))


@QUERIES.named("test_query_async", "test_query_to_arrow_async", "test_query_to_pandas_async")
def _queries_that_are_awaited(db: Any, new: str) -> Any:
    two(db, new)
    queries: list[tuple[Callable[[Any], Any], int]] = [
        (lambda t: t.query(), 2),
        (lambda t: t.query().where("id = 2"), 1),
        (lambda t: t.query().where("id < 0"), 0),
        (lambda t: t.query().limit(1), 1),
        (lambda t: t.query().offset(1), 1),
        (lambda t: t.query().select({"foo": "id", "bar": "id + 1"}), 2),
        (lambda t: t.query().select(["id"]).with_row_id(), 2),
        (lambda t: t.query().nearest_to(pa.array([1, 2])), 2),
        (lambda t: t.query().nearest_to((1, 2)).refine_factor(1), 2),
        (lambda t: t.query().where("id = 2").nearest_to(NEAR).postfilter(), 1),
        (lambda t: t.query().nearest_to(NEAR).nprobes(10), 2),
        (lambda t: t.query().nearest_to(NEAR).minimum_nprobes(10).maximum_nprobes(20), 2),
        (lambda t: t.query().nearest_to(NEAR).bypass_vector_index(), 2),
        (lambda t: t.query().nearest_to(NEAR).distance_type("DoT"), 2),
        (lambda t: t.vector_search(NEAR).limit(1), 1),
    ]

    async def all_of(table: Any) -> list[pa.Table]:
        return [await make(table).to_arrow() for make, _ in queries]

    found = asked(db, new, all_of)
    assert [rows.num_rows for rows in found] == [count for _, count in queries]
    # The client sorts the columns that it has computed.
    return [sorted(rows.column_names) for rows in found]


@QUERIES.named("test_offset", "test_order_by_plain_query", "test_order_by_async_query")
def _rows_are_skipped_and_put_in_order(db: Any, new: str) -> Any:
    made = two(db, new)
    assert len(ids(made.search([0, 0]).offset(1))) == 1
    order = [query.ColumnOrdering(column_name="id", ascending=False)]
    assert ids(made.search().order_by(order)) == [2, 1]
    found = asked(db, new, lambda t: t.query().order_by(order).limit(1).to_list())
    assert [row["id"] for row in found] == [2]


@QUERIES.named(
    *("test_analyze_plan", "test_analyze_plan_async", "test_explain_plan"),
    *("test_explain_plan_async", "test_explain_plan_fts", "test_explain_plan_with_filters"),
    "test_explain_plan_vector_with_limit_offset",
)
def _plans_say_what_would_be_done(db: Any, new: str) -> Any:
    made = texts(db, new, "text")
    near = made.search(NEAR).offset(1).limit(1).where("id = 1")
    plan = near.explain_plan(True)
    assert "KNN" in plan
    assert "skip=1, fetch=1" in plan
    analyzed = near.analyze_plan()
    assert "AnalyzeExec" in analyzed
    assert "metrics=" in analyzed
    worded = made.search("puppy", query_type="fts", fts_columns="text").where("id = 1").limit(1)
    assert "MatchQuery: column=text, query=[puppy]" in worded.explain_plan()


@QUERIES.named("test_query_schema", "test_query_schema_async")
def _a_query_tells_its_columns_beforehand(db: Any, new: str) -> Any:
    made = two(db, new)
    for asked_for in (
        made.search(),
        made.search().select({"twice": "id * 2"}),
        made.search([1, 2]).select(["id"]),
    ):
        assert asked_for.output_schema().names == asked_for.to_arrow().column_names
    return made.search([1, 2]).select(["id"]).output_schema()


@QUERIES.named("test_query_timeout", "test_query_timeout_async", "test_search_empty_table")
def _time_runs_out_and_nothing_is_found_in_nothing(db: Any, new: str) -> Any:
    made = texts(db, new, "text")
    none = datetime.timedelta(0)
    assert is_refused(lambda: made.search().to_list(timeout=none))
    assert is_refused(lambda: made.search(NEAR).to_list(timeout=none))
    made.delete("true")
    assert made.search(NEAR).to_list() == []
    assert made.search("puppy", query_type="fts").to_list() == []


@WORDS.named(
    *("test_search_fts", "test_fts_select_async", "test_search_fts_async"),
    *("test_search_fts_specify_column", "test_search_fts_specify_column_async"),
)
@DOCUMENTED.named(
    *("test_search.test_fts_native", "test_search.test_fts_native_async"),
    *("test_search.test_fts_boost_query", "test_search.test_fts_boolean_query"),
)
def _words_are_searched_in_all_ways(db: Any, new: str) -> Any:
    made = texts(db, new, "text", "text2")
    match = query.MatchQuery
    searches = (
        made.search("puppy", query_type="fts", fts_columns="text"),
        made.search("car", query_type="fts", fts_columns="text2"),
        made.search(match("puppy", "text")),
        made.search(query.BoostQuery(match("puppy", "text"), match("runs", "text"))),
        made.search(query.MultiMatchQuery("puppy", ["text", "text2"])),
        made.search(match("puppy", "text") & match("runs", "text")),
        made.search(match("rabbit", "text") | match("runs", "text")),
        made.search(match("puppy", "text")).where("count > 50"),
        made.search(match("puppy", "text")).where("count > 50", prefilter=False),
    )
    found = [one.select(["id", "text"]).limit(100).to_arrow() for one in searches]
    assert [rows.column_names for rows in found] == [["id", "text", "_score"]] * len(found)
    assert found[0].num_rows == 20
    assert set(found[5]["text"].to_pylist()) == {"puppy runs daily"}
    assert made.search("puppy", query_type="fts", fts_columns="text").to_arrow().num_rows == 10
    return [sorted(rows["id"].to_pylist()) for rows in found]


@WORDS.named(
    *("test_search_fts_phrase_query", "test_search_fts_phrase_query_async"),
    *("test_fts_phrase_query_execution_preserves_user_text", "test_syntax"),
)
def _words_that_follow_each_other(db: Any, new: str) -> Any:
    made = texts(db, new, "text", with_position=False)
    phrase = query.PhraseQuery("puppy runs", "text")
    assert is_refused(lambda: made.search(phrase).to_list(), "position")
    made.create_index("text", config=indices.FTS(with_position=True))
    found = made.search(phrase).limit(100).to_list()
    by_method = made.search("puppy runs", query_type="fts", fts_columns="text").phrase_query()
    assert 0 < len(found) == len(by_method.limit(100).to_list()) < 20
    for odd in ("puppy OR", "(they AND could) OR cats", "it's not 'really' a \"puppy\""):
        made.search(odd, query_type="fts").phrase_query().limit(9).to_list()
        made.search(odd, query_type="fts").limit(9).to_list()
    return sorted(row["id"] for row in found)


@WORDS.named("test_custom_stop_words_list")
def _words_that_nobody_finds_are_the_callers_to_choose(db: Any, new: str) -> Any:
    made = db.create_table(new, pa.table({"id": [1, 2], "text": ["the cool puppy", "a cool cat"]}))
    counts = []
    for words in (None, ["cool"], ["cool", "cat"]):
        made.create_index("text", config=indices.FTS(custom_stop_words=words))
        asked = ("the", "cool", "puppy", "cat")
        counts.append([len(ids(made.search(one, query_type="fts"))) for one in asked])
    assert counts == [[0, 2, 1, 1], [1, 0, 1, 1], [1, 0, 1, 0]], "they take the place of the usual"
    return counts


@WORDS.named("test_search_order_by_descending", "test_search_order_by_ascending")
def _what_words_find_is_put_in_order(db: Any, new: str) -> Any:
    made = texts(db, new, "text")
    for ascending in (True, False):
        order = [query.ColumnOrdering(column_name="count", ascending=ascending)]
        found = made.search("puppy", query_type="fts").order_by(order).limit(20).to_list()
        counts = [row["count"] for row in found]
        assert counts == sorted(counts, reverse=not ascending)
        assert len(counts) == 20


@WORDS.named(
    *("test_create_index_from_table", "test_null_input", "test_search_index_with_filter"),
    *("test_create_inverted_index_block_size", "test_create_inverted_index"),
    *("test_fts_fast_search", "test_fts_fast_search_async"),
)
def _an_index_of_words_is_made_again_with_new_rows(db: Any, new: str) -> Any:
    made = texts(db, new, "text", block_size=256)
    (one,) = made.list_indices()
    assert (one.index_details["block_size"], one.index_version) == (256, 3)
    row = made.search().limit(1).to_list()[0]
    made.add([{**row, "id": 100, "text": "gorilla"}, {**row, "id": 101, "text": None}])
    gorilla = made.search("gorilla", query_type="fts")
    assert ids(gorilla) == [100]
    assert ids(made.search("gorilla", query_type="fts").fast_search()) == []
    made.create_index("text", config=indices.FTS())
    assert ids(made.search("gorilla", query_type="fts").fast_search()) == [100]
    found = made.search("puppy", query_type="fts").where("id = 3").with_row_id(True).to_list()
    assert [row["id"] for row in found] == [3]
    assert found[0]["_rowid"] is not None


@WORDS.named("test_create_inverted_index_rejects_invalid_block_size", "test_language")
def _how_words_are_cut_is_checked(db: Any, new: str) -> Any:
    made = db.create_table(new, [{"text": "Je te retrouve au café"}, {"text": "des routes"}])
    assert is_refused(lambda: made.create_index("text", config=indices.FTS(block_size=129)), "128")
    assert is_refused(lambda: made.create_index("text", config=indices.FTS(language="klingon")))
    settings = {"stem": True, "ascii_folding": True, "remove_stop_words": True}
    made.create_index("text", config=indices.FTS(language="French", **settings))
    found = [
        made.search(word, query_type="fts").to_arrow().num_rows for word in ("route", "cafe", "des")
    ]
    assert found == [1, 1, 0]


@WORDS.named(
    *("test_nested_schema", "test_nested_schema_async"),
    "test_nested_schema_rejects_invalid_fts_fields",
)
def _words_within_structs(db: Any, new: str) -> Any:
    made = texts(db, new, "nested.text", with_position=True)
    assert [one.columns for one in made.list_indices()] == [["nested.text"]]
    searches = (
        made.search("puppy", query_type="fts", fts_columns="nested.text"),
        made.search(query.MatchQuery("puppy", "nested.text")),
        made.search(query.PhraseQuery("puppy runs", "nested.text")),
        made.search(query_type="hybrid", fts_columns="nested.text").vector(NEAR).text("puppy"),
    )
    assert [len(one.limit(5).to_list()) for one in searches] == [5] * 4
    for wrong in ("nested", "nested.n", "nested.missing"):
        assert is_refused(lambda: made.create_index(wrong, config=indices.FTS()))  # noqa: B023


@WORDS.named(
    *(
        "test_tokenize_uses_simple_index_tokenizer",
        "test_tokenize_uses_icu_index_tokenizer_by_name",
    ),
    *("test_tokenize_requires_one_selector", "test_tokenize_requires_fts_index"),
    "test_tokenize_async",
)
def _texts_are_cut_as_the_index_does(db: Any, new: str) -> Any:
    made = db.create_table(new, [{"text": "Running in cafés", "other": "x"}])
    assert is_refused(lambda: made.tokenize("x", column="text"), "index")
    made.create_index("text", config=indices.FTS(base_tokenizer="simple"), name="mine")
    assert is_refused(lambda: made.tokenize("x"), "exactly one")
    assert is_refused(lambda: made.tokenize("x", column="text", index_name="mine"), "exactly one")
    found = made.tokenize("Running in cafés", column="text")
    assert [(one.text, one.position) for one in found] == [("run", 0), ("cafe", 2)]
    made.create_index("text", config=indices.FTS(base_tokenizer="icu", stem=False), name="mine")
    return [one.text for one in made.tokenize("Hello, こんにちは世界!", index_name="mine")]


@WORDS.named("test_fts_on_list", "test_fts_ngram")
@DOCUMENTED.named("test_search.test_fts_fuzzy_query")
def _words_in_lists_parts_of_words_and_words_with_slips(db: Any, new: str) -> Any:
    made = db.create_table(
        new, [{"text": "crazy fox", "tags": ["red", "wild"]}, {"text": "calm", "tags": ["tame"]}]
    )
    made.create_index("tags", config=indices.FTS(with_position=False))
    made.create_index("text", config=indices.FTS(base_tokenizer="ngram"))
    assert made.search(query.MatchQuery("wild", "tags")).to_arrow().num_rows == 1
    assert made.search(query.MatchQuery("raz", "text")).to_arrow().num_rows == 1
    begins = indices.FTS(base_tokenizer="ngram", ngram_min_length=2, prefix_only=True)
    made.create_index("text", config=begins)
    counts = [made.search(one, query_type="fts").to_arrow().num_rows for one in ("cra", "raz")]
    assert counts == [1, 0]
    made.create_index("text", config=indices.FTS())
    slips = query.MatchQuery("crazi", "text", fuzziness=2)
    assert made.search(slips).to_arrow().num_rows == 1
    assert made.search(query.MatchQuery("crazi", "text")).to_arrow().num_rows <= 1


@HYBRIDS.named(
    *("test_async_hybrid_query", "test_async_hybrid_query_with_row_ids"),
    *("test_async_hybrid_query_filters", "test_async_hybrid_query_default_limit"),
    *("test_explain_plan", "test_analyze_plan"),
)
@DOCUMENTED.named("test_search.test_hybrid_search_async")
def _both_ways_at_once_and_awaited(db: Any, new: str) -> Any:
    texts(db, new, "text")

    async def all_of(table: Any) -> Any:
        def both() -> Any:
            return table.query().nearest_to(NEAR).nearest_to_text("puppy")

        found = [
            await both().limit(3).to_arrow(),
            await both().limit(3).with_row_id().to_arrow(),
            await both().where("id > 5").distance_type("l2").limit(3).to_arrow(),
            await both().to_arrow(),
        ]
        return found, await both().explain_plan(True), await both().analyze_plan()

    found, plan, analyzed = asked(db, new, all_of)
    assert "KNNVectorDistance" in plan
    assert "AnalyzeExec" in analyzed
    assert found[3].num_rows == 10
    assert ["_rowid" in rows.column_names for rows in found[:2]] == [False, True]
    return [rows["id"].to_pylist() for rows in found[:3]]


@HYBRIDS.named(
    *("test_hybrid_query_offset", "test_hybrid_query_distance_range"),
    *("test_hybrid_query_distance_range_async", "test_hybrid_prefilter_explain_plan"),
    *("test_hybrid_query_applies_zero_upper_distance_bound",),
    "test_hybrid_query_minimum_nprobes_zero_raises",
)
@DOCUMENTED.named("test_search.test_hybrid_search")
def _both_ways_at_once(db: Any, new: str) -> Any:
    made = texts(db, new, "text")

    def both(words: str = "puppy") -> Any:
        return made.search(query_type="hybrid").vector(NEAR).text(words)

    whole = ids(both().limit(6))
    assert ids(both().offset(2).limit(4)) == whole[2:]
    ranged = both().distance_range(lower_bound=2.0, upper_bound=50.0)
    near = ranged.rerank(rerankers.RRFReranker(return_score="all")).limit(5).to_list()
    assert all(2 <= row["_distance"] < 50 for row in near if row["_distance"] is not None)
    assert ids(both("elephant").distance_range(upper_bound=0.0).limit(4)) == []
    assert is_refused(lambda: both().minimum_nprobes(0).to_arrow(), "nprobes")
    assert set(ids(both().where("id = 3").limit(4))) == {3}
    assert is_refused(lambda: made.search(query_type="hybrid").to_list())
    assert is_refused(lambda: made.search(query_type="hybrid").vector(NEAR).to_list())
    return whole


@RERANKED.named(
    *("test_linear_combination", "test_rrf_reranker", "test_rrf_reranker_distance"),
    *("test_mrr_reranker", "test_empty_hybrid_result_reranker", "test_empty_result_reranker"),
)
def _what_is_found_is_ranked_again(db: Any, new: str) -> Any:
    made = texts(db, new, "text")
    found = []
    for ranker in (
        rerankers.LinearCombinationReranker(weight=0.5),
        rerankers.RRFReranker(return_score="all"),
        rerankers.MRRReranker(),
    ):
        both = made.search(query_type="hybrid").vector(NEAR).text("puppy")
        rows = both.rerank(reranker=ranker).limit(6).to_arrow()
        scores = rows["_relevance_score"].to_pylist()
        assert scores == sorted(scores, reverse=True)
        none = made.search(query_type="hybrid").vector(NEAR).text("puppy").where("id < 0")
        assert none.rerank(reranker=ranker).to_arrow().num_rows == 0
        found.append(rows["id"].to_pylist())
    return found


@DOCUMENTED.named(
    *("test_basic.test_quickstart", "test_basic.test_quickstart_async"),
    *("test_guide_tables.test_table", "test_guide_tables.test_table_async"),
    *("test_guide_tables.test_sql_query", "test_search.test_vector_search_async"),
)
def _first_steps(db: Any, new: str) -> Any:
    rows = [{"vector": [3.1, 4.1], "item": "foo", "price": 10.0}]
    rows.append({"vector": [5.9, 26.5], "item": "bar", "price": 20.0})
    made = db.create_table(new, rows)
    made.add(rows)
    near = made.search([100, 100]).limit(2).to_list()
    assert [row["item"] for row in near] == ["bar", "bar"]
    made.delete("item = 'foo'")
    assert made.search().where("price > 15").to_arrow().num_rows == 2
    return made.count_rows()


@DOCUMENTED.named(
    "test_binary_vector.test_binary_vector", "test_binary_vector.test_binary_vector_async"
)
def _vectors_of_bits(db: Any, new: str) -> Any:
    rows = [{"id": i, "vector": [i % 256] * 8} for i in range(256)]
    schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.uint8(), 8))])
    made = db.create_table(new, rows, schema=schema)
    made.create_index("vector", config=indices.IvfFlat(distance_type="hamming", num_partitions=4))
    assert made.index_stats("vector_idx").distance_type == "hamming"
    for value in (0, 7, 255):
        near = made.search([value] * 8).distance_type("hamming").nprobes(4).limit(1)
        assert ids(near) == [value]
