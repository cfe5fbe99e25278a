"""What `commitlog maintain --once` and `--dry-run` tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commitlog.errors import Unavailable
from commitlog.model.operations import AlterProperties
from consumers.commands import upkeep
from consumers.tools import table_acts
from consumers.tools.maintenance import Maintenance
from tests.service import SCHEMA, Service, rows, service


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path / "root") as running:
        yield running


@pytest.fixture
def told(made: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    @contextmanager
    def maintenance(
        config: object, defaults: Any, master: str, stop: Any, **more: Any
    ) -> Iterator[Any]:
        del more["removal_seconds"]
        yield Maintenance(made.client, defaults=defaults, **more)

    def told(**more: Any) -> list[dict[str, str]]:
        upkeep.maintain(as_json=True, **more)
        found: list[dict[str, str]] = json.loads(capsys.readouterr().out)
        return found

    monkeypatch.setattr(upkeep, "_maintenance", maintenance)
    return told


def test_an_empty_log_has_nothing_due(told: Any) -> None:
    assert told(dry_run=True) == told(once=True) == []


def test_what_was_done_is_told_though_more_failed(
    made: Service, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {"commitlog.maintain.retain-versions": "1"}
    for table in ("a", "b"):
        made.client.create_table(table, SCHEMA, properties=properties)
        for number in range(16):
            made.client.append(table, rows(number))

    def failing(*given: object) -> str:
        raise Unavailable("the leader went away")

    due = [("a", "compact"), ("a", "expire"), ("b", "compact"), ("b", "expire")]
    assert [(one["table"], one["act"]) for one in told(dry_run=True)] == due
    monkeypatch.setattr(table_acts, "expire", failing)
    done = told(once=True)
    assert [(one["table"], one["act"]) for one in done] == [("a", "compact"), ("b", "compact")]
    assert all("16 fragments became 1" in one["result"] for one in done)


def test_a_broken_table_holds_up_no_other(made: Service, told: Any) -> None:
    for table in ("a", "b", "c"):
        made.client.create_table(table, SCHEMA)
        for number in range(16):
            made.client.append(table, rows(number))
    for path in made.location("a").rglob("*.lance"):
        path.unlink()
    wrong = AlterProperties(("b",), upserts=(("commitlog.maintain.mode", "perhaps"),))
    made.client.submit(None, wrong).result().raise_for_conflict()
    assert [one["table"] for one in told(dry_run=True)] == ["a", "c"]
    assert [one["table"] for one in told(once=True)] == ["c"]
