"""What somebody puts in the way of the log's files holds up nobody, and isn't lost."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog.adapters import disk
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.adapters.storage import LocalStore, sha256_of, store_for
from commitlog.core.iceberg.naming import derived_uuid
from consumers.partition.obstacles import MARK, Obstacle, put
from consumers.servers.iceberg.log import LogIcebergService
from consumers.servers.iceberg.service import IcebergSettings
from tests.iceberg_files_world import find_orphans
from tests.iceberg_server import IcebergServer, serving
from tests.namespace_world import World

_KEY = "0199a000-0000-4000-8000-00000000aa{:02x}"
_OTHERS = b"somebody else's"


def a_file(path: Path) -> None:
    path.write_bytes(_OTHERS)


def a_folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_bytes(_OTHERS)


def a_broken_link(path: Path) -> None:
    path.symlink_to("nowhere")


def a_circle_of_links(path: Path) -> None:
    path.symlink_to(path.name)


def a_link_to_a_file(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(_OTHERS)
    path.symlink_to("elsewhere")


def a_file_for_its_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("renamed"))
    path.parent.write_bytes(_OTHERS)


def a_broken_link_for_its_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("renamed"))
    path.parent.symlink_to("nowhere")


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(path.parent):
        listener.bind(path.name)  # whole paths may be too long for it


IN_THE_WAY: list[Callable[[Path], None]] = [
    a_file,
    a_folder,
    a_broken_link,
    a_circle_of_links,
    a_link_to_a_file,
    a_file_for_its_folder,
    a_broken_link_for_its_folder,
    a_pipe,
    a_socket,
]


@pytest.fixture(scope="module")
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture(scope="module")
def world(cluster: MemoryCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    running = World(tmp_path_factory.mktemp("in-the-way"), lambda: MemoryLog(cluster))
    yield running
    running.close()


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[IcebergServer]:
    service = LogIcebergService(world.log)
    with serving(service, IcebergSettings(service.tables_root, timeout_seconds=20)) as running:
        yield running


def aside(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if MARK in path.name]


@pytest.mark.slow
@pytest.mark.parametrize("obstruct", IN_THE_WAY)
def test_a_commit_takes_its_name_from_whatever_has_it(
    cluster: MemoryCluster, world: World, server: IcebergServer, obstruct: Callable[[Path], None]
) -> None:
    name = world.fresh_name()
    tables = f"/v1/namespaces/{name}/tables"
    server.ask("POST", "/v1/namespaces", {"namespace": [name]})
    body = {"name": "ice", "schema": {"type": "struct", "fields": []}}
    made = server.ask("POST", tables, body).json["metadata"]
    location = Path(made["location"])
    key = _KEY.format(IN_THE_WAY.index(obstruct))
    uuid = derived_uuid("\x1f".join((key, name, "ice")), made["table-uuid"])
    expected = location / "metadata" / f"00001-{uuid}.metadata.json"
    obstruct(expected)

    change: dict[str, Any] = {
        "requirements": [],
        "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
    }
    reply = server.ask("POST", f"{tables}/ice", change, {"Idempotency-Key": key})
    assert (reply.status, reply.json["metadata-location"]) == (200, str(expected)), reply.data
    assert server.ask("GET", f"{tables}/ice").json["metadata"]["properties"]["a"] == "b"
    (moved,) = aside(location)
    if obstruct in (a_file, a_file_for_its_folder, a_link_to_a_file):
        assert moved.read_bytes() == _OTHERS
    elif obstruct is a_folder:
        assert (moved / "inside").read_bytes() == _OTHERS
    else:
        assert moved.is_symlink() or moved.is_fifo() or moved.is_socket()
    found = find_orphans(MemoryLog(cluster), str(world.tables_root))
    listed = {one.location: one.reason for one in found}
    place = str(moved / "inside") if obstruct is a_folder else str(moved)
    assert listed[place] == "it was in the way of a file of the log"


def test_a_commit_goes_on_once_its_folder_may_be_written_again(
    world: World, server: IcebergServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = world.fresh_name()
    tables = f"/v1/namespaces/{name}/tables"
    server.ask("POST", "/v1/namespaces", {"namespace": [name]})
    body = {"name": "ice", "schema": {"type": "struct", "fields": []}}
    location = server.ask("POST", tables, body).json["metadata"]["location"]
    put_new, failures = disk.put_new, iter(range(2))

    def denied(path: str, data: bytes, *, durable: bool) -> None:
        if path.startswith(location) and next(failures, None) is not None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        put_new(path, data, durable=durable)

    monkeypatch.setattr(disk, "put_new", denied)
    change = {"updates": [{"action": "set-properties", "updates": {"a": "b"}}], "requirements": []}
    assert server.ask("POST", f"{tables}/ice", change).status == 200
    assert next(failures, None) is None
    assert not aside(Path(location))


def test_what_is_written_already_stays(tmp_path: Path) -> None:
    store = store_for(str(tmp_path))
    for _ in range(2):
        assert put(store, str(tmp_path), "metadata/file", b"ours") is None
    assert (tmp_path / "metadata" / "file").read_bytes() == b"ours"
    assert not aside(tmp_path)


@pytest.mark.parametrize("is_ours", [False, True])
def test_only_what_was_seen_is_displaced(tmp_path: Path, is_ours: bool) -> None:
    """Another leader may put the log's own file there while this one asks whether it leads."""
    store, place = store_for(str(tmp_path)), tmp_path / "file"
    place.write_bytes(b"a dead term's")
    found = put(store, str(tmp_path), "file", b"held up")
    place.write_bytes(b"the log's")
    again = put(store, str(tmp_path), "file", b"held up", found, is_ours=is_ours)
    assert place.read_bytes() == b"the log's"
    assert (found, again) == (
        Obstacle("file", sha256_of(b"a dead term's")),
        Obstacle("file", sha256_of(b"the log's")),
    )
    assert put(store, str(tmp_path), "file", b"ours", again, is_ours=is_ours) is None
    assert place.read_bytes() == b"ours"
    assert [one.read_bytes() for one in aside(tmp_path)] == [b"the log's"] * (not is_ours)


class _Failing:
    """A store that fails; nothing in it may be moved for that."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def create(self, path: str, data: bytes) -> bool:
        raise self._error

    def move(self, path: str, to: str) -> None:
        raise AssertionError(f"{path} was moved")


_FAILURES = [
    OSError("timed out"),
    OSError(errno.EIO, "I/O"),
    OSError(errno.ENOSPC, "full"),
    OSError(errno.EACCES, "denied"),
    OSError(errno.EPERM, "not permitted"),
]


@pytest.mark.parametrize("error", _FAILURES)
def test_a_store_that_fails_is_not_tidied_up(error: OSError, tmp_path: Path) -> None:
    store: Any = _Failing(error)
    with pytest.raises(OSError, match=str(error).replace("[", r"\[").replace("]", r"\]")):
        put(store, str(tmp_path), "file", b"ours")


def unreadable(path: str) -> bytes:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def test_a_file_that_cannot_be_read_is_in_the_way_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(_OTHERS)
    store = LocalStore(tmp_path)
    monkeypatch.setattr(store, "read", unreadable)
    found = put(store, str(tmp_path), "file", b"ours")
    assert found == Obstacle("file", "")
    assert put(store, str(tmp_path), "file", b"ours", found) is None
    assert (tmp_path / "file").read_bytes() == b"ours"
    assert [one.read_bytes() for one in aside(tmp_path)] == [_OTHERS]


@pytest.mark.parametrize("content", [b"ours", b"another leader's"])
def test_what_can_be_read_again_is_not_displaced_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    (tmp_path / "file").write_bytes(content)
    store = LocalStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(store, "read", unreadable)
        found = put(store, str(tmp_path), "file", b"ours")
    again = put(store, str(tmp_path), "file", b"ours", found)
    assert again == (None if content == b"ours" else Obstacle("file", sha256_of(content)))
    assert (tmp_path / "file").read_bytes() == content
    assert not aside(tmp_path)


def test_what_may_not_be_moved_is_no_other_program_that_keeps_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(_OTHERS)
    store = LocalStore(tmp_path)
    found = put(store, str(tmp_path), "file", b"ours")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda source, target: unreadable(source))
        with pytest.raises(PermissionError, match="file"):
            put(store, str(tmp_path), "file", b"ours", found)
    assert put(store, str(tmp_path), "file", b"ours", found) is None


@pytest.mark.parametrize("obstruct", [a_file, a_broken_link, a_file_for_its_folder])
def test_what_somebody_has_removed_meanwhile_is_in_nobodys_way(
    tmp_path: Path, obstruct: Callable[[Path], None]
) -> None:
    place = tmp_path / "metadata" / "file"
    place.parent.mkdir()
    obstruct(place)
    store = store_for(str(tmp_path))
    found = put(store, str(tmp_path), "metadata/file", b"ours")
    assert found is not None
    (tmp_path / found.path).unlink()
    assert put(store, str(tmp_path), "metadata/file", b"ours", found) is None
    assert place.read_bytes() == b"ours"
