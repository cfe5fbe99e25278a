"""LanceDB's remote client at the edges: what it gets is what a database on disk gives.

Where the client would misread a status, the answer has one that it passes on with its message.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from commitlog.client.leader.tickets import Ticket
from commitlog.errors import OutcomeUnknown
from commitlog.model.records import Outcome
from tests.namespace_world import World

lancedb: Any = pytest.importorskip("lancedb")
index: Any = pytest.importorskip("lancedb.index")

pytestmark = pytest.mark.filterwarnings("ignore")
WAIT = datetime.timedelta(seconds=60)
VECTOR = [0.1, 0.2]


@pytest.fixture(scope="module")
def connections(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    remote = lancedb.connect("db://any", api_key="k-0123456789abcdef", host_override=world.uri)
    return remote, lancedb.connect(tmp_path_factory.mktemp("disk"))


@pytest.fixture
def name(world: World) -> str:
    return world.fresh_name()


def rows(count: int = 4) -> pa.Table:
    numbers = pa.array(np.random.default_rng(7).random(count * 2), pa.float32())
    vectors = pa.FixedSizeListArray.from_arrays(numbers, 2)
    return pa.table({"id": pa.array(range(count), pa.int64()), "a": ["x"] * count, "v": vectors})


def test_no_rows_are_none_rather_than_all(connections: tuple[Any, Any], name: str) -> None:
    for db in connections:
        table = db.create_table(name, rows())
        assert table.head(0).num_rows == 0
        assert table.head(0).schema == table.schema


@pytest.mark.parametrize("offset", [0, 1, 3, 9])
def test_each_of_many_vectors_has_its_own_offset(
    connections: tuple[Any, Any], name: str, offset: int
) -> None:
    found = []
    for db in connections:
        table = db.create_table(name, rows(8))
        search = table.search([VECTOR, [0.9, 0.8], VECTOR]).select(["id"]).limit(3).offset(offset)
        said = search.to_arrow()
        by_search = said.sort_by("query_index")  # a disk has the searches in any order
        found.append([by_search.column(one).to_pylist() for one in ("query_index", "id")])
    assert found[0] == found[1]
    assert len(found[0][0]) == {0: 9, 1: 9, 3: 9, 9: 0}[offset]


def test_an_empty_filter_is_refused(connections: tuple[Any, Any], name: str) -> None:
    for db in connections:
        table = db.create_table(name, rows())
        branch = table.branches.create("b")
        for one in (table, branch):
            asked: tuple[Callable[[], object], ...] = (
                partial(one.update, where="", values={"a": "y"}),
                partial(one.delete, ""),
                partial(one.count_rows, ""),
                one.search().where("").to_arrow,
            )
            for ask in asked:
                with pytest.raises(Exception, match="parsing statement|is empty"):
                    ask()
            assert one.count_rows() == one.count_rows("a <> 'y'") > 0


def test_a_column_of_several_dictionaries_is_read(connections: tuple[Any, Any], name: str) -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    nested = pa.struct([("k", kind)])

    def made(values: list[str | None]) -> pa.Table:
        inner = [None if value is None else {"k": value} for value in values]
        return pa.table({"d": pa.array(values, kind), "s": pa.array(inner, nested)})

    found = []
    for db in connections:
        table = db.create_table(name, made(["a", None]))
        table.add(made(["b", "a"]))
        table.add(made([None, "c"]))
        said = table.search().to_arrow()
        assert said.schema.field("d").type == kind
        found.append(said.to_pylist())
    assert found[0] == found[1]
    assert [one["d"] for one in found[0]] == ["a", None, "b", "a", None, "c"]


def test_an_index_has_the_name_that_it_has_on_disk(connections: tuple[Any, Any], name: str) -> None:
    inner = {"a.b": 1, "c d": 2, "e": 3}
    rows = pa.table(
        {"id": [0, 1], "x-y": [1, 2], "Ü ü": [1, 2], "q r": [1, 2], "s": [inner, inner]}
    )
    paths = ("x-y", "Ü ü", "`q r`", "s.`a.b`", "s.`c d`", "s.e", "id")
    found = []
    for db in connections:
        table = db.create_table(name, rows)
        for path in paths:
            table.create_scalar_index(path)
        found.append(sorted((one.name, one.columns) for one in table.list_indices()))
        assert table.index_stats("x-y_idx").num_indexed_rows == 2
        table.drop_index("Ü ü_idx")
    assert found[0] == found[1]
    # The client makes up the name that it waits for.
    connections[0].open_table(name).create_scalar_index("x-y", replace=True, wait_timeout=WAIT)


def test_a_schema_says_which_extensions_its_columns_have(
    connections: tuple[Any, Any], name: str
) -> None:
    ids = pa.array([uuid.uuid4().bytes], pa.uuid())
    words = pa.array(['{"a": 1}'], pa.json_())
    made = pa.table({"u": ids, "n": pa.StructArray.from_arrays([ids], ["u"]), "j": words})
    remote, local = (db.create_table(name, made) for db in connections)
    assert remote.schema == made.schema
    assert [local.schema.field(one).type for one in "un"] == made.schema.types[:2]
    remote.add(made)
    local.add(made)
    assert remote.search().to_arrow() == local.search().to_arrow().cast(made.schema)


MISSING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dropped column": (lambda t: t.drop_columns(["nope"]), "no column 'nope'"),
    "altered column": (
        lambda t: t.alter_columns({"path": "nope", "rename": "b"}),
        "no column 'nope'",
    ),
    "described column": (
        lambda t: t.update_field_metadata({"path": "nope", "metadata": {"k": "v"}}),
        "no column 'nope'",
    ),
    "tag": (lambda t: t.checkout("nope"), "no tag 'nope'"),
    "version of a tag": (lambda t: t.tags.get_version("nope"), "no tag 'nope'"),
    "moved tag": (lambda t: t.tags.update("nope", 1), "no tag 'nope'"),
    "deleted tag": (lambda t: t.tags.delete("nope"), "no tag 'nope'"),
    "tagged version": (lambda t: t.tags.create("new", 99), "no version 99"),
    "restored tag": (lambda t: t.restore("nope"), "no tag 'nope'"),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_in_a_table_is_named_rather_than_the_table(
    connections: tuple[Any, Any], name: str, what: str
) -> None:
    ask, words = MISSING[what]
    table = connections[0].create_table(name, rows())
    with pytest.raises(Exception, match=words) as caught:
        ask(table)
    assert "Table '" not in str(caught.value)


def test_a_branch_that_is_gone_is_named(connections: tuple[Any, Any], name: str) -> None:
    table = connections[0].create_table(name, rows())
    branch = table.branches.create("dev")
    table.branches.delete("dev")
    for ask in (branch.count_rows, branch.list_indices):
        with pytest.raises(Exception, match="no branch 'dev'"):
            ask()
    with pytest.raises(ValueError, match="branch: dev.*not found"):
        table.branches.checkout("dev")


def test_a_table_that_is_gone_is_not_found(connections: tuple[Any, Any], name: str) -> None:
    db = connections[0]
    table = db.create_table(name, rows())
    db.drop_table(name)
    for ask in (table.count_rows, lambda: table.add(rows()), lambda: table.drop_columns(["a"])):
        with pytest.raises(ValueError, match=f"Table '{name}' was not found"):
            ask()


@pytest.mark.parametrize(
    ("count", "config"),
    [(4, "IvfPq"), (0, "IvfFlat"), (0, "HnswSq")],
)
def test_an_index_may_be_made_before_there_are_rows_to_learn_it_from(
    connections: tuple[Any, Any], name: str, count: int, config: str
) -> None:
    found = []
    for db in connections:
        table = db.create_table(name, rows().slice(0, count))
        table.create_index("v", config=getattr(index, config)(num_partitions=1))
        before = table.index_stats("v_idx")
        ids = [table.search(VECTOR).limit(3).to_arrow()["id"].to_pylist()]
        table.add(rows(400))
        ids.append(table.search(VECTOR).limit(3).to_arrow()["id"].to_pylist())
        found.append((before, ids))
    assert found[0] == found[1]


@pytest.mark.parametrize("way", ["append", "upsert"])
def test_rows_of_which_it_is_not_known_whether_they_were_committed_come_once(
    connections: tuple[Any, Any], name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a 500 the client sent them again as another request, without a word to its user."""
    table, result = connections[0].create_table(name, rows(2)), Ticket.result
    sent = rows(1).set_column(1, "a", pa.array(["y"]))
    merge = table.merge_insert("a").when_not_matched_insert_all()
    work: Any = {"append": lambda: table.add(sent), "upsert": lambda: merge.execute(sent)}[way]

    def lost(ticket: Ticket, *given: Any, **named: Any) -> Outcome:
        outcome = result(ticket, *given, **named)
        raise OutcomeUnknown("it has no answer", outcome.transaction_id)

    monkeypatch.setattr(Ticket, "result", lost)
    with pytest.raises(
        Exception, match="it has no answer .over HTTP: GET .v1.log.transactions.[0-9a-f]"
    ):
        work()
    monkeypatch.undo()
    assert table.count_rows() == 3
