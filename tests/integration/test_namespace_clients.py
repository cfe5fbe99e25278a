"""Do unmodified clients work: pylance, lancedb and the namespace's own, against a log on Kafka?"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    CreateNamespaceRequest,
    DescribeTableRequest,
    DropNamespaceRequest,
    DropTableRequest,
    ListNamespacesRequest,
    ListTablesRequest,
    TableAlreadyExistsError,
    TableExistsRequest,
    TableNotFoundError,
)

from commitlog.adapters.kafka import KafkaLog
from consumers.broker.embedded import EmbeddedBroker
from tests.namespace_world import World, numbers

pytestmark = [pytest.mark.broker]

ROWS_PER_WRITER = 8
WRITER = """
import sys, warnings
warnings.simplefilter("ignore")
import pyarrow as pa
kind, uri, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rows = [pa.table({"id": pa.array([first + n], pa.int64()), "x": [1.0]}) for n in range(count)]
if kind == "pylance":
    import lance, lance_namespace
    namespace = lance_namespace.connect("rest", {"uri": uri})
    dataset = lance.dataset(namespace_client=namespace, table_id=["many", "t"])
    for one in rows:
        dataset.insert(one)
else:
    import lancedb
    connection = lancedb.connect_namespace("rest", {"uri": uri})
    table = connection.open_table("t", namespace_path=["many"])
    for number, one in enumerate(rows):
        if number % 2:
            table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
                one
            )
        else:
            table.add(one)
"""


@pytest.fixture(scope="module")
def world(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    name = f"ns{uuid4().hex[:8]}"
    running = World(
        tmp_path_factory.mktemp("namespace"),
        lambda: KafkaLog.connect(broker.bootstrap_servers, log=name),
    )
    yield running
    running.close()


def test_pylance_writes_and_reads_through_the_log(world: World) -> None:
    table = ["pylance", "t"]
    world.write(table, numbers(0, 10))
    world.write(table, numbers(10, 20), mode="append")
    with pytest.raises(TableAlreadyExistsError):
        world.write(table, numbers(0, 1))
    dataset = world.open(table)
    dataset.delete("id = 3")
    merged = (
        dataset.merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(numbers(19, 22, 0.5))
    )
    assert (merged["num_updated_rows"], merged["num_inserted_rows"]) == (1, 2)
    dataset.update({"x": "x + 1"}, "id < 3")
    assert (dataset.version, dataset.count_rows()) == (5, 21)
    assert world.open(table, 1).count_rows() == 10
    dataset.tags.create("ten", 1)
    assert world.open(table, "ten").count_rows() == 10
    world.write(table, numbers(0, 5), mode="overwrite")
    assert world.open(table).count_rows() == 5
    info = world.log.table("pylance$t")
    assert (info.version, info.readable_version) == (6, 6)


def test_pylance_changes_schema_indices_and_files_through_the_log(world: World) -> None:
    table = ["pylance", "schema"]
    dataset = world.write(table, numbers(0, 10))
    for first in (10, 20, 30):
        dataset.insert(numbers(first, first + 10))
    dataset.add_columns({"y": "x * 2"})
    rename: Any = {"path": "y", "name": "z"}
    dataset.alter_columns(rename)
    dataset.drop_columns(["z"])
    dataset.create_scalar_index("id", "BTREE")
    metrics = dataset.optimize.compact_files()
    assert metrics.fragments_removed == 4
    dataset.update_config({"key": "value"})
    old = world.open(table, 2)
    old.restore()  # type: ignore[no-untyped-call]
    opened = world.open(table)
    assert (opened.count_rows(), opened.schema.names) == (20, ["id", "x"])
    assert opened.version == world.log.table("pylance$schema").version


def test_the_namespace_client_lists_and_drops(world: World) -> None:
    client = world.namespace
    client.create_namespace(CreateNamespaceRequest(id=["plain"], properties={"a": "b"}))
    assert "plain" in client.list_namespaces(ListNamespacesRequest(id=[])).namespaces
    dataset = world.write(["plain", "t"], numbers(0, 3))
    assert client.list_tables(ListTablesRequest(id=["plain"])).tables == ["t"]
    client.table_exists(TableExistsRequest(id=["plain", "t"]))
    with pytest.raises(TableNotFoundError):
        client.describe_table(DescribeTableRequest(id=["plain", "nobody"]))
    client.drop_table(DropTableRequest(id=["plain", "t"]))
    client.drop_namespace(DropNamespaceRequest(id=["plain"]))
    assert dataset.count_rows() == 3, "an open handle reads on"


@pytest.mark.filterwarnings("ignore")
def test_lancedb_works_on_tables_of_the_log(world: World) -> None:
    lancedb = pytest.importorskip("lancedb")
    connection = lancedb.connect_namespace("rest", {"uri": world.uri})
    connection.create_namespace(["db"])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(range(40), pa.float32()), 4)
    rows = numbers(0, 10).append_column("v", vectors)
    table = connection.create_table("t", rows, namespace_path=["db"])
    with pytest.raises(ValueError, match="exists"):
        connection.create_table("t", rows, namespace_path=["db"])
    table.add(rows)
    table.update(where="id = 3", values={"x": 9.0})
    table.delete("id = 4")
    table.merge_insert("id").when_not_matched_insert_all().execute(rows)
    assert (table.version, table.count_rows()) == (5, 19)
    assert len(table.search([1.0, 2.0, 3.0, 4.0]).limit(3).to_list()) == 3
    table.create_index("id", config=lancedb.index.BTree())
    table.optimize()
    table.tags.create("first", 1)
    table.checkout("first")
    assert table.count_rows() == 10
    table.restore()
    table.checkout_latest()
    assert table.count_rows() == 10
    assert world.log.table("db$t").version == table.version
    connection.rename_table("t", "u", cur_namespace_path=["db"], new_namespace_path=["db"])
    assert connection.open_table("u", namespace_path=["db"]).count_rows() == 10
    connection.drop_table("u", namespace_path=["db"])
    connection.drop_namespace(["db"])


@pytest.mark.slow
def test_processes_of_both_kinds_lose_and_double_nothing(world: World, tmp_path: Path) -> None:
    kinds = ["pylance", "pylance", "pylance", "pylance"]
    if _has_lancedb():
        kinds = ["pylance", "lancedb"] * 4
    world.write(["many", "t"], numbers(-1, 0))
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    writers = [
        subprocess.Popen(
            [sys.executable, str(script), kind, world.uri, str(1000 * n), str(ROWS_PER_WRITER)]
        )
        for n, kind in enumerate(kinds)
    ]
    assert [writer.wait(200) for writer in writers] == [0] * len(kinds)
    opened = lance.dataset(namespace_client=world.namespace, table_id=["many", "t"])
    expected = {-1} | {1000 * n + i for n in range(len(kinds)) for i in range(ROWS_PER_WRITER)}
    found = opened.to_table()["id"].to_pylist()
    assert (len(found), set(found)) == (len(expected), expected)
    assert opened.version == len(expected)


def _has_lancedb() -> bool:
    try:
        import lancedb  # noqa: F401
    except ImportError:
        return False
    return True
