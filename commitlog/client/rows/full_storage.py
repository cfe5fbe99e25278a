"""Names the disk or store that was full, or refused to be written, when a table's files were to be.

Lance reports it as an OSError with the line of its own source, some steps wrap that once more, and
none says which disk it was. Files are written before anything is submitted: nothing is committed.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from commitlog.adapters import disk
from commitlog.adapters.storage import local_path
from commitlog.client.leader.tables import TableInfo
from commitlog.errors import CommitLogError, StorageFull, StorageUnwritable

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SAID = {
    code: re.compile(
        rf"\[Errno {code}\]|\(os error {code}\)"
        + (f"|{re.escape(os.strerror(code))}" if code in _FULL else "")
    )
    for code in (*_FULL, errno.EROFS, errno.EACCES, errno.EPERM)
}
"""What the system says, also where Lance repeats it. "Permission denied" may be a row's value."""

Given = ParamSpec("Given")
Made = TypeVar("Made")


def _reason(error: BaseException | None) -> int:
    """Return why a disk took no files, by the system's number; 0 if it isn't that."""
    while error is not None:
        if not isinstance(error, CommitLogError):
            for code, said in _SAID.items():
                if said.search(str(error)):
                    return code
        error = error.__cause__
    return 0


@contextmanager
def naming_full_storage(table: str, location: str) -> Iterator[None]:
    """Raise StorageFull or StorageUnwritable if the body can't write a table's files."""
    try:
        yield
    except Exception as error:
        reason = 0 if isinstance(error, StorageUnwritable) else _reason(error)
        if not reason:
            code, mend = disk.refused_keys(str(error))
            if not code:
                raise
            raise StorageUnwritable(
                f"{disk_of(location)} refused files of {table} ({code}). Nothing was committed by"
                f" this call: {mend}, then make the same call again"
            ) from error
        if reason in _FULL:
            raise storage_full(table, location) from error
        what = "written" if reason == errno.EROFS else "read or written"
        raise StorageUnwritable(
            f"files of {table} could not be {what} at {location} ({os.strerror(reason)}). Nothing"
            f" was committed by this call: {disk.advice(OSError(reason, ''))}, then make the same"
            " call again"
        ) from error


def storage_full(table: str, location: str) -> StorageFull:
    """Return what says that there is no space for a table's files."""
    return StorageFull(
        f"{disk_of(location)} is full: files of {table} could not be written there. Nothing was"
        " committed by this call. Free space, then make the same call again"
    )


@contextmanager
def naming_full_disk(place: str) -> Iterator[None]:
    """Raise StorageFull, which names the disk or store of a place, if the body finds it full.

    The system names the file that was to be written, or nothing. The body can be run again.
    """
    try:
        yield
    except Exception as error:
        if _reason(error) not in _FULL:
            raise
        raise StorageFull(
            f"{disk_of(place)} is full. Free space, then run this again: it continues"
        ) from error


def names_full_storage(
    write: Callable[Concatenate[TableInfo, Given], Made],
) -> Callable[Concatenate[TableInfo, Given], Made]:
    """Wrap what writes a table's files, so that it names the disk that doesn't take them."""

    @functools.wraps(write)
    def wrapped(info: TableInfo, /, *args: Given.args, **named: Given.kwargs) -> Made:
        with naming_full_storage(info.name, info.location):
            return write(info, *args, **named)

    return wrapped


def disk_of(location: str) -> str:
    """Return the name of the disk, or else of the store, that holds a table."""
    folder = local_path(location)
    if folder is None:
        return f"the store of {location}"
    place = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    mount = next((one for one in (place, *place.parents) if one.is_mount()), Path("/"))
    free, mib = shutil.disk_usage(place).free, 1 << 20
    return f"the disk of {location} (mounted at {mount}, {free / mib:,.1f} MiB free)"
