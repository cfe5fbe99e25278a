"""Every public method of LanceDB's remote client, tried: it works, or says what isn't served.

A release of the client that adds a method fails here until the method is in one of the lists.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.test_lancedb_remote import VECTOR, WAIT, ids, rows
from tests.namespace_world import World

lancedb: Any = pytest.importorskip("lancedb")
database: Any = pytest.importorskip("lancedb.remote.db").RemoteDBConnection
remote_table: Any = pytest.importorskip("lancedb.remote.table").RemoteTable
query: Any = pytest.importorskip("lancedb.query")
merge: Any = pytest.importorskip("lancedb.merge").LanceMergeInsertBuilder
of_tables: Any = pytest.importorskip("lancedb.table")
rerankers: Any = pytest.importorskip("lancedb.rerankers")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NOT_SERVED = "(406 Not Acceptable|Failed to clone).* not supported; .{20}"
"""The server says that it doesn't do this, and what to do instead."""
BY_CLIENT = "(?i)not (yet )?supported|no-op|requires LanceDB Cloud|^$"
"""The client refuses it by itself."""


@pytest.fixture(scope="module")
def db(world: World) -> Any:
    return lancedb.connect("db://any", api_key="k-0123456789abcdef", host_override=world.uri)


@pytest.fixture(scope="module")
def kept(db: Any) -> Any:
    """Return a table that tests only read."""
    table = db.create_table("kept", rows(0, 300))
    table.create_fts_index("text", with_position=True, wait_timeout=WAIT)
    table.create_scalar_index("id", wait_timeout=WAIT)
    table.create_index("l2", vector_column_name="vector", index_type="IVF_FLAT", num_partitions=2)
    return table


@pytest.fixture
def table(db: Any, world: World) -> Any:
    return db.create_table(world.fresh_name(), rows(0, 10))


def public(kind: Any) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


DATABASE: dict[str, Callable[[Any, str], Any]] = {
    "cancel_job": lambda db, new: db.cancel_job("no such job") is False,
    "create_namespace": lambda db, new: db.create_namespace([new]) is not None,
    "create_table": lambda db, new: db.create_table(new, rows(0, 3)).count_rows() == 3,
    "describe_namespace": lambda db, new: (
        db.create_namespace([new], properties={"a": "b"}),
        db.describe_namespace([new]).properties["a"] == "b",
    )[1],
    "drop_namespace": lambda db, new: (
        db.create_namespace([new]),
        db.drop_namespace([new]),
        new not in db.list_namespaces(limit=1000).namespaces,
    )[2],
    "drop_table": lambda db, new: (
        db.create_table(new, rows(0, 1)),
        db.drop_table(new),
        new not in db.list_tables(limit=1000).tables,
    )[2],
    "drop_table_async": lambda db, new: (
        db.create_table(new, rows(0, 1)),
        db.drop_table_async(new),
        new not in db.list_tables(limit=1000).tables,
    )[2],
    "list_namespaces": lambda db, new: (
        db.create_namespace([new]),
        new in db.list_namespaces(limit=1000).namespaces,
    )[1],
    "list_tables": lambda db, new: (
        db.create_table(new, rows(0, 1)),
        new in db.list_tables(limit=1000).tables,
    )[1],
    "namespace_client": lambda db, new: "127.0.0.1" in str(db.namespace_client()),
    "open_table": lambda db, new: (
        (
            db.create_table(new, rows(0, 4)).add(rows(4, 5)),
            db.open_table(new, version=1).count_rows() == 4,
            db.open_table(new).count_rows() == 5,
        )[1:]
        == (True, True)
    ),
    "rename_table": lambda db, new: (
        db.create_table(new, rows(0, 4)),
        db.rename_table(new, f"{new}2"),
        db.open_table(f"{new}2").count_rows() == 4,
    )[2],
    "serialize": lambda db, new: "127.0.0.1" in db.serialize(),
    "table_names": lambda db, new: (
        db.create_table(new, rows(0, 1)),
        new in list(db.table_names(limit=1000)),
    )[1],
}
DATABASE_REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "alter_secret": (lambda db: db.alter_secret("a", "b"), NOT_SERVED),
    "clone_table": (lambda db: db.clone_table("c", "/nowhere"), NOT_SERVED),
    "create_function": (lambda db: db.create_function(None), "."),
    "create_function_async": (lambda db: db.create_function_async(None), "."),
    "create_materialized_view": (
        lambda db: db.create_materialized_view("v", "kept"),
        NOT_SERVED,
    ),
    "create_materialized_view_async": (
        lambda db: db.create_materialized_view_async("v", "kept"),
        NOT_SERVED,
    ),
    "create_secret": (lambda db: db.create_secret("a", "b"), NOT_SERVED),
    "create_view": (lambda db: db.create_view("v", "select 1"), NOT_SERVED),
    "describe_query": (lambda db: db.describe_query(uuid.uuid4()), "Unknown or expired"),
    "describe_secret": (lambda db: db.describe_secret("a"), NOT_SERVED),
    "describe_view": (lambda db: db.describe_view("v"), NOT_SERVED),
    "drop_all_tables": (lambda db: db.drop_all_tables(), BY_CLIENT),
    "drop_database": (lambda db: db.drop_database(), BY_CLIENT),
    "drop_function": (lambda db: db.drop_function("f", version="1"), NOT_SERVED),
    "drop_function_async": (lambda db: db.drop_function_async("f", version="1"), NOT_SERVED),
    "drop_materialized_view": (lambda db: db.drop_materialized_view("v"), NOT_SERVED),
    "drop_materialized_view_async": (lambda db: db.drop_materialized_view_async("v"), NOT_SERVED),
    "drop_secret": (lambda db: db.drop_secret("a"), NOT_SERVED),
    "drop_view": (lambda db: db.drop_view("v"), NOT_SERVED),
    "drop_view_async": (lambda db: db.drop_view_async("v"), NOT_SERVED),
    "execute_query": (lambda db: db.execute_query("select 1"), "SQL error"),
    "execute_query_async": (lambda db: db.execute_query_async("select 1"), "SQL error"),
    "get_function": (lambda db: db.get_function("f", version="1"), NOT_SERVED),
    "list_functions": (lambda db: db.list_functions(), NOT_SERVED),
    "list_jobs": (lambda db: db.list_jobs(), NOT_SERVED),
    "list_materialized_views": (lambda db: db.list_materialized_views(), NOT_SERVED),
    "list_secrets": (lambda db: db.list_secrets(), NOT_SERVED),
    "list_views": (lambda db: db.list_views(), NOT_SERVED),
    "namespace_exists": (lambda db: db.namespace_exists(["kept"]), BY_CLIENT),
    "open_job": (lambda db: db.open_job("j"), "Job 'j' was not found"),
    "open_materialized_view": (lambda db: db.open_materialized_view("kept"), NOT_SERVED),
    "pause_job": (lambda db: db.pause_job("j"), NOT_SERVED),
    "resume_job": (lambda db: db.resume_job("j"), NOT_SERVED),
    "table_exists": (lambda db: db.table_exists(["kept"]), BY_CLIENT),
    "uri": (lambda db: db.uri, "no attribute"),
}


def all_of(table: Any) -> list[int]:
    return ids(table.search().select(["id"]).limit(1000))


def after(step: Any, then: Callable[[], Any]) -> Any:
    """Return what holds after a step."""
    return then()


TABLE: dict[str, Callable[[Any], Any]] = {
    "add": lambda t: after(t.add(rows(10, 12)), lambda: all_of(t) == list(range(12))),
    "add_columns": lambda t: after(
        t.add_columns({"double": "id * 2"}), lambda: "double" in t.schema.names
    ),
    "alter_columns": lambda t: after(
        t.alter_columns({"path": "price", "rename": "cost"}), lambda: "cost" in t.schema.names
    ),
    "blob_columns": lambda t: t.blob_columns() == [],
    "branches": lambda t: after(t.branches.create("b"), lambda: list(t.branches.list()) == ["b"]),
    "checkout": lambda t: after(
        (t.delete("id < 5"), t.checkout(1)), lambda: all_of(t) == list(range(10))
    ),
    "checkout_latest": lambda t: after(
        (t.delete("id < 5"), t.checkout(1), t.checkout_latest()), lambda: len(all_of(t)) == 5
    ),
    "close_lsm_writers": lambda t: t.close_lsm_writers() is None,
    "count_rows": lambda t: (t.count_rows(), t.count_rows("id < 3")) == (10, 3),
    "create_fts_index": lambda t: after(
        t.create_fts_index("text"), lambda: [i.name for i in t.list_indices()] == ["text_idx"]
    ),
    "create_index": lambda t: after(
        t.create_index("l2", vector_column_name="vector", index_type="IVF_FLAT", num_partitions=1),
        lambda: [i.index_type for i in t.list_indices()] == ["IvfFlat"],
    ),
    "create_index_async": lambda t: after(
        t.create_index_async("vector", config=lancedb.index.IvfFlat(num_partitions=1)),
        lambda: [i.name for i in t.list_indices()] == ["vector_idx"],
    ),
    "create_scalar_index": lambda t: after(
        t.create_scalar_index("id"), lambda: [i.name for i in t.list_indices()] == ["id_idx"]
    ),
    "current_branch": lambda t: (
        (t.current_branch(), t.branches.create("b").current_branch()) == (None, "b")
    ),
    "delete": lambda t: t.delete("id < 4").num_deleted_rows == 4 and len(all_of(t)) == 6,
    "drop_columns": lambda t: after(
        t.drop_columns(["price"]), lambda: "price" not in t.schema.names
    ),
    "drop_index": lambda t: after(
        (t.create_scalar_index("id"), t.drop_index("id_idx")), lambda: list(t.list_indices()) == []
    ),
    "embedding_functions": lambda t: t.embedding_functions == {},
    "head": lambda t: t.head(3).num_rows == 3,
    "index_stats": lambda t: after(
        t.create_scalar_index("id"), lambda: t.index_stats("id_idx").num_indexed_rows == 10
    ),
    "list_indices": lambda t: list(t.list_indices()) == [],
    "list_versions": lambda t: [one["version"] for one in t.list_versions()] == [1],
    "merge_insert": lambda t: (
        t.merge_insert("id").when_not_matched_insert_all().execute(rows(8, 12)).num_inserted_rows
        == 2
    ),
    "name": lambda t: t.name.startswith("test"),
    "prewarm_index": lambda t: after(
        t.create_scalar_index("id"), lambda: t.prewarm_index("id_idx") is None
    ),
    "restore": lambda t: after((t.delete("id < 5"), t.restore(1)), lambda: len(all_of(t)) == 10),
    "schema": lambda t: t.schema.names[:3] == ["id", "text", "vector"],
    "search": lambda t: t.search(VECTOR).limit(2).to_arrow().num_rows == 2,
    "stats": lambda t: t.stats()["num_rows"] == 10,
    "tags": lambda t: after(t.tags.create("a", 1), lambda: t.tags.get_version("a") == 1),
    "take_offsets": lambda t: ids(t.take_offsets([1, 5])) == [1, 5],
    "take_row_ids": lambda t: ids(t.take_row_ids([2, 3])) == [2, 3],
    "tokenize": lambda t: (
        after(
            t.create_fts_index("text"),
            lambda: [one.text for one in t.tokenize("word3 common", column="text")],
        )
        == ["word3", "common"]
    ),
    "update": lambda t: t.update(where="id = 1", values={"text": "x"}).rows_updated == 1,
    "update_field_metadata": lambda t: after(
        t.update_field_metadata({"path": "id", "metadata": {"a": "b"}}),
        lambda: t.schema.field("id").metadata[b"a"] == b"b",
    ),
    "uri": lambda t: t.uri.endswith(".lance"),
    "version": lambda t: after(t.delete("id = 1"), lambda: t.version == 2),
    "wait_for_index": lambda t: after(
        t.create_scalar_index("id"), lambda: t.wait_for_index(["id_idx"], WAIT) is None
    ),
}
TABLE_REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "checkpoint_lsm": (lambda t: t.checkpoint_lsm(), NOT_SERVED),
    "cleanup_old_versions": (lambda t: t.cleanup_old_versions(), BY_CLIENT),
    "compact_files": (lambda t: t.compact_files(), BY_CLIENT),
    "compact_lsm": (lambda t: t.compact_lsm(), NOT_SERVED),
    "fetch_blob_files": (lambda t: t.fetch_blob_files("text", [0]), BY_CLIENT),
    "fetch_blob_ranges": (lambda t: t.fetch_blob_ranges("text", [(0, 0, 1)]), BY_CLIENT),
    "fetch_blobs": (lambda t: t.fetch_blobs("text", [0]), BY_CLIENT),
    "flush_lsm": (lambda t: t.flush_lsm(), NOT_SERVED),
    "function_errors": (lambda t: t.function_errors(), NOT_SERVED),
    "get_lsm_stats": (lambda t: t.get_lsm_stats(), NOT_SERVED),
    "get_lsm_write_spec": (lambda t: t.get_lsm_write_spec(), NOT_SERVED),
    "migrate_v2_manifest_paths": (lambda t: t.migrate_v2_manifest_paths(), BY_CLIENT),
    "optimize": (lambda t: t.optimize(), BY_CLIENT),
    "prewarm_data": (lambda t: t.prewarm_data(), NOT_SERVED),
    "refresh_column": (lambda t: t.refresh_column("id"), BY_CLIENT),
    "refresh_column_async": (lambda t: t.refresh_column_async("id"), NOT_SERVED),
    "set_lsm_write_spec": (lambda t: t.set_lsm_write_spec(None), "LsmWriteSpec"),
    "set_unenforced_primary_key": (lambda t: t.set_unenforced_primary_key("id"), BY_CLIENT),
    "to_arrow": (lambda t: t.to_arrow(), BY_CLIENT),
    "to_lance": (lambda t: t.to_lance(), BY_CLIENT),
    "to_pandas": (lambda t: t.to_pandas(), BY_CLIENT),
    "to_polars": (lambda t: t.to_polars(), BY_CLIENT),
    "unset_lsm_write_spec": (lambda t: t.unset_lsm_write_spec(), NOT_SERVED),
    "uses_v2_manifest_paths": (lambda t: t.uses_v2_manifest_paths(), BY_CLIENT),
}
SEARCHES: dict[str, Callable[[Any], Any]] = {
    "LanceVectorQueryBuilder": lambda t: t.search(VECTOR).limit(5),
    "LanceFtsQueryBuilder": lambda t: t.search("word3", query_type="fts", fts_columns="text").limit(
        5
    ),
    "LanceHybridQueryBuilder": lambda t: (
        t.search(query_type="hybrid", vector_column_name="vector", fts_columns="text")
        .vector(VECTOR)
        .text("word3")
        .limit(5)
    ),
    "LanceEmptyQueryBuilder": lambda t: t.search().limit(5),
    "LanceTakeQueryBuilder": lambda t: t.take_offsets([1, 5]),
}
STEPS: dict[str, tuple[Any, ...]] = {
    "bypass_vector_index": (),
    "distance_range": (0.0, 9.0),
    "distance_type": ("cosine",),
    "ef": (20,),
    "fast_search": (),
    "fragment_ids": ([0],),
    "limit": (3,),
    "maximum_nprobes": (40,),
    "metric": ("l2",),
    "minimum_nprobes": (1,),
    "nprobes": (2,),
    "offset": (1,),
    "order_by": ([{"column_name": "id", "ascending": False}],),
    "phrase_query": (),
    "refine_factor": (2,),
    "rerank": (rerankers.RRFReranker(),),
    "select": (["id"],),
    "text": ("word3",),
    "use_lsm": (False,),
    "vector": (VECTOR,),
    "where": ("id < 250",),
    "with_fragments": ([0],),
    "with_row_address": (),
    "with_row_id": (True,),
}
"""What changes a query, which then still finds rows."""
ENDS: dict[str, Callable[[Any], Any]] = {
    "analyze_plan": lambda q: "elapsed" in q.analyze_plan(),
    "explain_plan": lambda q: "LanceRead" in q.explain_plan(True) or "Take" in q.explain_plan(True),
    "output_schema": lambda q: "id" in q.output_schema().names,
    "to_arrow": lambda q: 2 <= q.to_arrow().num_rows <= 5,
    "to_batches": lambda q: sum(b.num_rows for b in q.to_batches()) in range(2, 6),
    "to_list": lambda q: {"id", "text"} <= set(q.to_list()[0]),
    "to_query_object": lambda q: q.to_query_object() is not None,
}
TURNED = {"to_df", "to_pandas", "to_polars", "to_pydantic", "create"}
"""What the client makes of the rows of `to_arrow`, and what makes a query."""
OF_CLIENT = {
    ("LanceFtsQueryBuilder", "rerank"),
    ("LanceFtsQueryBuilder", "text"),
    ("LanceFtsQueryBuilder", "to_batches"),
    ("LanceFtsQueryBuilder", "vector"),
    ("LanceVectorQueryBuilder", "rerank"),
    ("LanceVectorQueryBuilder", "text"),
    ("LanceVectorQueryBuilder", "vector"),
    ("LanceEmptyQueryBuilder", "rerank"),
    ("LanceEmptyQueryBuilder", "text"),
    ("LanceEmptyQueryBuilder", "vector"),
    ("LanceHybridQueryBuilder", "to_batches"),
    ("LanceHybridQueryBuilder", "to_query_object"),
}
"""What the client has no meaning for, or wants other arguments for."""


def test_every_method_of_a_connection_is_tried() -> None:
    # `close` has nothing to say to a server.
    assert public(database) == DATABASE.keys() | DATABASE_REFUSED.keys() | {"close"}
    assert not DATABASE.keys() & DATABASE_REFUSED.keys()


def test_every_method_of_a_table_is_tried() -> None:
    assert public(remote_table) == TABLE.keys() | TABLE_REFUSED.keys()
    assert not TABLE.keys() & TABLE_REFUSED.keys()


def test_every_method_of_a_query_is_tried() -> None:
    kinds = {getattr(query, name): name for name in SEARCHES}
    tried = STEPS.keys() | ENDS.keys() | TURNED
    assert {name for kind in kinds for name in public(kind)} == tried
    assert public(merge) == {
        *("execute", "use_index", "use_lsm", "validate_single_shard", "when_matched_update_all"),
        *("when_not_matched_by_source_delete", "when_not_matched_insert_all"),
    }
    assert public(of_tables.Tags) == {"create", "delete", "get_version", "list", "update"}
    assert public(of_tables.Branches) == {
        *("checkout", "cherry_pick", "create", "delete", "diff", "list"),
    }


@pytest.mark.parametrize("method", sorted(DATABASE))
def test_a_connection_does(db: Any, world: World, method: str) -> None:
    assert DATABASE[method](db, world.fresh_name())


@pytest.mark.parametrize("method", sorted(DATABASE_REFUSED))
def test_a_connection_says_what_is_not_served(db: Any, kept: Any, method: str) -> None:
    ask, words = DATABASE_REFUSED[method]
    with pytest.raises(Exception, match=words):
        ask(db)


@pytest.mark.parametrize("method", sorted(TABLE))
def test_a_table_does(table: Any, method: str) -> None:
    assert TABLE[method](table)


@pytest.mark.parametrize("method", sorted(TABLE_REFUSED))
def test_a_table_says_what_is_not_served(kept: Any, method: str) -> None:
    ask, words = TABLE_REFUSED[method]
    with pytest.raises(Exception, match=words):
        ask(kept)


@pytest.mark.parametrize("kind", sorted(SEARCHES))
def test_a_query_takes_and_does(kept: Any, kind: str) -> None:
    for step, arguments in STEPS.items():
        made = SEARCHES[kind](kept)
        if hasattr(made, step) and (kind, step) not in OF_CLIENT:
            given = () if (kind, step) == ("LanceTakeQueryBuilder", "with_row_id") else arguments
            found = getattr(made, step)(*given).to_arrow()
            assert isinstance(found, pa.Table), step
            assert found.num_rows >= 1, step
    for end, holds in ENDS.items():
        if hasattr(SEARCHES[kind](kept), end) and (kind, end) not in OF_CLIENT:
            assert holds(SEARCHES[kind](kept)), end


@pytest.mark.parametrize("setting", ["use_index", "use_lsm", "validate_single_shard"])
def test_a_merge_takes_every_setting(table: Any, setting: str) -> None:
    merging = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merged = getattr(merging, setting)(False).execute(rows(8, 12))
    assert (merged.num_updated_rows, merged.num_inserted_rows) == (2, 2)
    assert (merged.num_rows, merged.num_attempts) == (4, 1), "as of a local table"
    assert all_of(table) == list(range(12))


@pytest.mark.parametrize("method", ["diff", "cherry_pick"])
def test_branches_are_neither_compared_nor_picked_from(table: Any, method: str) -> None:
    table.branches.create("other").add(rows(10, 12))
    with pytest.raises(Exception, match=NOT_SERVED):
        getattr(table.branches, method)("other")
    assert all_of(table) == list(range(10))
