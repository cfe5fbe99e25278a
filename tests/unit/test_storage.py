"""Files appear whole, once, and only below their location."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from commitlog.adapters import disk
from commitlog.adapters.storage import LocalStore, sha256_of, store_for
from commitlog.errors import InvalidTransaction, UnsupportedFormat
from tests.unlistable import refuse_to_list
from tests.waiting import at_once


def test_of_many_that_create_one_name_one_wins_and_its_bytes_stay(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    won: list[int] = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait()
        if store.create("_versions/1.manifest", b"%d" % number * 1000):
            won.append(number)

    at_once(create, range(8))
    assert len(won) == 1
    assert store.read("_versions/1.manifest") == b"%d" % won[0] * 1000
    assert list(store.names("_versions")) == ["1.manifest"]


def test_write_replaces_and_move_and_delete_do_what_they_say(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write("a/b", b"1")
    store.write("a/b", b"22")
    assert (store.size("a/b"), store.size("a/c"), store.size("a/b/c")) == (2, -1, -1)
    store.move("a/b", "_quarantine/b")
    assert store.read("_quarantine/b") == b"22"
    store.delete("_quarantine/b")
    store.delete("_quarantine/b")
    with pytest.raises(FileNotFoundError):
        store.read("_quarantine/b")
    assert list(store.names("nowhere")) == []


def test_setting_aside_takes_only_what_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.write("a/b", b"theirs")
    theirs = sha256_of(b"theirs")
    assert not store.set_aside("a/b", "_quarantine/b", sha256_of(b"else"))
    assert store.set_aside("a/b", "_quarantine/b", theirs)
    assert (store.size("a/b"), store.read("_quarantine/b")) == (-1, b"theirs")
    with pytest.raises(FileNotFoundError):
        store.set_aside("a/b", "_quarantine/b", theirs)
    store.write("a/b", b"theirs")
    rename = os.rename

    def replaced_first(source: str, target: str) -> None:
        LocalStore(tmp_path).write("a/b", b"ours")
        rename(source, target)

    monkeypatch.setattr(os, "rename", replaced_first)
    assert not store.set_aside("a/b", "_quarantine/c", theirs)
    assert store.read("a/b") == b"ours"
    assert sorted(store.walk()) == ["_quarantine/b", "a/b"]


def test_replacing_replaces_only_what_was_looked_at(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert not store.replace("a/b", b"2", sha256_of(b"1"))
    store.write("a/b", b"1")
    assert not store.replace("a/b", b"2", sha256_of(b"else"))
    assert store.read("a/b") == b"1"
    assert store.replace("a/b", b"2", sha256_of(b"1"))
    assert store.read("a/b") == b"2"
    assert list(store.walk()) == ["a/b"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = LocalStore(tmp_path)
    store.write("a/b/c", b"1")
    with monkeypatch.context() as patched:
        refuse_to_list(patched, "/b", number)
        with pytest.raises(OSError, match=os.strerror(number)) as raised:
            list(store.files())
        assert raised.value.filename == str(tmp_path / "a" / "b")
    assert list(store.walk("nowhere")) == []  # gone meanwhile, say
    # What a file system keeps for itself at the top of a disk, where only root may look.
    store.write("lost+found/d", b"1")
    refuse_to_list(monkeypatch, "/lost+found")
    assert list(store.walk()) == ["a/b/c"]


@pytest.mark.parametrize("can_swap", [True, False])
def test_a_hint_takes_the_place_of_the_one_before_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_swap: bool
) -> None:
    if not can_swap:
        monkeypatch.setattr(disk, "_renameat2", lambda: None)
    store = LocalStore(tmp_path)
    replace, replaced = os.replace, []

    def noting(new: str, path: str) -> None:
        replaced.append(path)
        replace(new, path)

    monkeypatch.setattr(os, "replace", noting)
    for hint in (b"1", b"22", b"3"):
        store.write_hint("_versions/hint.json", hint)
        assert store.read("_versions/hint.json") == hint
        assert os.listdir(tmp_path / "_versions") == ["hint.json"]
    # The first has no place to take; of the others the disk hears nothing.
    assert len(replaced) == (1 if can_swap else 3)


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", ".", "a/.."])
def test_a_path_cannot_leave_its_location(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidTransaction, match="leaves the table's location"):
        LocalStore(tmp_path / "table").write(path, b"")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.write("present", b"before")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        for put in (store.write, store.create, store.write_ahead):
            with pytest.raises(OSError, match="No space left"):
                put("present" if put == store.write else "new", b"after")
    assert sorted(os.listdir(tmp_path)) == ["present"]
    assert store.read("present") == b"before"


def test_what_was_written_ahead_by_half_is_written_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write_ahead("_transactions/1-a.txn", b"whole")
    assert store.read("_transactions/1-a.txn") == b"whole"
    (tmp_path / "_transactions" / "1-a.txn").write_bytes(b"wh")
    for _ in range(2):
        store.write_ahead("_transactions/1-a.txn", b"whole")
        assert store.read("_transactions/1-a.txn") == b"whole"
    assert list(store.names("_transactions")) == ["1-a.txn"]


def test_locations_are_local_paths_or_file_urls(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    store_for(f"file://{tmp_path}/a%20b").write("x", b"1")
    assert store_for(str(tmp_path / "a b")).read("x") == b"1"
    with pytest.raises(UnsupportedFormat, match="scheme 'gopher'"):
        store_for("gopher://bucket/table")
