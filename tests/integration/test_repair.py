"""Manifests that a machine lost are made again from the log when it starts."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from tests.service import SCHEMA, ids_of, rows, service


@pytest.mark.parametrize("policy", ["every", "latest"])
@pytest.mark.parametrize("damage", ["empty", "torn", "zeros", "lost"])
def test_a_head_that_was_lost_is_made_again(tmp_path: Path, policy: str, damage: str) -> None:
    with service(tmp_path) as running:
        running.client.create_table("t", SCHEMA, policy=policy)
        for number in range(4):
            running.client.append("t", rows(number))
        location = running.location("t")
        running.running.pop().stop()
        newest = sorted(location.glob("_versions/*.manifest"))
        before = [path.read_bytes() for path in newest]
        for path in newest[: 2 if policy == "every" else 1]:
            whole = path.read_bytes()
            left = {"empty": b"", "torn": whole[: len(whole) // 2], "zeros": bytes(len(whole))}
            path.unlink()
            if damage != "lost":
                path.write_bytes(left[damage])
        running.start().await_leading()
        assert ids_of(lance.dataset(location)) == [0, 1, 2, 3]
        assert newest[0].read_bytes() == before[0]
        running.client.append("t", rows(9))
        assert ids_of(running.client.open("t")) == [0, 1, 2, 3, 9]
        assert ids_of(running.client.open("t", 4)) == [0, 1, 2]
        assert not list(location.glob("_quarantine/*"))
