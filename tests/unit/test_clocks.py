"""What must hold while the clock of one machine is wrong."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from commitlog.errors import InvalidRequest
from tests.service import SCHEMA, Service, rows, service

TABLE = "shop$orders"
DAY_SECONDS = 86_400


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Service]:
    """Return a service with one table of six versions."""
    with service(tmp_path) as running:
        running.client.create_table(TABLE, SCHEMA)
        for number in range(5):
            running.client.append(TABLE, rows(number))
        yield running


def turn(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Turn the clock of this process, whose leader goes on by the time of before."""
    right_ns, right = time.time_ns, time.time
    monkeypatch.setattr(time, "time_ns", lambda: right_ns() + round(seconds * 10**9))
    monkeypatch.setattr(time, "time", lambda: right() + seconds)


@pytest.mark.parametrize("seconds", [-3_600, -10 * 365 * DAY_SECONDS])
def test_a_reader_whose_clock_is_behind_reads_as_of_the_last_commit(
    world: Service, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    newest = datetime.fromtimestamp(world.client.append(TABLE, rows(9)).time_ms / 1000, UTC)
    turn(monkeypatch, seconds)
    assert world.client.snapshot(newest).open(TABLE).count_rows() == 6
    with pytest.raises(InvalidRequest, match="is in the future"):
        world.client.snapshot(newest + timedelta(days=1))


def test_a_lease_of_a_reader_whose_clock_is_behind_keeps_its_version(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn(monkeypatch, -DAY_SECONDS)
    world.client.hold("lease", TABLE, lasting=timedelta(hours=1))
    monkeypatch.undo()
    world.client.append(TABLE, rows(9))
    world.client.expire_versions(TABLE, retain_versions=1)
    assert world.client.table(TABLE).deleted == ((1, 5),)


def test_versions_expire_by_the_leaders_clock(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten years ahead, everything would be older than a week."""
    turn(monkeypatch, 10 * 365 * DAY_SECONDS)
    assert world.client.expire_versions(TABLE, older_than=timedelta(days=7)) is None
