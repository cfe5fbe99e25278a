"""Changes of few rows in large fragments: only these rows are read."""

from __future__ import annotations

from typing import Any

import pytest

from commitlog.spark import changes
from tests.service import SCHEMA, Service, rows
from tests.unit.test_spark_changes import TABLE, drain, stream


@pytest.fixture
def world(running: Service) -> Service:
    return running


@pytest.mark.parametrize("stable", [True, False])
def test_few_changed_rows_of_a_large_fragment_are_looked_up(
    world: Service, monkeypatch: pytest.MonkeyPatch, stable: bool
) -> None:
    world.client.create_table(TABLE, SCHEMA, stable_row_ids=stable)
    world.client.append(TABLE, rows(*range(1000)))
    world.client.update(TABLE, {"name": "'z'"}, "id = 7 OR id = 800")
    world.client.delete(TABLE, "id = 9")
    scan, read = changes._scan, 0

    def counting(*args: Any) -> Any:
        nonlocal read
        for batch in scan(*args):
            read += batch.num_rows if args[2] else 0
            yield batch

    monkeypatch.setattr(changes, "_scan", counting)
    [told] = drain(stream(world, startingVersion="3"))
    kinds = ("update_preimage", "update_postimage") if stable else ("delete", "insert")
    assert told == [
        (kinds[0], 3, 7, "a"),
        (kinds[0], 3, 800, "a"),
        (kinds[1], 3, 7, "z"),
        (kinds[1], 3, 800, "z"),
        ("delete", 4, 9, "a"),
    ]
    assert read == len(told)
