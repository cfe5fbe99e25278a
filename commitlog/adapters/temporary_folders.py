"""Temporary folders of this process, also those that killed processes left behind.

Every process that uses such a folder holds a lock on a file in it, which the kernel releases at its
end, however that comes; so neither a process's number nor its container says anything wrong. Of
another host, or of an earlier boot, a lock says nothing: its folders are left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import socket
import stat
import tempfile
import weakref
from pathlib import Path

_LOCK = "in-use"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def new_folder(prefix: str) -> TemporaryFolder:
    """Make a folder that this process uses, after removing what killed ones left of that name."""
    _remove_leftovers(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        return TemporaryFolder(folder, _locked(folder), os.getpid())
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def use_folder(folder: Path, user: object) -> None:
    """Keep a folder that another process made, as far as that does, while an object lives."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / _LOCK, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        weakref.finalize(user, os.close, descriptor)


def _locked(folder: Path) -> int:
    descriptor = os.open(folder / f"{_LOCK}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, _boot())
        with contextlib.suppress(OSError):  # a file system without locks: others leave it alone
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # Under its name once it is locked: before that, nobody takes it for a leftover.
            os.rename(folder / f"{_LOCK}.new", folder / _LOCK)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class TemporaryFolder:
    """A folder that this process made."""

    def __init__(self, path: Path, descriptor: int, pid: int) -> None:
        """Take what `new_folder` made."""
        self.path = path
        self._descriptor = descriptor
        self._pid = pid

    def remove_with(self, user: object) -> None:
        """Remove the folder once an object is gone, or the process ends."""
        weakref.finalize(user, self.remove)

    def remove(self) -> None:
        """Remove the folder, unless this is a forked child: its parent may still read."""
        if os.getpid() == self._pid:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


@functools.cache
def _remove_leftovers(prefix: str) -> None:
    """Remove, once in a process, this user's folders that no process of this host uses."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                with contextlib.suppress(OSError):
                    _remove_if_left(Path(entry.path))


def _remove_if_left(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    descriptor = os.open(folder / _LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if os.read(descriptor, 1000) == _boot():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


@functools.cache
def _boot() -> bytes:
    """Name this host since it started; locks of another one, in a shared folder, aren't seen."""
    try:
        return _BOOT.read_bytes()
    except OSError:
        return socket.gethostname().encode()
