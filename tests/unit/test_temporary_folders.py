"""Temporary folders: what a killed process left goes, and nothing else does."""

import fcntl
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commitlog.adapters import temporary_folders
from commitlog.adapters.temporary_folders import TemporaryFolder, new_folder, use_folder

PREFIX = "commitlog-test-"
LOCK = temporary_folders._LOCK
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    temporary_folders._remove_leftovers.cache_clear()
    yield tmp_path
    temporary_folders._remove_leftovers.cache_clear()


class User:
    """What a folder is read for."""


def _left(change: Callable[[TemporaryFolder], object] = lambda folder: None) -> Path:
    """Return the folder of a process that ended without removing it."""
    folder = new_folder(PREFIX)
    change(folder)
    os.close(folder._descriptor)
    temporary_folders._remove_leftovers.cache_clear()
    return folder.path


def test_the_next_reader_removes_what_a_dead_process_left() -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        folder = new_folder(PREFIX)
        (folder.path / "view.lance").mkdir()
        os.write(write, os.fsencode(folder.path))
        signal.pause()
    path = Path(os.fsdecode(os.read(read, 1000)))
    try:
        temporary_folders._remove_leftovers.cache_clear()
        new_folder(PREFIX).remove()
        assert path.exists(), "its process lives"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)
    temporary_folders._remove_leftovers.cache_clear()
    new_folder(PREFIX).remove()
    assert not path.exists()


def test_a_folder_that_a_receiver_still_reads_stays() -> None:
    users = [User()]
    path = _left(lambda folder: use_folder(folder.path, users[0]))
    new_folder(PREFIX).remove()
    assert path.exists()
    users.clear()
    temporary_folders._remove_leftovers.cache_clear()
    new_folder(PREFIX).remove()
    assert not path.exists()


def test_folders_of_which_nothing_is_known_stay(temporary: Path) -> None:
    other_host = _left(lambda folder: (folder.path / LOCK).write_bytes(b"another boot"))
    older = _left(lambda folder: (folder.path / LOCK).unlink())
    begun = _left(lambda folder: (folder.path / LOCK).rename(folder.path / f"{LOCK}.new"))
    aside = temporary / "aside"
    _left().rename(aside)
    link = temporary / f"{PREFIX}link"
    link.symlink_to(aside)
    new_folder(PREFIX).remove()
    assert all(one.exists() for one in (other_host, older, begun, aside, link))


def test_a_folder_of_another_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    path = _left()
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    new_folder(PREFIX).remove()
    assert path.exists()


def test_without_locks_a_folder_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    path = _left()
    monkeypatch.undo()
    assert not (path / LOCK).exists()


def test_a_forked_child_leaves_the_folder_to_its_parent() -> None:
    folder = new_folder(PREFIX)
    child = os.fork()
    if not child:
        folder.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.path.exists()
    folder.remove()
    assert not folder.path.exists()
