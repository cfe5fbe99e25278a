"""Does any route tell a stranger the name of what they may not see?"""

import hashlib
import json
from collections.abc import Iterator
from itertools import product
from typing import Any
from urllib.parse import quote

import pytest

from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Security
from consumers.servers.server import ServerSettings
from tests.namespace_world import World, numbers

OWNER, STRANGER, GUEST = ({"x-api-key": f"the-key-of-{n}"} for n in ("owner", "stranger", "guest"))
GRANTS = """
[[grants]]
to = "owner"
on = "$"
can = "admin"

[[grants]]
to = "stranger"
on = "elsewhere"
can = "read"

[[grants]]
to = "guest"
on = "cellar$door"
can = "read"
"""
TABLE = {"type": "struct", "schema-id": 0, "fields": []}
HIDDEN = {"cellar", "cellar_inner", "cellar_wine", "cellar_ice", "cellar_view", "cellar_tag"}
LANCE_QUERIES = ("", "limit=9&include_declared=true")
ICEBERG_QUERIES = ("pageToken=&pageSize=9", "parent=cellar")
PLACES = {
    "id": ("$", "cellar", "cellar$cellar_wine", "elsewhere"),
    "namespace": ("cellar", "cellar\x1fcellar_inner", "elsewhere"),
    "table": ("cellar_ice", "nothing"),
    "view": ("cellar_view", "nothing"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("hidden")
    keys = [
        f'{name} = "sha256:{hashlib.sha256(shown["x-api-key"].encode()).hexdigest()}"'
        for name, shown in (("owner", OWNER), ("stranger", STRANGER), ("guest", GUEST))
    ]
    (root / "access.toml").write_text("\n".join(["[keys]", *keys, GRANTS]))
    made = World(root, server=ServerSettings(security=Security(AccessFile(root / "access.toml"))))
    for name in ("elsewhere", "cellar", "cellar$cellar_inner"):
        asked = made.post(f"/v1/namespace/{name}/create", {}, headers=OWNER)
        assert asked[0] == 200, asked
    for name in ("cellar$cellar_wine", "cellar$door"):
        made.log.create_table(name, numbers(0, 3).schema)
    tag = {"tag": "cellar_tag", "version": 1}
    asked = made.post("/v1/table/cellar$cellar_wine/tags/create", tag, headers=OWNER)
    assert asked[0] == 200, asked
    body = json.dumps({"name": "cellar_ice", "schema": TABLE}).encode()
    asked = made.send("POST", "/v1/namespaces/cellar/tables", body, OWNER)
    assert asked[0] == 200, asked
    yield made
    made.close()


def questions(world: World) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Return all that is asked by GET, or by POST of what lists, now and of the past."""
    document = world.send("GET", "/openapi.json", b"", {})[1]
    config = world.send("GET", "/v1/config?warehouse=at:now", b"", OWNER)[1]
    past = f"/v1/{config['overrides']['prefix']}/"
    for path, operations in document["paths"].items():
        methods = [m for m in operations if m == "get" or (m == "post" and "list" in path)]
        names = [part for part in PLACES if f"{{{part}}}" in path]
        is_list = "list" in path or path.endswith(("/namespaces", "/tables", "/views", "/table"))
        choices = product(*(PLACES[name] for name in names))
        queries = ICEBERG_QUERIES if path.startswith("/v1/namespaces") else LANCE_QUERIES
        for method, values, query in product(methods, choices, queries if is_list else ("",)):
            filled = f"{path.replace('{index_name}', 'i')}?{query}"
            for name, value in zip(names, values, strict=True):
                filled = filled.replace(f"{{{name}}}", quote(value))
            if "{" in filled or filled.endswith("feed?"):
                continue
            yield method.upper(), filled, {}
            if path.startswith("/v1/namespaces"):
                yield method.upper(), filled.replace("/v1/", past, 1), {}
            elif is_list:
                yield method.upper(), filled, {"x-commitlog-sequence": "now"}


def told(world: World, shown: dict[str, str]) -> Iterator[tuple[str, set[str]]]:
    """Return each question and the names that came with its answer, but for those in it."""
    for method, asked, more in questions(world):
        body = b"{}" if method == "POST" else b""
        answer: Any = world.send(method, asked, body, {**shown, **more})
        text = json.dumps(answer[1]) if not isinstance(answer[1], bytes) else ""
        found = {n for n in HIDDEN if f'"{n}"' in text or f"${n}" in text}
        yield asked, {name for name in found if name not in asked}


def test_no_route_names_what_a_stranger_may_not_see(world: World) -> None:
    for shown, known in ((STRANGER, set[str]()), (GUEST, {"cellar"})):
        leaks = {asked: names - known for asked, names in told(world, shown) if names - known}
        assert not leaks
    everything = set[str]().union(*(names for _, names in told(world, OWNER)))
    assert everything == HIDDEN - {"cellar_view"}, "what its owner is told by the same questions"


@pytest.mark.parametrize("path", ["/v1/namespaces", "/v1/namespaces/cellar/tables", "/v1/config"])
def test_a_slash_at_the_end_takes_no_other_grant(world: World, path: str) -> None:
    asked = world.send("GET", path, b"", GUEST)
    assert asked[0] == 200, asked
    assert world.send("GET", f"{path}/", b"", GUEST) == asked
