"""Is a dataset that others read left alone by who changes tags? Pylance refuses to read it then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lance.dataset import Tags

from consumers.tools.maintenance.maintenance import Maintenance
from tests.namespace_world import World
from tests.service import SCHEMA, rows


def test_tags_change_on_a_dataset_that_nobody_else_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[str, Any]] = []

    def noted(name: str) -> None:
        inner = getattr(Tags, name)

        def call(tags: Tags, *given: Any) -> None:
            used.append((name, tags._ds))
            inner(tags, *given)

        monkeypatch.setattr(Tags, name, call)

    for name in ("create", "update", "delete"):
        noted(name)
    world = World(tmp_path)
    try:
        log = world.log
        log.create_table("home$t", SCHEMA)
        for number in range(4):
            log.append("home$t", rows(number))
        Maintenance(log).look()
        log.expire_versions("home$t", retain_versions=2)
        Maintenance(log).look()
        world.post("/v1/table/home$t/tags/create", {"tag": "one", "version": 4})
        world.post("/v1/table/home$t/tags/update", {"tag": "one", "version": 5})
        world.post("/v1/table/home$t/tags/delete", {"tag": "one"})
        assert [name for name, _ in used] == ["create", "update", "create", "update", "delete"]
        shared = [one._ds for one in log.opened._datasets.values()]
        assert shared
        assert not any(one is other for _, one in used for other in shared)
    finally:
        world.close()
