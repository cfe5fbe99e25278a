"""An operation that may have read an older version than the head, and the vectors it looks at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate, Finding
from commitlog.core.conflicts.history import History
from commitlog.core.decisions import Found, Refused, Wanted, rejected
from commitlog.core.draft import Draft, View
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.refusals import conflict_refused
from commitlog.model.reasons import Aside
from commitlog.model.records import Code


class Late(NamedTuple):
    """What is known about the operation, and the table's state that it is rebased on."""

    draft: Draft
    view: View
    affected: Mapping[int, BitMap]
    """The rows that its writer says it deleted, by fragment."""
    read_version: int

    @property
    def history(self) -> History:
        """The table's."""
        return self.view.table.history

    @property
    def state(self) -> ManifestState:
        """The head, the record's own versions included."""
        assert self.view.state is not None
        return self.view.state

    def refused(self, candidate: Candidate, finding: Finding) -> Refused:
        """Return its refusal for a conflict with a version that it didn't see."""
        view = self.view
        return conflict_refused(
            view.table, candidate.kind, finding, self.read_version, view.version
        )


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
