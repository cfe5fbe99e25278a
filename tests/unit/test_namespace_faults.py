"""Do answers that are lost, late or wrong leave unmodified clients without a duplicate?"""

from collections.abc import Callable
from http.client import HTTPException
from typing import Any

import lance
import pytest

from tests.namespace_world import World, numbers

ANSWERS = ("lost", "late", "409", "500", "502", "503", "504")


def of_both(opened: Any) -> dict[str, Callable[[], Any]]:
    """Return what the tables of both clients are asked for in the same way."""
    return {
        "upsert": lambda: (
            opened.merge_insert("id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute(numbers(8, 12))
        ),
        "delete": lambda: opened.delete("id = 0"),
    }


def of_pylance(world: World, table: list[str]) -> dict[str, Callable[[], Any]]:
    opened = world.open(table)
    return {
        "append": lambda: opened.insert(numbers(10, 12)),
        **of_both(opened),
        "overwrite": lambda: world.write(table, numbers(0, 3), mode="overwrite"),
    }


def of_lancedb(world: World, table: list[str]) -> dict[str, Callable[[], Any]]:
    lancedb = pytest.importorskip("lancedb")
    connection = lancedb.connect_namespace("rest", {"uri": world.uri})
    opened = connection.open_table(table[-1], namespace_path=table[:-1])
    return {"append": lambda: opened.add(numbers(10, 12)), **of_both(opened)}


ROWS = {
    "append": list(range(12)),
    "upsert": list(range(12)),
    "delete": list(range(1, 10)),
    "overwrite": [0, 1, 2],
}


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("client", [of_pylance, of_lancedb], ids=["pylance", "lancedb"])
def test_a_commit_whose_answer_is_spoilt_is_there_once(
    world: World, client: Callable[..., dict[str, Callable[[], Any]]], answer: str
) -> None:
    space = world.fresh_name()
    for name in ("append", "upsert", "delete", "overwrite"):
        table = [space, name]
        world.write(table, numbers(0, 10))
        work = client(world, table).get(name)
        if work is None:
            continue
        before = world.faults.count
        world.faults.path, world.faults.answers = "/version/create", [answer]
        work()
        assert world.faults.count == before + 1, "the fault was met"
        found = lance.dataset(namespace_client=world.namespace, table_id=table)
        assert sorted(found.to_table()["id"].to_pylist()) == ROWS[name], (name, answer)
        assert found.version == 2


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["lost", "500", "504"])
def test_a_batch_that_is_sent_again_is_there_once(world: World, answer: str) -> None:
    tables = [[world.fresh_name(), "t"] for _ in range(3)]
    staged = []
    for table in tables:
        world.write(table, numbers(0, 10))
        staged += world.stage(table, lambda dataset: dataset.insert(numbers(10, 12)))
    request = {"operations": [{"create_table_version": one} for one in staged]}
    world.faults.path, world.faults.answers = "/batch-commit", [answer]
    try:
        status, _ = world.post("/v1/table/batch-commit", request)
    except (OSError, HTTPException):
        status = 0
    assert status != 200
    status, body = world.post("/v1/table/batch-commit", request)
    assert status == 200, body
    for table in tables:
        dataset = world.open(table)
        assert (dataset.version, dataset.count_rows()) == (2, 12)
