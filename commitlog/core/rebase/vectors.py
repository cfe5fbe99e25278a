"""Deletion vectors that a decision observed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyroaring import BitMap

from commitlog.core.decisions import Found, Wanted, rejected
from commitlog.core.draft import Draft, View
from commitlog.model.reasons import Aside
from commitlog.model.records import Code

SAMPLE_ROWS = 5


def observed(draft: Draft, view: View, paths: Iterable[str]) -> dict[str, Found]:
    """Return what was found of deletion files, by their paths."""
    named = list(dict.fromkeys(paths))
    wanted: list[Wanted] = [view.deletion_file(path) for path in named]
    return dict(zip(named, draft.want_all(wanted), strict=True))


def vector_in(view: View, path: str, vectors: Mapping[str, Found]) -> BitMap:
    """Return an observed vector, an empty one if there is no path; refuse a missing file."""
    if not path:
        return BitMap()
    found = vectors[path]
    if found.vector is None:
        is_there = found.observation.size >= 0
        raise rejected(
            Code.MISSING_FILE,
            "deletion_file_unreadable" if is_there else "deletion_file_missing",
            path=path,
            location=view.table.location,
            error=Aside(found.error or "it is not there"),
        )
    return found.vector


def sample_of(fragment_id: int, rows: BitMap) -> tuple[str, ...]:
    """Return the addresses of a few rows, as refusals name them."""
    return tuple(f"{fragment_id}/{row}" for row in list(rows[:SAMPLE_ROWS]))
