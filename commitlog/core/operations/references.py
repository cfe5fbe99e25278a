"""What an operation names has to be in the table: fragments, fields, versions.

Asked after the grid: what somebody else removed meanwhile is a conflict and refused as one. What is
left here is wrong as it stands. pylance checks most of it while it builds, in words of its own,
but not all: it publishes an index on a field that the table doesn't have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from commitlog.core.conflicts.candidate import Finding, Nearest, Verdict
from commitlog.core.decisions import Refused, rejected
from commitlog.core.draft import View
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.refusals import conflict_refused
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code, FragmentImage
from commitlog.model.table import format_table_id

REMOVED_BY = ("Delete.removed", "Update.removed", "Rewrite.old")
DROPPED_BY = ("Merge.dropped", "Project.dropped")


class References:
    """What an operation names, which the head has to have."""

    __slots__ = ("images", "kind", "since", "view")

    def __init__(
        self, view: View, kind: str, since: int | None, images: tuple[FragmentImage, ...] = ()
    ) -> None:
        self.view = view
        self.kind = kind
        self.since = since
        """The version that it read; None: removals don't count as conflicts (older protocols)."""
        self.images = images
        """What its rebase made of its fragments."""

    @property
    def state(self) -> ManifestState:
        """The head's manifest; refuses a table that has none."""
        if self.view.state is None:
            raise no_version(self.view)
        return self.view.state

    @property
    def table_name(self) -> str:
        """The table's name, as refusals have it."""
        return format_table_id(self.view.table.table_id)

    def check_fragments(self, ids: Iterable[int]) -> None:
        """Refuse fragments that are named twice, and those that the head doesn't have."""
        named = list(ids)
        self.check_distinct(named)
        self.check_present(named)

    def check_distinct(self, ids: list[int]) -> None:
        """Refuse fragments that are named twice."""
        if twice := repeated(ids):
            raise rejected(
                Code.DUPLICATE_FRAGMENT,
                "fragments_twice",
                kind=self.kind,
                table=self.table_name,
                fragments=twice,
            )

    def check_present(self, ids: Iterable[int]) -> None:
        """Refuse fragments that the head doesn't have."""
        state = self.state
        missing = sorted(i for i in ids if i not in state.fragments)
        if missing:
            lost = Finding(0, Verdict.RETRYABLE, "fragment_removed")
            self._check_removals(REMOVED_BY, missing, lost)
            raise rejected(
                Code.UNKNOWN_FRAGMENT,
                "fragments_unknown",
                kind=self.kind,
                fragments=missing[:5],
                table=self.table_name,
                version=state.version,
            )

    def check_fields(self, what: Phrase, fields: Iterable[int]) -> None:
        """Refuse fields that the head's schema doesn't have."""
        known = self.state.header.fields
        missing = sorted(f for f in fields if f >= 0 and f not in known)
        if missing:
            lost = Finding(0, Verdict.INCOMPATIBLE, "field_dropped")
            self._check_removals(DROPPED_BY, missing, lost)
            raise rejected(
                Code.WRONG_SCHEMA,
                "field_ids_unknown",
                what=what,
                fields=missing,
                table=self.table_name,
                known=sorted(known),
            )

    def _check_removals(self, hows: Iterable[str], gone: Iterable[int], lost: Finding) -> None:
        """Refuse it as a conflict if a version removed one of these since it read the table."""
        if self.since is None:
            return
        table, nearest = self.view.table, Nearest(lost.rule, lost.verdict)
        for one in gone:
            for how in hows:
                version = table.history.first(how, one, self.since)
                fragment = one if lost.rule == "fragment_removed" else None
                nearest.offer(version, fragment=fragment, key=None if fragment == one else one)
        if nearest.finding is not None:
            raise conflict_refused(table, self.kind, nearest.finding, self.since, self.view.version)


def repeated(ids: list[int]) -> list[int]:
    """Return the ids that are there more than once, ascending."""
    if len(set(ids)) == len(ids):
        return []
    return sorted(one for one, times in Counter(ids).items() if times > 1)


def no_version(view: View) -> Refused:
    """Return the refusal of an operation on a table that is only declared."""
    name = format_table_id(view.table.table_id)
    return rejected(Code.INVALID_OPERATION, "table_without_version", table=name)
