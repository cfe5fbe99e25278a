"""Are compressed bodies read as what they were, however they are cut?"""

from __future__ import annotations

import asyncio
import gzip
import random
from typing import Any

import pytest

from consumers.servers.security.compression import PIECE_BYTES, Decompressed
from tests.namespace_world import World


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("size", [2, 3 * PIECE_BYTES])
def test_members_of_gzip_follow_each_other(step: int, size: int) -> None:
    """Wherever a packet ends; what writes a block or a file each sends such bodies (RFC 1952)."""
    body = random.Random(1).randbytes(100) + b"x" * size
    parts = (gzip.compress(one) for one in (body[:60], b"", body[60:], b"", b""))
    sent = b"".join(parts)
    pieces = [sent[at : at + step] for at in range(0, len(sent), step)]

    async def receive() -> dict[str, Any]:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def read() -> bytes:
        made, found = Decompressed(receive, "gzip", asyncio.Lock()), b""
        while (message := await made.receive())["more_body"]:
            assert len(message["body"]) <= PIECE_BYTES
            found += message["body"]
        return found + bytes(message["body"])

    assert asyncio.run(read()) == body


@pytest.mark.parametrize("rest", [b"no gzip", gzip.compress(b"{}", mtime=0)[:-1], b"\x1f"])
def test_what_follows_a_member_of_gzip_is_another_whole_one(world: World, rest: bytes) -> None:
    headers = {"Content-Encoding": "gzip"}
    sent = gzip.compress(b"{}") + rest
    assert world.post("/v1/table/t/describe", sent, headers=headers)[0] == 400


def test_members_of_gzip_are_not_all_tiny(world: World) -> None:
    """Each costs the event loop as much as a kilobyte of another body."""
    headers = {"Content-Encoding": "gzip"}
    padded = gzip.compress(b"{" + b" " * 100_000) + gzip.compress(b"") * 150 + gzip.compress(b"}")
    assert world.post("/v1/table/t/describe", padded, headers=headers)[0] == 404
    status, answer = world.post("/v1/table/t/describe", gzip.compress(b"") * 200, headers=headers)
    assert status == 400
    assert "the body has 101 gzip members, of 0 bytes in all" in answer["error"]
