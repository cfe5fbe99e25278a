"""Does whatever arrives get an answer of the protocol, and never a failure of the server?"""

import json
import random
from typing import Any, cast

import pytest

from consumers.servers.namespace.operations import OPERATIONS, Entry
from tests.namespace_world import ARROW_STREAM, World, arrow_stream, numbers

IDS = (
    "r$t",
    "r$declared",
    "nobody",
    "$",
    "a$$b",
    "..",
    "a%2Fb",
    "%00",
    "x" * 300,
    "%FF",
    "%C3%A9$%C3%BC",
)
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**63, 1.5, "", "x", "1", [], {}, [None], [[]], ["a", 1], {"a": None}),
    *({"k": "v"}, ["id"], [["id", "id + 1"]], [{"start_version": 5, "end_version": 1}]),
)
FIELDS = (
    *("id", "version", "mode", "properties", "location", "limit", "page_token", "manifest_path"),
    *("operations", "entries", "ranges", "predicate", "updates", "k", "vector", "columns", "tag"),
    *("filter", "actions", "new_columns", "alterations", "column", "index_type", "identity"),
    *("context", "branch", "new_table_name", "new_namespace_id", "query", "manifest_size"),
)
BODIES = (b"", b"null", b"[]", b"1", b'"x"', b"{", b"\xff\xfe", b'{"id": NaN}', b"[" * 10_000)
QUERIES = ("", "?limit=-1", "?limit=x&delimiter=", "?mode=x&on=&timeout=-1s", "?on=id&on=id")


@pytest.mark.slow
@pytest.mark.parametrize("entry", OPERATIONS, ids=lambda entry: cast(Entry, entry).name)
def test_rubbish_gets_an_answer(world: World, entry: Entry, seed: int) -> None:
    world.rows("/v1/table/r$t/create?mode=exist_ok", numbers(0, 5))
    world.post("/v1/table/r$declared/declare")
    chance = random.Random(f"{seed} {entry.name}")
    for number in range(40):
        path = entry.path.replace("{id}", chance.choice(IDS)).replace("{index_name}", "x")
        if number < len(BODIES):
            body = BODIES[number]
        else:
            names = chance.sample(FIELDS, 4)
            body = json.dumps({name: chance.choice(VALUES) for name in names}).encode()
        headers = {"Content-Type": "application/json"}
        if entry.takes_arrow:
            headers = {"Content-Type": chance.choice([ARROW_STREAM, "text/plain"])}
            body = chance.choice([body, arrow_stream(numbers(0, 2))[: chance.randrange(400)]])
        url = path + chance.choice(QUERIES)
        status, answer = world.send(entry.method, url, body, headers)
        said = f"{entry.method} {url} {body[:200]!r}: {status} {answer}"
        assert status < 500, said
        if status >= 400:
            assert set(answer) >= {"error", "code", "instance"}, said
            assert isinstance(answer["code"], int), said
