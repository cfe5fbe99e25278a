"""Where deletion vectors lie, and what was found there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyroaring import BitMap

from commitlog.core.decisions import Found, VectorWanted, Wanted, rejected
from commitlog.core.draft import Draft, View
from commitlog.model.reasons import Aside
from commitlog.model.records import Code

SAMPLE_ROWS = 5


def place_of(view: View, path: str) -> VectorWanted:
    """Return where a deletion file lies: with the table, or at a base, as in a shallow clone."""
    base_id, is_elsewhere, there = path.rpartition(":")
    return VectorWanted(location_of(view, int(base_id) if is_elsewhere else None), there)


def location_of(view: View, base_id: int | None) -> str:
    """Return where files of a base lie; of none, the table's own; empty: there is no such base."""
    if base_id is None:
        return view.table.location
    assert view.state is not None
    bases = view.state.header.message.base_paths
    return next((base.path for base in bases if base.id == base_id), "")


def observed(draft: Draft, view: View, paths: Iterable[str]) -> dict[str, Found]:
    """Return what was found of deletion files, by their paths."""
    named = list(dict.fromkeys(paths))
    wanted: list[Wanted] = [place_of(view, path) for path in named]
    return dict(zip(named, draft.want_all(wanted), strict=True))


def vector_in(view: View, path: str, vectors: Mapping[str, Found]) -> BitMap:
    """Return a vector that was looked at, an empty one of no path; refuse if it isn't there."""
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
