"""What `commitlog maintain --once` and `--dry-run` tell, and which tables it looks at early."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from commitlog.client.upkeep import rewrite_here
from commitlog.errors import Unavailable
from commitlog.model.operations import AlterProperties
from consumers.commands import upkeep
from consumers.commands.exit_codes import ExitCode
from consumers.commands.on_spark import SparkEnded
from consumers.tools.maintenance import maintenance as maintenance_module
from consumers.tools.maintenance import table_acts
from consumers.tools.maintenance.maintenance import Maintenance
from tests.service import SCHEMA, Service, rows, service
from tests.waiting import meanwhile, wait_until


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

    def told(*, ends: ExitCode = ExitCode.OK, **more: Any) -> list[dict[str, str]]:
        assert upkeep.maintain(as_json=True, **more) == ends
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
    done = told(once=True, ends=ExitCode.REFUSED)
    assert [(one["table"], one["act"]) for one in done] == due
    results = ["16 fragments became 1", "left for later: the leader went away"] * 2
    assert all(said in one["result"] for said, one in zip(results, done, strict=True))


@pytest.mark.slow
def test_what_was_done_is_told_though_sparks_process_ended(
    made: Service, told: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for table in ("a", "b", "c"):
        made.client.create_table(table, SCHEMA)
        for number in range(16):
            made.client.append(table, rows(number))
    plain = upkeep._maintenance

    @contextmanager
    def ending(config: Any, defaults: Any, master: str, stop: Any, **more: Any) -> Iterator[Any]:
        def rewrite(info: Any, dataset: Any, tasks: Any, deadline: float) -> Any:
            if info.name == "a":
                return rewrite_here(info, dataset, tasks, deadline)
            assert info.name == "b", "no other table is tried"
            stop.set()
            raise Unavailable("the Spark job failed")

        with plain(config, defaults, master, stop, rewrite=rewrite, **more) as maintenance:
            yield maintenance
        raise SparkEnded(137)

    monkeypatch.setattr(upkeep, "_maintenance", ending)
    with pytest.raises(SparkEnded):
        told(once=True)
    done = json.loads(capsys.readouterr().out)
    assert [one["table"] for one in done] == ["a", "b"]
    assert done[1]["result"] == "left for later: the Spark job failed"


@pytest.mark.slow
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
    done = told(once=True, ends=ExitCode.REFUSED)
    assert [one["table"] for one in done] == ["a", "c"]
    assert done[0]["result"].startswith("left for later: ")


def test_a_table_that_cannot_be_looked_at_is_not_busy(
    made: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*given: Any, **named: Any) -> Any:
        raise OSError("its store is away")

    monkeypatch.setattr(maintenance_module, "BUSY_VERSIONS", 3)
    monkeypatch.setattr(table_acts.TableActs, "due", away)
    made.client.create_table("t", SCHEMA)
    for number in range(2):
        made.client.append("t", rows(number))
    maintenance = Maintenance(made.client)
    assert maintenance._busy() == {"t"}
    maintenance.look()
    assert not maintenance._busy(), "the next regular look tries again"
    for number in range(3):
        made.client.append("t", rows(number))
    assert maintenance._busy() == {"t"}


def test_tables_at_rest_are_not_described_again(
    made: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To describe thousands takes a leader a third of a second, in which its writers wait."""
    monkeypatch.setattr(maintenance_module, "BUSY_VERSIONS", 3)
    monkeypatch.setattr(maintenance_module, "GLANCE_SECONDS", 0.02)
    asked = list[tuple[str, ...]]()
    ask = made.client.runtime().request

    def noted(partition: int, method: str, **params: Any) -> Any:
        asked.append((method, *params.get("table", ())))
        return ask(partition, method, **params)

    for table in ("a", "b"):
        made.client.create_table(table, SCHEMA)
        made.client.append(table, rows(1))
    monkeypatch.setattr(made.client.runtime(), "request", noted)
    maintenance = Maintenance(made.client)

    def looks_end(count: int) -> bool:
        return [method for method, *_ in asked].count("maintained") >= count

    def ends_of(table: str) -> int:
        return maintenance._looked.get(table, (0, 0))[0]

    with meanwhile(lambda stop: maintenance.run(stop, 0.2)):
        wait_until(lambda: looks_end(4), "several regular looks")
        assert asked.count(("tables",)) == 1, "all were at rest since the first look"
        for number in range(3):
            made.client.append("a", rows(number))
        newest = made.client.table("a").version
        wait_until(lambda: ends_of("a") >= newest, "a look at what has changed")
    asked.clear()
    maintenance.look_at_tables(only=("b", "gone"))
    assert ("tables",) not in asked


def test_a_table_whose_look_failed_is_looked_at_again_though_nothing_is_decided(
    made: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.client.create_table("t", SCHEMA)
    made.client.append("t", rows(0))
    maintenance = Maintenance(made.client)
    maintenance.look()
    assert maintenance._is_at_rest()
    for number in range(15):
        made.client.append("t", rows(number))
    with monkeypatch.context() as away:
        away.setattr(table_acts.TableActs, "due", Mock(side_effect=OSError("its store is away")))
        maintenance.look()
    assert not maintenance._is_at_rest()


def test_a_table_whose_files_are_missing_keeps_no_other_waiting(
    made: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for table in ("away", "there"):
        made.client.create_table(table, SCHEMA)
        made.client.append(table, rows(0))
    session = made.running[0].committer._session
    assert session is not None
    session.failing_tables = ("away",)
    due = Mock(return_value=())
    monkeypatch.setattr(table_acts.TableActs, "due", due)
    maintenance = Maintenance(made.client)
    maintenance.look()
    assert [call.args[0].name for call in due.call_args_list] == ["there"]
    assert "away was left for later: its files can't be written" in caplog.text
    assert not maintenance._is_at_rest()


def test_a_file_that_is_gone_is_told_without_places_in_lances_sources(
    made: Service, caplog: pytest.LogCaptureFixture
) -> None:
    made.client.create_table("t", SCHEMA)
    error = OSError("Not found: t.lance/data/0.lance, rust/lance-io/src/object_reader.rs:335:56")
    table_acts.tell_failed(made.client, made.client.table("t"), error)
    assert "t was left for later: Not found: t.lance/data/0.lance" in caplog.text
    assert ".rs" not in caplog.text


def test_a_table_at_rest_is_looked_at_once_its_properties_change(made: Service) -> None:
    made.client.create_table("t", SCHEMA)
    for number in range(16):
        made.client.append("t", rows(number))
    made.client.set_properties("t", {"commitlog.maintain.mode": "off"})
    maintenance = Maintenance(made.client)
    assert not maintenance.look_at_tables()
    made.client.set_properties("t", {"commitlog.maintain.mode": "on"})
    assert "compact" in [act.kind for act in maintenance.look_at_tables()]
