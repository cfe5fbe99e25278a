"""Where deletion vectors lie, and what was found there."""

from __future__ import annotations

from pyroaring import BitMap

from commitlog.core.decisions import Found, Refused, VectorWanted
from commitlog.core.draft import View
from commitlog.model.records import Code, Status


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


def vector_in(view: View, path: str, found: Found) -> BitMap:
    """Return a vector that was looked at; refuse what needs it if it isn't there."""
    if found.vector is None:
        raise Refused(
            Status.REJECTED,
            Code.MISSING_FILE,
            f"the deletion file {path} in {view.table.location} cannot be read"
            f" ({found.error or 'it is not there'}); write it before the transaction",
        )
    return found.vector
