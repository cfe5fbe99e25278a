"""Names the table and the version of which a file is gone: Lance names the file alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from commitlog.client.leader.arguments import OF_ARGUMENTS, lances_words
from commitlog.codecs.manifest_file import manifest_places
from commitlog.errors import CommitLogError, NoSuchVersion

if TYPE_CHECKING:
    import pyarrow as pa


def while_files_stay(
    batches: Iterable[pa.RecordBatch], table: str, version: int
) -> Iterator[pa.RecordBatch]:
    """Yield what is read of a version.

    Raises NoSuchVersion if a file of it isn't there any more.
    """
    with files_stay(table, version):
        yield from batches


@contextmanager
def files_stay(table: str, version: int) -> Iterator[None]:
    """Say what is read in this block of a version.

    Raises NoSuchVersion if a file of it isn't there any more.
    """
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        said = lances_words(error)
        # Of a mistake in what was asked, Lance repeats what that was.
        is_asked = said.startswith(OF_ARGUMENTS)
        if isinstance(error, CommitLogError) or is_asked or "not found: " not in str(error).lower():
            raise
        raise NoSuchVersion(
            f"a file of version {version} of {table} is gone: {said}. If the version"
            " was deleted, or the table dropped, its files have been removed meanwhile: read a"
            " newer version, and give the table a hold for as long as a job takes. Otherwise run"
            " `commitlog verify`"
        ) from error


def is_of_deleted_version(error: Exception, version: int) -> bool:
    """Return True if Lance didn't find the manifest of a version that was open."""
    told = str(error)
    if "not found: " not in told.lower():  # a store says "404 Not Found: "
        return False
    return any(f"/{path}" in told for path in manifest_places(version))
