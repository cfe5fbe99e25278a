"""Does a grant that ends in the middle of a request end for that request, too?"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from consumers.servers.security import access_file, guard
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Security
from consumers.servers.server import ServerSettings
from tests.namespace_world import World

KEY = "the-secret-key-of-a-writer"
HASH = f'"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"'
TABLES = "/v1/namespaces/home/tables"


@pytest.mark.parametrize("commits_to", ["a table", "many tables"])
@pytest.mark.parametrize(
    ("ends", "status"),
    [('can = "admin"', b"403"), (f"writer = {HASH}", b"401")],
    ids=["the grant", "the key"],
)
def test_what_ends_while_a_body_comes_admits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, status: bytes, commits_to: str
) -> None:
    """A body may take minutes: the grant may end meanwhile, or the key itself."""
    monkeypatch.setattr(access_file, "LOOK_SECONDS", -1.0)
    monkeypatch.setattr(guard, "LATER_SECONDS", -1.0)
    before = (
        f'[keys]\nanother = "sha256:{"0" * 64}"\nwriter = {HASH}\n'
        '[[grants]]\nto = "writer"\non = "home"\ncan = "admin"\n'
    )
    rules = tmp_path / "access.toml"
    rules.write_text(before)
    after = before.replace(ends, 'can = "read"' if status == b"403" else "")
    world = World(tmp_path, server=ServerSettings(security=Security(AccessFile(rules))))
    try:
        is_one = commits_to == "a table"
        _revoke_meanwhile(world, lambda: rules.write_text(after), status, is_one=is_one)
        rules.write_text(before)
        found = world.send("GET", f"{TABLES}/late", headers={"x-api-key": KEY})[1]
        assert "a" not in found["metadata"]["properties"]
    finally:
        world.close()


def _revoke_meanwhile(
    world: World, revoke: Callable[[], object], status: bytes, *, is_one: bool
) -> None:
    shown = {"x-api-key": KEY}
    assert world.post("/v1/namespace/home/create", {}, headers=shown)[0] == 200
    made = {"name": "late", "schema": {"type": "struct", "schema-id": 0, "fields": []}}
    assert world.post(TABLES, made, headers=shown)[0] == 200
    update = {"action": "set-properties", "updates": {"a": "b"}}
    change: dict[str, object] = {"requirements": [], "updates": [update]}
    path = f"{TABLES}/late"
    if not is_one:
        named = {"identifier": {"namespace": ["home"], "name": "late"}, **change}
        change, path = {"table-changes": [named]}, "/v1/transactions/commit"
    body = json.dumps(change).encode()
    host, port = world.uri.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as slow:
        head = [f"POST {path} HTTP/1.1", "Host: x", f"x-api-key: {KEY}"]
        head += [f"Content-Length: {len(body)}", "Expect: 100-continue", "", ""]
        slow.sendall("\r\n".join(head).encode())
        told = slow.makefile("rb")
        assert told.readline().split()[1] == b"100", "the request was admitted"
        assert told.readline() == b"\r\n"
        revoke()
        slow.sendall(body)
        assert told.readline().split()[1] == status
