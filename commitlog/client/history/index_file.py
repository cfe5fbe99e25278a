"""Reads a version index's file in DuckDB, which loads nothing from elsewhere meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
INDEX = "commitlog"
"""What the file is called in a connection."""
KNOWN_UNTIL = "greatest(now() AT TIME ZONE 'UTC', (SELECT max(changed_at) FROM positions))"
"""What is later is in the future. This machine's clock may be behind the leaders'."""


def attach(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Make a file's relations, views and macros known by their names."""
    connection.execute(f"ATTACH {quoted(str(path))} AS {INDEX} (READ_ONLY)")
    connection.execute(f"USE {INDEX}")


def is_about_segments(index: str | os.PathLike[str], error: Exception) -> bool:
    """Return True if a query failed since a file of rows beside the index is damaged."""
    return str(Path(index).absolute().parent / "index" / "segments") in str(error)


def rebuild(index: str | os.PathLike[str]) -> str:
    """Say what to do with an index that cannot be read."""
    public = Path(index).absolute()
    return (
        "Nothing is lost: restart `commitlog index` (or `up`), which publishes a good one; if"
        f" the message stays, delete {public} and {public.parent / 'index'} while it is stopped"
    )


def quoted(text: str) -> str:
    """Return `text` as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
