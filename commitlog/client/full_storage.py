"""Names the disk that was full when a table's files could not be written.

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

from commitlog.adapters.storage import local_path
from commitlog.client.tables import TableInfo
from commitlog.errors import CommitLogError, StorageFull

_FULL = re.compile(
    "|".join(re.escape(os.strerror(code)) for code in (errno.ENOSPC, errno.EDQUOT))
    + rf"|\(os error ({errno.ENOSPC}|{errno.EDQUOT})\)"
)

Given = ParamSpec("Given")
Made = TypeVar("Made")


def is_full(error: BaseException | None) -> bool:
    """Return True if an error, or what caused it, is of a disk without space."""
    while error is not None:
        if not isinstance(error, CommitLogError) and _FULL.search(str(error)):
            return True
        error = error.__cause__
    return False


@contextmanager
def naming_full_storage(table: str, location: str) -> Iterator[None]:
    """Raise StorageFull if the body finds no space for a table's files."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StorageFull) or not is_full(error):
            raise
        raise StorageFull(
            f"{disk_of(location)} is full: files of {table} could not be written there. Nothing was"
            " committed by this call. Free space, then make the same call again"
        ) from error


def names_full_storage(
    write: Callable[Concatenate[TableInfo, Given], Made],
) -> Callable[Concatenate[TableInfo, Given], Made]:
    """Wrap what writes a table's files, so that it raises StorageFull where it finds no space."""

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
