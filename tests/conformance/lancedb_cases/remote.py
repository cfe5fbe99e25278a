"""Cases of the remote client: what it sends, and what it makes of answers, of our server's."""

from __future__ import annotations

import asyncio
import datetime
import json
import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.lancedb_cases import Cases, is_refused, items
from tests.namespace_world import World

lancedb: Any = pytest.importorskip("lancedb")
index: Any = pytest.importorskip("lancedb.index")
remoting: Any = pytest.importorskip("lancedb.remote")
header: Any = pytest.importorskip("lancedb.remote.header")
errors: Any = pytest.importorskip("lancedb.remote.errors")

REMOTE = Cases("python/tests/test_remote_db.py")
KEY = "k-0123456789abcdef"
WAIT = datetime.timedelta(seconds=60)


def connect(world: World, **config: Any) -> Any:
    return lancedb.connect("db://dev", api_key=KEY, host_override=world.uri, client_config=config)


@REMOTE.named("test_async_remote_db", "test_close", "test_pass_through_headers")
def _names_are_listed_and_connections_closed(world: World, new: str) -> None:
    async def work() -> list[str]:
        config = {"extra_headers": {"foo": "bar"}}
        opened = await lancedb.connect_async(
            "db://dev", api_key=KEY, host_override=world.uri, client_config=config
        )
        await opened.create_table(new, [{"id": 1}])
        names = list(await opened.table_names(limit=10_000))
        opened.close()
        return names

    assert new in asyncio.run(work())


@REMOTE.named("test_async_checkout", "test_table_len_sync")
def _each_version_has_its_rows(world: World, new: str) -> None:
    made = connect(world).create_table(new, [{"id": 1}])
    made.add([{"id": 2}, {"id": 3}])
    assert len(made) == 3
    for version, rows in ((1, 1), (2, 3)):
        made.checkout(version)
        assert made.count_rows() == rows
    made.delete("id = 1") if made.checkout_latest() is None else None
    assert made.count_rows() == 2


@REMOTE.named(
    *("test_remote_open_table_branch_and_version", "test_remote_table_branches_sync"),
    *(
        "test_async_remote_open_table_branch_and_version",
        "test_remote_table_branch_survives_pickle",
    ),
)
def _branches_are_opened_and_pickled(world: World, new: str) -> None:
    db = connect(world)
    made = db.create_table(new, [{"id": 1}])
    branch = made.branches.create("exp")
    branch.add([{"id": 2}])
    assert type(branch) is type(made)
    assert (made.current_branch(), branch.current_branch()) == (None, "exp")
    for opened in (
        db.open_table(new, branch="exp"),
        db.open_table(new, branch="exp", version=2),
        made.branches.checkout("exp"),
        pickle.loads(pickle.dumps(branch)),
    ):
        assert (opened.current_branch(), opened.count_rows()) == ("exp", 2)
    assert db.open_table(new, branch="main", version=1).current_branch() is None
    made.branches.delete("exp")


@REMOTE.named(
    *("test_remote_connection_serializes", "test_remote_table_is_picklable"),
    "test_remote_permutation_is_picklable",
)
def _connections_tables_and_permutations_are_sent_elsewhere(world: World, new: str) -> None:
    permutation: Any = pytest.importorskip("lancedb.permutation")
    db = connect(world)
    made = db.create_table(new, [{"a": i} for i in range(10)])
    assert isinstance(json.loads(db.serialize())["client_config"], dict)
    assert new in list(lancedb.deserialize_conn(db.serialize()).table_names(limit=10_000))
    assert pickle.loads(pickle.dumps(made)).count_rows() == 10
    ordered = pickle.loads(pickle.dumps(permutation.Permutation.identity(made)))
    assert ordered.__getitems__([0, 2, 4]) == [{"a": 0}, {"a": 2}, {"a": 4}]


@REMOTE.named("test_create_table_exist_ok", "test_create_table_exist_ok_with_mode_overwrite")
def _a_table_that_exists_may_be_kept_or_replaced(world: World, new: str) -> None:
    db = connect(world)
    items(db, new)
    assert db.create_table(new, [{"id": 1}], exist_ok=True).count_rows() == 2
    assert db.create_table(new, [{"id": 1}], mode="create", exist_ok=True).count_rows() == 2
    assert db.create_table(new, [{"id": 1}], mode="overwrite", exist_ok=True).count_rows() == 1


@REMOTE.named("test_http_error", "test_retry_error")
def _failures_name_their_request_and_why(world: World, new: str) -> None:
    db = connect(world, retry_config={"retries": 1, "backoff_factor": 0.01})
    with pytest.raises(Exception, match="not found"):
        db.open_table(new)
    world.faults.path, world.faults.answers = f"/{new}/describe/", ["429"] * 9
    try:
        with pytest.raises(errors.RetryError) as caught:
            db.open_table(new)
    finally:
        world.faults.path, world.faults.answers = "", []
    assert uuid.UUID(caught.value.request_id).version == 4
    assert caught.value.__cause__.status_code == 429


@REMOTE.named("test_table_unimplemented_functions", "test_table_to_pandas_not_supported")
def _whole_tables_are_not_fetched(world: World, new: str) -> None:
    made = items(connect(world), new)
    assert is_refused(made.to_arrow)
    assert is_refused(made.to_pandas)


@REMOTE.named("test_table_add_in_threadpool")
def _rows_are_added_by_many_threads(world: World, new: str) -> None:
    made = connect(world).create_table(new, [{"id": 1}])
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda i: made.add([{"id": i}]), range(10)))
    assert made.count_rows() == 11
    # The same rows again are other rows.
    made.add([{"id": 1}])
    made.add([{"id": 1}])
    assert made.count_rows("id = 1") == 4


@REMOTE.named("test_table_create_indices", "test_remote_create_index_new_api")
def _indices_are_named_waited_for_and_dropped(world: World, new: str) -> None:
    rows = [{"id": i, "text": f"a puppy {i}", "vector": [float(i)] * 8} for i in range(300)]
    made = connect(world).create_table(new, rows)
    made.create_scalar_index("id", wait_timeout=WAIT, name="scalar")
    made.create_fts_index("text", wait_timeout=WAIT, block_size=256, name="words")
    vectors = index.IvfPq(distance_type="l2", num_partitions=1, num_sub_vectors=1)
    made.create_index("vector", config=vectors, name="vectors")
    made.wait_for_index(["scalar", "words", "vectors"], WAIT)
    made.create_scalar_index("id", index_type="BITMAP", replace=True, name="scalar")
    kinds = {"scalar": "Bitmap", "words": "FTS", "vectors": "IvfPq"}
    assert {one.name: one.index_type for one in made.list_indices()} == kinds
    for config in (index.IvfRq(distance_type="l2", num_partitions=1), vectors):
        made.create_index("vector", config=config, name="vectors")
    for name in ("vectors", "scalar", "words"):
        made.drop_index(name)
    assert list(made.list_indices()) == []


@REMOTE.named("test_table_wait_for_index_timeout")
def _waiting_for_an_index_ends(world: World, new: str) -> None:
    made = connect(world).create_table(new, [{"id": 1}])
    made.create_scalar_index("id")
    made.add([{"id": 2}])
    with pytest.raises(RuntimeError, match="timed out waiting for indices.*id_idx"):
        made.wait_for_index(["id_idx"], datetime.timedelta(milliseconds=300))


@REMOTE.named("test_stats")
def _statistics_have_all_fields(world: World, new: str) -> None:
    said = connect(world).create_table(new, [{"id": 1}, {"id": 2}]).stats()
    fragments = said["fragment_stats"]
    assert (said["num_rows"], said["num_indices"], fragments["num_fragments"]) == (2, 0, 1)
    assert fragments["lengths"] == dict.fromkeys(
        ("min", "max", "mean", "p25", "p50", "p75", "p99"), 2
    )


@REMOTE.named(
    *("test_head", "test_query_sync_minimal", "test_query_sync_empty_query"),
    *("test_query_sync_maximal", "test_query_sync_nprobes", "test_query_sync_no_max_nprobes"),
    *("test_query_sync_batch_queries", "test_query_sync_fts", "test_query_sync_hybrid"),
)
def _queries_with_least_and_most(world: World, new: str) -> None:
    rows = [
        {"id": i, "name": f"n{i}", "text": "a puppy", "vector": [i, 1.0], "vector2": [i, 2.0]}
        for i in range(60)
    ]
    kind = pa.list_(pa.float32(), 2)
    schema = pa.schema(
        [
            *(("id", pa.int64()), ("name", pa.string()), ("text", pa.string())),
            *(("vector", kind), ("vector2", kind)),
        ]
    )
    made = connect(world).create_table(new, rows, schema=schema)
    made.create_fts_index("text", wait_timeout=WAIT)
    order = lancedb.query.ColumnOrdering
    assert made.head(5).num_rows == 5
    one = made.search([1, 2], vector_column_name="vector")
    assert len(one.to_list()) == 10
    assert made.search(None).where("true").select(["id"]).limit(7).to_arrow().num_rows == 7

    def most(**settings: Any) -> Any:
        return made.search([1, 2], vector_column_name="vector2", **settings)

    found = (
        most()
        .distance_type("cosine")
        .limit(42)
        .offset(10)
        .refine_factor(10)
        .nprobes(5)
        .where("id > 0", prefilter=True)
        .order_by([order(column_name="id", ascending=False, nulls_first=True)])
        .with_row_id(True)
        .select(["id", "name"])
        .to_arrow()
    )
    assert found.num_rows == 42
    assert {"id", "name", "_rowid"} <= set(found.column_names)
    assert len(most().minimum_nprobes(5).maximum_nprobes(15).to_list()) == 10
    assert len(most().minimum_nprobes(5).maximum_nprobes(0).to_list()) == 10
    several = made.search([[1, 2], [4, 5]], vector_column_name="vector").limit(1).to_list()
    assert sorted(row["query_index"] for row in several) == [0, 1]
    words = made.search("puppy", query_type="fts", fts_columns=["text"]).with_row_id(True)
    assert words.limit(42).to_arrow().num_rows == 42
    both = made.search(query_type="hybrid", vector_column_name="vector").vector([1, 2])
    assert both.text("puppy").limit(42).to_arrow().num_rows == 42


@REMOTE.named(
    *("test_header_provider_with_static_headers", "test_header_provider_with_oauth"),
    *("test_header_provider_with_sync_connection", "test_header_provider_overrides_static_headers"),
    "test_remote_table_open_does_not_require_picklable_client_config",
)
def _headers_come_from_providers(world: World, new: str) -> None:
    fetched: list[int] = []

    def token() -> dict[str, Any]:
        fetched.append(1)
        return {"access_token": "a-token", "expires_in": 3600}

    for number, provider in enumerate(
        (header.StaticHeaderProvider({"X-Session-Id": "s"}), header.OAuthProvider(token))
    ):
        db = connect(world, header_provider=provider, extra_headers={"X-Session-Id": "t"})
        made = db.create_table(f"{new}_{number}", [{"id": 1}])
        made.add([{"id": 2}])
        assert made.count_rows() == 2
        with pytest.raises(ValueError, match="header_provider"):
            pickle.dumps(made)
    assert len(fetched) == 1


@REMOTE.named("test_custom_header_provider_implementation", "test_header_provider_error_handling")
def _numbers_of_requests_that_a_provider_gives_begin_again_elsewhere(
    world: World, new: str
) -> None:
    class Numbers(remoting.HeaderProvider):  # type: ignore[misc]
        count = 0

        def get_headers(self) -> dict[str, str]:
            self.count += 1
            return {"X-Request-Id": f"req-{self.count}"}

    connect(world).create_table(new, [{"id": 0}])
    # Programs that do the same, one after another: what each adds is added.
    for _ in range(3):
        made = connect(world, header_provider=Numbers()).open_table(new)
        made.add([{"id": 1}])
    assert made.count_rows() == 4

    class Fails(remoting.HeaderProvider):  # type: ignore[misc]
        def get_headers(self) -> dict[str, str]:
            raise RuntimeError("no token today")

    with pytest.raises(Exception, match="no token today|get_headers"):
        connect(world, header_provider=Fails()).open_table(new)
