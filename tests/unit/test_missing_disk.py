"""A folder that comes in place of a tables root, as where its disk isn't mounted, is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import lance
import pytest

from commitlog.adapters import disk, storage
from commitlog.core.decisions import Found, Wanted
from commitlog.errors import InvalidTransaction, Unavailable
from consumers.cli import main
from consumers.commands.exit_codes import ExitCode
from consumers.partition.checkpoints.table_places import check_all
from consumers.partition.observer import StoreObserver
from consumers.runtime.endpoints import read_endpoints, write_endpoints
from consumers.runtime.places import RootMoved, check_place, check_unused
from tests.service import SCHEMA, Service, ids_of, rows
from tests.waiting import wait_until

WAITS = "mount its disk, or put it back where it was"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Service]:
    """A service whose tables root has the log's mark."""
    made = Service(tmp_path)
    try:
        check_place(made.log)
        made.start().await_leading()
        made.client.create_table("t", SCHEMA)
        made.client.append("t", rows(1))
        yield made
    finally:
        made.close()


def test_what_is_in_another_folder_is_not_committed(
    running: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client, tables, location = running.client, tmp_path / "tables", running.location("t")
    tables.rename(tmp_path / "disk")
    refused: list[BaseException] = []

    def append() -> None:
        try:
            client.append("t", rows(2))
        except InvalidTransaction as error:
            refused.append(error)

    writer = Thread(target=append)
    writer.start()
    wait_until(lambda: WAITS in caplog.text or not writer.is_alive(), "an answer, or a wait")
    assert writer.is_alive()  # its file is there, in the wrong place
    assert list(location.glob("data/*.lance"))
    again = lance.LanceOperation.Append(lance.fragment.write_fragments(rows(4), location))
    with pytest.raises(Unavailable, match=WAITS):
        client.submit("t", again, read_version=2, dry_run=True).result()
    tables.rename(tmp_path / "stray")
    (tmp_path / "disk").rename(tables)
    writer.join()
    assert "waits for its store no more, after " in caplog.text
    assert "isn't in" in str(refused[0])
    client.append("t", rows(3))
    assert ids_of(lance.dataset(str(location))) == [1, 3]


def test_another_folder_gets_no_mark(running: Service, tmp_path: Path) -> None:
    location = running.location("t")
    running.running[0].stop()
    (tmp_path / "tables").rename(tmp_path / "disk")
    (location / "data").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(RootMoved, match="^table t: the files are missing"):
            check_all(running.log, tmp_path)
    assert not (tmp_path / "tables" / "_commitlog").exists()


@pytest.mark.parametrize("bytes_max", [None, 5_000], ids=["terabytes", "small"])
@pytest.mark.parametrize("policy", ["every", "latest"])
def test_a_strangers_version_that_is_too_large_to_read_is_moved_away_unread(
    running: Service, bytes_max: int | None, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table waited for somebody to move it."""
    client = running.client
    client.create_table("u", SCHEMA, policy=policy)
    client.append("u", rows(1))
    head, versions = client.table("u").version, running.location("u") / "_versions"
    strays = [versions / f"{2**64 - 1 - head - number:020}.manifest" for number in (1, 2)]
    if bytes_max is not None:
        monkeypatch.setattr(disk, "READ_BYTES_MAX", bytes_max)
        monkeypatch.setattr(storage, "READ_BYTES_MAX", bytes_max)
    for stray in strays:
        stray.touch()
        os.truncate(stray, 1 << 42 if bytes_max is None else bytes_max + 1)
    assert client.append("u", rows(2)).version == head + 1
    assert ids_of(client.open("u")) == ids_of(lance.dataset(str(versions.parent))) == [1, 2]
    kept = (running.location("u") / "_quarantine").iterdir()
    assert sorted(path.name.split("-")[0] for path in kept) == sorted(one.name for one in strays)
    assert client.append("u", rows(3)).version == head + 2
    assert client.runtime().request(0, "status")["epoch"] == 1


def test_memory_that_a_file_does_not_fit_into_delays_its_table_alone(
    running: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The term ended, and each leader after it read the same file."""
    client, observe = running.client, StoreObserver.observe
    client.create_table("other", SCHEMA)
    location, is_short = str(running.location("t")), True

    def short(observer: StoreObserver, wanted: Wanted) -> Found:
        if is_short and wanted.location == location:
            raise MemoryError
        return observe(observer, wanted)

    monkeypatch.setattr(StoreObserver, "observe", short)
    writer = Thread(target=client.append, args=("t", rows(2)))
    writer.start()
    wait_until(lambda: "memory ran out" in caplog.text, "a wait")
    assert client.append("other", rows(1)).version == 2
    assert writer.is_alive()
    is_short = False
    writer.join()
    assert ids_of(lance.dataset(location)) == [1, 2]
    assert client.runtime().request(0, "status")["epoch"] == 1


def test_a_root_without_its_log_names_the_cluster_that_had_it(tmp_path: Path) -> None:
    (tmp_path / "index.duckdb").touch()
    write_endpoints(tmp_path, {"bootstrap_servers": "kafka:9092", "log": "log"})
    with pytest.raises(RootMoved, match="--bootstrap-servers kafka:9092, where it was last"):
        check_unused(tmp_path, "log")


def test_no_broker_takes_the_place_of_the_cluster_that_has_a_roots_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "index.duckdb").touch()
    left = {"bootstrap_servers": "kafka:9092", "log": "log"}
    write_endpoints(tmp_path, left)
    assert main(["broker", "--root", str(tmp_path), "--kafka-port", "0"]) == ExitCode.MACHINE
    assert "--bootstrap-servers kafka:9092, where it was last" in capsys.readouterr().err
    assert read_endpoints(tmp_path) == left
