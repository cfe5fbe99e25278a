"""An operation that may have read an older version than the head, as a rebase sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate, Finding
from commitlog.core.conflicts.history import History
from commitlog.core.decisions import Refused
from commitlog.core.draft import Draft, View
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.refusals import conflict_refused


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
