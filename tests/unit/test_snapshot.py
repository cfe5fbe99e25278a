"""A snapshot is one cut over all tables, of both formats, at any position."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import lance
import pytest

from commitlog.adapters.storage import LocalStore
from commitlog.client.history.positions import milliseconds_of
from commitlog.client.history.snapshot import Snapshot
from commitlog.core.iceberg.reading import dump_json
from commitlog.errors import InvalidRequest, NoSuchTable, NoSuchVersion, Unavailable
from commitlog.model.operations import IcebergChange, RenameTable
from consumers.views.version_index import run_index
from tests.feed_reading import told
from tests.service import SCHEMA, Service, rows, service
from tests.unit.iceberg_examples import create_updates
from tests.waiting import up_to_end

STEPS = 5
TIMEOUT_SECONDS = 180.0
ICE = ("shop", "ice")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("snapshot")) as running:
        client = running.client
        client.create_table("shop$lance", SCHEMA, policy="latest")
        place = str(running.root / "tables" / "shop" / "ice")
        made = IcebergChange(ICE, '[{"type":"assert-create"}]', dump_json(create_updates(place)))
        client.submit(None, made).result().raise_for_conflict()
        client.create_table("old", SCHEMA)
        for step in range(1, STEPS + 1):
            update = [{"action": "set-properties", "updates": {"step": str(step)}}]
            with client.transact() as both:
                both.append("shop$lance", rows(step))
                both.submit(None, IcebergChange(ICE, "[]", json.dumps(update)))
            wrong = IcebergChange(ICE, '[{"type":"assert-create"}]', "[]")
            assert client.submit(None, wrong).result().version == 0
            client.append("old", rows(step))
        client.submit(None, RenameTable(("old",), ("older",))).result().raise_for_conflict()
        client.append("older", rows(9))
        client.drop_table("older")
        yield running


@pytest.fixture(scope="module")
def head(shop: Service) -> int:
    return int(shop.client.runtime().request(0, "status")["sequence"])


@pytest.fixture(scope="module")
def index(shop: Service) -> str:
    run_index(shop.log, shop.root, **up_to_end())
    return str(shop.root / "index.duckdb")


def steps(snapshot: Snapshot) -> tuple[int, int]:
    """Return how many of the transactions on both tables each of them has."""
    properties = snapshot.metadata("shop$ice")["properties"]
    return snapshot.open("shop$lance").count_rows(), int(properties.get("step", 0))


def test_both_tables_of_a_transaction_are_there_or_neither(shop: Service, head: int) -> None:
    seen = []
    for position in range(head, 0, -1):
        snapshot = shop.client.snapshot(position)
        assert snapshot.positions == {0: position}
        if "shop$ice" in snapshot.tables:
            rows_there, ice = steps(snapshot)
            assert rows_there == ice
            seen.append(ice)
    assert sorted(set(seen)) == list(range(STEPS + 1))
    assert seen == sorted(seen, reverse=True)
    assert steps(shop.client.snapshot()) == (STEPS, STEPS)


def test_two_tables_are_opened_as_of_a_commit_while_one_of_them_has_no_file_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By path they may differ meanwhile; a snapshot shows both as the log has them, or waits."""
    with service(tmp_path) as running:
        client = running.client
        for name in ("a", "b"):
            client.create_table(name, SCHEMA)
        late = str(running.location("b"))
        is_held = threading.Event()
        is_held.set()
        create = LocalStore.create

        def failing(store: LocalStore, path: str, data: bytes) -> bool:
            if is_held.is_set() and store._root == late:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return create(store, path, data)

        monkeypatch.setattr(LocalStore, "create", failing)
        with client.transact(wait="committed") as both:
            for name in ("a", "b"):
                both.append(name, rows(1))
        assert both.outcome is not None
        snapshot = client.snapshot(both.outcome.sequence)
        before = client.snapshot(both.outcome.sequence - 1)

        def count(name: str) -> int:
            return int(snapshot.open(name).count_rows())

        with ThreadPoolExecutor() as pool:
            counts = [pool.submit(count, name) for name in ("a", "b")]
            assert counts[0].result(TIMEOUT_SECONDS) == 1
            assert lance.dataset(late).count_rows() == 0, "by path it is as before"
            assert [before.open(name).count_rows() for name in ("a", "b")] == [0, 0]
            is_held.clear()
            assert counts[1].result(TIMEOUT_SECONDS) == 1


@pytest.mark.slow
def test_a_table_of_a_snapshot_is_not_written_around_the_log(shop: Service, head: int) -> None:
    opened = shop.client.snapshot(head).open("shop$lance")
    for write in (
        lambda: opened.delete("true"),
        lambda: opened.checkout_version(1).restore(),
        lambda: lance.write_dataset(rows(1), opened, mode="overwrite"),
    ):
        with pytest.raises(InvalidRequest, match=r"a table of a snapshot is read-only.*log.open"):
            write()
    assert opened.count_rows() == shop.client.open("shop$lance").count_rows()


@pytest.mark.slow
def test_an_index_says_the_same_as_the_log(shop: Service, head: int, index: str) -> None:
    for position in (*range(head + 1), None):
        folded = shop.client.snapshot(position)
        asked = shop.client.snapshot(position, index=index)
        assert asked.tables == folded.tables, position
        assert asked.positions == folded.positions
    shop.client.create_table("after", SCHEMA)
    with pytest.raises(Unavailable, match=f"has only {head} of {head + 1}"):
        shop.client.snapshot(head + 1, index=index)
    shop.client.drop_table("after")


def test_a_table_has_the_name_that_it_had(shop: Service, head: int) -> None:
    names = [frozenset(shop.client.snapshot(position).tables) for position in range(head + 1)]
    changes = [name for name, before in zip(names[1:], names, strict=False) if name != before]
    ours = [{one for one in names if not one.startswith("shop$")} for names in changes]
    assert ours[-3:] == [{"old"}, {"older"}, set()]
    before_rename = max(p for p in range(head + 1) if "old" in names[p])
    assert shop.client.snapshot(before_rename).open("old").count_rows() == STEPS
    assert shop.client.snapshot(head - 1).open("older").count_rows() == STEPS + 1
    with pytest.raises(NoSuchTable, match="There are no tables at that position"):
        shop.client.snapshot(0).table("old")
    with pytest.raises(NoSuchTable, match="older"):
        shop.client.snapshot(head).open("older")


def test_an_iceberg_table_opens_with_pyiceberg(shop: Service) -> None:
    table = shop.client.snapshot().open("shop$ice")
    assert table.properties["step"] == str(STEPS)
    with pytest.raises(InvalidRequest, match="Lance"):
        shop.client.snapshot().metadata("shop$lance")


def test_an_event_names_a_snapshot(shop: Service) -> None:
    for event in told(shop.client, "shop$ice", "beginning"):
        snapshot = shop.client.snapshot(event.token)
        assert snapshot.positions == {0: event.sequence}
        assert "shop$ice" in snapshot.tables


@pytest.mark.parametrize("position", [10_000, -1, {1: 3}, {}, True, "rubbish", 2.5])
def test_a_wrong_position_says_what_is_wrong(shop: Service, position: object) -> None:
    with pytest.raises(InvalidRequest):
        shop.client.snapshot(position)  # type: ignore[arg-type]


def test_files_that_are_gone_are_no_version(shop: Service, head: int, tmp_path: Path) -> None:
    snapshot = shop.client.snapshot(head - 1)
    manifests = Path(snapshot.table("older").location) / "_versions"
    kept = manifests.rename(tmp_path / "kept")
    try:
        with pytest.raises(NoSuchVersion, match="dropped"):
            snapshot.open("older")
    finally:
        kept.rename(manifests)
    with pytest.raises(Unavailable, match="no version index exists yet"):
        shop.client.snapshot(index=str(tmp_path / "none.duckdb"))


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:00.123999", 124),  # as pylance shows a version of 124
        ("1970-01-01T00:00:00.123", 123),
        ("1970-01-01T00:00:00.999999", 999),  # the end of a second, or of a day
        ("1970-01-01T01:00:00.001+01:00", 1),
        ("9999-12-31T23:59:59.999999", 253_402_300_799_999),
    ],
)
def test_a_time_is_the_millisecond_that_it_was_written_for(text: str, milliseconds: int) -> None:
    assert milliseconds_of(datetime.fromisoformat(text)) == milliseconds


def test_current_versions_are_held_without_reading_the_log(
    shop: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader's lease costs the same however long the log is."""
    client = shop.client
    for table in ("held", "held_too"):
        client.create_table(table, SCHEMA)
    newest = client.append("held", rows(1)).version

    def read(*_: object, **__: object) -> None:
        raise AssertionError("the log is read")

    monkeypatch.setattr("commitlog.client.history.folds.PartitionFeed.read_to", read)
    client.hold("lease", "held", lasting=timedelta(hours=1))
    client.hold("report", ["held", "held_too"], "now")
    properties = client.table("held").properties
    assert properties["commitlog.hold.report"] == str(newest)
    assert properties["commitlog.hold.lease"].startswith(f"{newest} until ")
    assert client.table("held_too").properties["commitlog.hold.report"] == "1"
    with pytest.raises(NoSuchTable, match="no table lost"):
        client.hold("report", ["held", "lost"])
    with pytest.raises(NoSuchTable, match="is an Iceberg table"):
        client.hold("report", [list(ICE), "held"])
