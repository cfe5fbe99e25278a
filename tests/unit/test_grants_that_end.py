"""Does a grant that ends in the middle of a request end for that request, too?"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from consumers.servers.security import access_file
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Security
from consumers.servers.server import ServerSettings
from tests.namespace_world import World

KEY = "the-secret-key-of-a-writer"


def test_a_grant_that_ends_while_a_body_comes_is_none_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body may take minutes, and a commit to one table looked at the grants before it came."""
    monkeypatch.setattr(access_file, "LOOK_SECONDS", -1.0)
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    grant = '[[grants]]\nto = "writer"\non = "home"\ncan = "{}"\n'
    before = f'[keys]\nwriter = "sha256:{digest}"\n'
    rules = tmp_path / "access.toml"
    rules.write_text(before + grant.format("admin"))
    world = World(tmp_path, server=ServerSettings(security=Security(AccessFile(rules))))
    try:
        _revoke_meanwhile(world, lambda: rules.write_text(before + grant.format("read")))
    finally:
        world.close()


def _revoke_meanwhile(world: World, revoke: Callable[[], object]) -> None:
    shown = {"x-api-key": KEY}
    assert world.post("/v1/namespace/home/create", {}, headers=shown)[0] == 200
    made = {"name": "late", "schema": {"type": "struct", "schema-id": 0, "fields": []}}
    tables = "/v1/namespaces/home/tables"
    assert world.post(tables, made, headers=shown)[0] == 200
    update = {"action": "set-properties", "updates": {"a": "b"}}
    body = json.dumps({"requirements": [], "updates": [update]}).encode()
    host, port = world.uri.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as slow:
        head = [f"POST {tables}/late HTTP/1.1", "Host: x", f"x-api-key: {KEY}"]
        head += [f"Content-Length: {len(body)}", "Expect: 100-continue", "", ""]
        slow.sendall("\r\n".join(head).encode())
        told = slow.makefile("rb")
        assert told.readline().split()[1] == b"100", "the request was admitted"
        assert told.readline() == b"\r\n"
        revoke()
        slow.sendall(body)
        assert told.readline().split()[1] == b"403"
    found = world.send("GET", f"{tables}/late", headers=shown)[1]
    assert "a" not in found["metadata"]["properties"]
