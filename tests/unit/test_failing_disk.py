"""A call to the system fails in the middle: nothing is lost, and nothing is left lying about."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commitlog.adapters import disk
from commitlog.adapters.storage import LocalStore, sha256_of
from commitlog.core.decisions import (
    BytesWanted,
    FileWanted,
    FilteredWanted,
    ListDeltaWanted,
    ManifestWanted,
    VectorWanted,
)
from commitlog.model.limits import READ_BYTES_MAX
from commitlog.model.records import Observation
from consumers.partition.files.folders import DiskFolder
from consumers.partition.observer import StoreObserver
from tests.kills import Killed

_THEIRS = b"a stranger's"
_PATH, _ASIDE = "_versions/1.manifest", "_quarantine/1.manifest"


def fail(
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int = errno.EIO,
    *,
    when: Callable[[str], bool] = lambda path: True,
) -> None:
    """Have one of the system's calls fail for some paths."""
    real = getattr(os, call)

    def failing(path: Any, *others: Any, **options: Any) -> Any:
        if when(str(path)):
            raise OSError(number, os.strerror(number), path)
        return real(path, *others, **options)

    monkeypatch.setattr(os, call, failing)


def files(folder: Path) -> list[str]:
    return sorted(LocalStore(folder).walk())


def fail_once_moved(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Have the second look at a file fail."""
    looks = [disk.digest]

    def looked(path: str) -> str:
        if not looks:
            raise error
        return looks.pop()(path)

    patch.setattr(disk, "digest", looked)


def test_who_is_killed_while_setting_aside_leaves_the_file_where_it_was_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.write(_PATH, _THEIRS)
    fail_once_moved(monkeypatch, Killed())
    with pytest.raises(Killed):
        store.set_aside(_PATH, _ASIDE, sha256_of(_THEIRS))
    assert files(tmp_path) == [_ASIDE]


@pytest.mark.parametrize("call", ["rename", "makedirs", "read"])
@pytest.mark.parametrize("has_links", [True, False])
def test_what_cannot_be_set_aside_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, has_links: bool
) -> None:
    store = LocalStore(tmp_path)
    store.write(_PATH, _THEIRS)
    with monkeypatch.context() as patch:
        if call == "read":
            fail_once_moved(patch, OSError(errno.EIO, os.strerror(errno.EIO)))
        else:
            fail(patch, call)
        if not has_links:
            fail(patch, "link", errno.EPERM)
        with pytest.raises(OSError, match="Input/output"):
            store.set_aside(_PATH, _ASIDE, sha256_of(_THEIRS))
    assert files(tmp_path) == [_PATH]
    assert store.set_aside(_PATH, _ASIDE, sha256_of(_THEIRS))
    assert files(tmp_path) == [_ASIDE]


def test_a_file_where_the_folder_should_be_leaves_the_source(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write(_PATH, _THEIRS)
    store.write("_quarantine", b"a file")
    with pytest.raises(FileExistsError) as caught:
        store.set_aside(_PATH, _ASIDE, sha256_of(_THEIRS))
    assert disk.with_advice(caught.value).endswith(
        f"{tmp_path / '_quarantine'}': move away the file that is no folder"
    )
    assert files(tmp_path) == ["_quarantine", _PATH]


def test_a_pipe_is_no_file_to_wait_for(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert not store.create("pipe", b"ours")
    read, read_on = partial(store.read, "pipe"), partial(next, store.chunks("pipe"))
    copy = partial(LocalStore(tmp_path / "copy").take, "pipe", store)
    for look in (read, read_on, copy, partial(store.write_ahead, "pipe", b"")):
        with pytest.raises(OSError, match="No such device") as caught:
            look()
        assert "move away what is no file" in disk.with_advice(caught.value)


def test_a_leader_takes_no_pipe_for_a_file_and_refuses_who_names_it(tmp_path: Path) -> None:
    observer, place = StoreObserver(str(tmp_path)), str(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for kind in (FileWanted, BytesWanted, ManifestWanted, VectorWanted):
        assert observer.observe(kind(place, "pipe")).observation.size == -1


def test_of_a_file_that_seems_to_be_terabytes_a_leader_reads_the_size_alone(tmp_path: Path) -> None:
    """Who may write to a table's folder makes one of nothing, and no leader could decide on it."""
    observer, place, size = StoreObserver(str(tmp_path)), str(tmp_path), 1 << 42
    (tmp_path / "f").touch()
    os.truncate(tmp_path / "f", size)
    for kind in (BytesWanted, ManifestWanted, VectorWanted):
        found = observer.observe(kind(place, "f"))
        assert found.observation == Observation("f", size)
        assert found.error == f"it has {size} bytes, over {READ_BYTES_MAX}"
    delta = ListDeltaWanted(place, "f", "", 1, is_append=True)
    filtered = FilteredWanted(place, "new", "f")
    for wanted in (delta, filtered):
        found = observer.observe(wanted)
        assert (found.observation.size, "over 16777216" in str(found.error)) == (1, True)
    os.truncate(tmp_path / "f", 9)
    assert observer.observe(ManifestWanted(place, "f", 8)).observation == Observation("f", 9)
    assert observer.observe(ManifestWanted(place, "f", 9)).observation.sha256


def test_a_file_that_is_read_in_pieces_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, read = LocalStore(tmp_path), os.read
    store.write("file", b"some bytes")
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, 3)))
    assert store.read("file") == b"some bytes"
    with pytest.raises(IsADirectoryError):
        LocalStore(tmp_path.parent).read(tmp_path.name)


def test_a_file_that_a_disk_does_not_give_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root has several disks, and who reads its checkpoint was told to look at "that disk"."""
    (tmp_path / "file").touch()

    def failed(descriptor: int, size: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "read", failed)
    for read in (LocalStore(tmp_path).read, DiskFolder(tmp_path).read):
        with pytest.raises(OSError, match=f"Input/output error: '{tmp_path}/file'"):
            read("file")


@pytest.mark.parametrize("is_taken", [True, False])
@pytest.mark.parametrize("has_links", [True, False])
def test_what_was_replaced_is_put_back_unless_its_name_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool, is_taken: bool
) -> None:
    store, rename = LocalStore(tmp_path), os.rename
    store.write(_PATH, _THEIRS)

    def replaced_first(source: str, target: str) -> None:
        LocalStore(tmp_path).write(_PATH, b"ours")
        rename(source, target)
        if is_taken:
            LocalStore(tmp_path).write(_PATH, b"newer")

    monkeypatch.setattr(os, "rename", replaced_first)
    if not has_links:
        fail(monkeypatch, "link", errno.EPERM)
    assert not store.set_aside(_PATH, _ASIDE, sha256_of(_THEIRS))
    assert store.read(_PATH) == (b"newer" if is_taken else b"ours")
    assert files(tmp_path) == [_PATH]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_disk_without_hard_links_takes_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fail(monkeypatch, "link", number)
    store = LocalStore(tmp_path)
    assert store.create(_PATH, b"first")
    looks = iter([False, True])  # another process comes between the look and the writing
    monkeypatch.setattr(os.path, "lexists", lambda path: next(looks))
    assert not store.create(_PATH, b"second")
    assert store.read(_PATH) == b"first"
    assert files(tmp_path) == [_PATH]


def test_a_link_that_fails_otherwise_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, "link")
    with pytest.raises(OSError, match="Input/output"):
        LocalStore(tmp_path).create(_PATH, b"1")
    assert files(tmp_path) == []


def test_a_system_that_cannot_rename_so_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_renameat2", lambda: None)
    fail(monkeypatch, "link", errno.EPERM)
    with pytest.raises(PermissionError):
        LocalStore(tmp_path).create(_PATH, b"1")
    assert files(tmp_path) == []


@pytest.mark.parametrize("put", ["write", "write_hint"])
def test_a_name_that_cannot_be_taken_leaves_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: str
) -> None:
    store = LocalStore(tmp_path)
    store.write(_PATH, b"before")
    fail(monkeypatch, "replace", errno.EACCES)
    monkeypatch.setattr(disk, "_renameat2", lambda: None)
    with pytest.raises(PermissionError):
        getattr(store, put)(_PATH, b"after")
    assert files(tmp_path) == [_PATH]
    assert store.read(_PATH) == b"before"


def test_what_is_written_is_no_error_because_of_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.write_hint("hint", b"1")
    fail(monkeypatch, "unlink")
    assert store.create(_PATH, b"ours")
    store.write_hint("hint", b"2")
    assert (store.read(_PATH), store.read("hint")) == (b"ours", b"2")


def test_a_full_disk_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space") as caught:
        LocalStore(tmp_path).write(_PATH, b"1")
    said = disk.with_advice(caught.value)
    assert str(tmp_path / _PATH) in said
    assert said.endswith(": free some space there")
    assert disk.with_advice(OSError("timed out")) == "timed out"
