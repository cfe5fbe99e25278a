"""Between two looks for files to remove, maintenance keeps what it read and no connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog.adapters.memory import MemoryLog, MemoryReader
from commitlog.errors import CorruptLog, Unavailable
from consumers.tools.maintenance.iceberg_purges import IcebergPurges
from consumers.tools.maintenance.maintenance import Maintenance
from consumers.tools.maintenance.removals import Removals
from consumers.tools.maintenance.table_acts import Act
from consumers.tools.orphans.orphans import Leftovers
from tests.operations_world import T
from tests.service import SCHEMA, service
from tests.waiting import meanwhile, wait_until


def test_between_two_looks_for_files_no_reader_is_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: set[int] = set()
    looks = list[tuple[int, int]]()
    poll, end, look = MemoryReader.poll, MemoryReader.end_offset, Removals.look

    def seen(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: MemoryReader[Any], *given: Any, **named: Any) -> Any:
            if threading.current_thread().name == "removals":
                connected.add(id(self))
            return method(self, *given, **named)

        return call

    def looked(self: Removals, **named: Any) -> list[Act]:
        before = len(connected)
        acts = look(self, **named)
        looks.append((before, len(connected)))
        return acts

    monkeypatch.setattr(MemoryReader, "poll", seen(poll))
    monkeypatch.setattr(MemoryReader, "end_offset", seen(end))
    monkeypatch.setattr(MemoryReader, "rest", lambda self: connected.discard(id(self)))
    monkeypatch.setattr(Removals, "look", looked)
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA)
        maintenance = Maintenance(
            made.client, open_log=lambda: MemoryLog(made.cluster), removal_seconds=0.0
        )
        with meanwhile(lambda stop: maintenance.run(stop, 0.05)):
            # A look that took long is followed by some that don't list files.
            wait_until(
                lambda: any(after >= 4 for _, after in looks[:-1]),
                "a look that read two topics, for files of tables and for dropped ones, and a next",
            )
    assert [before for before, _ in looks] == [0] * len(looks)


def test_what_was_read_of_the_log_stays_known_while_the_leader_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop, closed = threading.Event(), list[bool]()

    def away() -> bool:
        stop.set()
        raise Unavailable("the leader is away")

    with service(tmp_path / "root") as made:
        maintenance = Maintenance(made.client, open_log=lambda: MemoryLog(made.cluster))
        removals = maintenance._removals
        assert removals is not None
        close = removals.close

        def counted() -> None:
            closed.append(stop.is_set())
            close()

        monkeypatch.setattr(removals, "close", counted)
        monkeypatch.setattr(removals._policies, "refresh", away)
        removals._interval_seconds = 0.0
        removals.run(stop, 0.0)
    assert len(closed) == 1, "only as it ends: to read a log of years again takes hours"
    [said] = [one for one in caplog.records if "left for later" in one.message]
    assert said.exc_info is None


@pytest.mark.parametrize("where", [(IcebergPurges, "due"), (Leftovers, "find")])
@pytest.mark.parametrize(
    ("error", "closes"),
    [(Unavailable("Kafka is silent"), 1), (OSError("a store fails"), 1), (CorruptLog("?"), 2)],
)
def test_what_was_read_of_the_log_stays_known_while_somebody_is_away(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: tuple[type, str],
    error: Exception,
    closes: int,
) -> None:
    closed: list[None] = []

    def away(self: object, *given: object) -> Iterator[Act]:
        raise error
        yield

    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA)
        maintenance = Maintenance(
            made.client, open_log=lambda: MemoryLog(made.cluster), removal_seconds=0.0
        )
        removals = maintenance._removals
        assert removals is not None
        close = removals.close

        def counted() -> None:
            closed.append(None)
            close()

        monkeypatch.setattr(removals, "close", counted)
        monkeypatch.setattr(*where, away)
        maintenance.look()
        maintenance.close()
    assert len(closed) == closes
