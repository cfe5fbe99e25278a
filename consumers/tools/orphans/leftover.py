"""A file that no version needs: how it is named, why it may go, and whom it belongs to."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from commitlog.adapters.disk import TEMPORARY
from commitlog.adapters.places import bound
from commitlog.adapters.storage import FileFound, store_for
from commitlog.codecs.manifest_file import (
    TRANSACTIONS_DIRECTORY,
    VERSIONS_DIRECTORY,
    parse_manifest_name,
)
from consumers.partition.files.table_files import QUARANTINE
from consumers.tools.orphans.branch_files import branch_life, branch_of
from consumers.tools.orphans.file_ledger import JUDGED, LifeFiles, Why

GONE = ".gone"
"""Ends the names of what is put aside: files to be removed, and a dropped table's newest manifest
or metadata file once its files go."""
_SIDECAR_PARTS = 3


@dataclass(frozen=True, slots=True)
class Leftover:
    """An unneeded file."""

    table: str
    location: str
    """The whole path."""
    why: Why
    reason: str
    size: int
    since_ms: int
    """When it was written, or when the last record ended what needed it, if that was later."""
    incarnation: str = ""
    """Of a Lance table; empty: it is of an Iceberg table."""
    path: str = ""
    """Below the table's location."""
    is_aside: bool = False
    """Whether it was put aside to be removed."""

    @property
    def file(self) -> str:
        """Where it is now, below the table's location."""
        return self.path + GONE if self.is_aside else self.path

    def to_json(self, now_ms: int) -> dict[str, Any]:
        """Return it as a JSON object."""
        age = round((now_ms - self.since_ms) / 3_600_000, 1)
        said = {"table": self.table, "location": bound(self.location), "size": self.size}
        return {**said, "age_hours": age, "why": self.why.value, "reason": self.reason}


def leftover(
    life: LifeFiles, file: FileFound, why: Why, reason: str, since_ms: int = 0
) -> Leftover:
    """Return a file of a table as one that may go; `since_ms` is when a record ended its need."""
    path, is_aside = put_aside(file.path)
    return Leftover(
        table=life.name,
        location=f"{life.location}/{file.path}",
        why=why,
        reason=reason,
        size=file.size,
        since_ms=max(since_ms, file.modified_ms),
        incarnation=life.incarnation,
        path=path,
        is_aside=is_aside,
    )


def put_aside(path: str) -> tuple[str, bool]:
    """Return a file's name, and whether it was put aside to be removed."""
    plain = path.removesuffix(GONE)
    is_aside = plain != path and not path.startswith(f"{VERSIONS_DIRECTORY}/")
    return (plain, True) if is_aside else (path, False)


def owner(life: LifeFiles, path: str, branches: Collection[str] = ()) -> str:
    """Return what a version names if it needs a file; empty if the file isn't judged here.

    `branches` are those that Lance keeps beside the table: of others every file is judged.
    """
    branch, below = branch_of(path)
    if branch:
        inner = branch_life(life, branch)
        return owner(inner, below) or ("" if branch in branches else f"{life.location}/{path}")
    parts = path.split("/")
    folder, name = parts[0], parts[-1]
    if TEMPORARY.fullmatch(name):
        return f"{life.location}/{path}"
    if folder == "data" and len(parts) == _SIDECAR_PARTS:
        return f"{life.location}/data/{parts[1]}.lance"
    if folder == "_indices" and len(parts) >= _SIDECAR_PARTS:
        return f"{life.location}/_indices/{parts[1]}"
    if folder == VERSIONS_DIRECTORY:
        parsed = parse_manifest_name(name)
        return f"{life.location}/{path}" if parsed is not None and parsed.staged_by else ""
    if folder == TRANSACTIONS_DIRECTORY:
        # Versions from before a table was registered name files that the log doesn't know.
        return f"{life.location}/{path}" if not life.is_registered else ""
    return f"{life.location}/{path}" if folder in {*JUDGED, QUARANTINE} else ""


def bring_back(life: LifeFiles) -> None:
    """Give a table that was registered again the manifest that a killed removal has put aside."""
    store = store_for(life.location)
    for name in list(store.names(VERSIONS_DIRECTORY)):
        if name.endswith(GONE):
            store.move(
                f"{VERSIONS_DIRECTORY}/{name}", f"{VERSIONS_DIRECTORY}/{name.removesuffix(GONE)}"
            )


def name_again(life: LifeFiles, path: str) -> None:
    """Give what was put aside its name back, if it is still there."""
    store = store_for(life.location)
    if store.size(path + GONE) >= 0:  # else `move` would make the folder again
        with contextlib.suppress(FileNotFoundError):
            store.move(path + GONE, path)


def said(leftovers: Sequence[Leftover]) -> str:
    """Return how many files and bytes are removed, and why."""
    count = {why: sum(one.why is why for one in leftovers) for why in Why}
    kinds = ", ".join(f"{number:,} {why}" for why, number in count.items() if number)
    size = sum(one.size for one in leftovers)
    return f"removes {len(leftovers):,} unneeded files of {size:,} bytes: {kinds}"
