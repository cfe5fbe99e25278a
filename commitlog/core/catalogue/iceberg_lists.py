"""Looks at the manifest lists of commits that are rebased, and has their new lists written.

What a client's list changed is in the outcome, so the decision follows from the log even when the
client has removed its list, as some do with one that isn't the table's. The new list is built
where it is looked for: its bytes follow from the head's list and that change, and its size and
hash are observed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commitlog.core.decisions import (
    FileToWrite,
    FilteredWanted,
    Found,
    Layer,
    ListDeltaWanted,
    ListsWanted,
)
from commitlog.core.draft import Draft
from commitlog.core.iceberg.manifests import (
    DATA,
    ListDelta,
    count,
    merges,
    only_added,
    write_deltas,
)
from commitlog.core.iceberg.rebase import Plan, Step
from commitlog.core.tables.lance_tables import path_below
from commitlog.model.limits import ICEBERG_LIST_BYTES_MAX
from commitlog.model.reasons import Phrase
from commitlog.model.table import TableId


class _Unfit(Exception):
    def __init__(self, reason: str, **arguments: Any) -> None:
        super().__init__(reason)
        self.phrase = Phrase(reason, arguments)


class ListRebases:
    """The manifest lists of one record's commits over newer snapshots."""

    def __init__(self, draft: Draft, root: str) -> None:
        """Look below the tables root."""
        self._draft = draft
        self._root = root
        self.recorded: dict[TableId, bytes] = {}
        """What each table's outcome keeps of its client's lists."""
        self._files: list[FileToWrite] = []

    def fits(self, plans: Mapping[TableId, Plan]) -> Phrase | None:
        """Look at all lists; return why they can't be rewritten."""
        try:
            deltas = self._deltas(plans)
            for table, plan in plans.items():
                for step, delta in zip(plan.steps, deltas[table], strict=True):
                    _check(step, delta, plan)
                if not _appends(plan) and _is_apart(plan, deltas[table]):
                    raise _Unfit("iceberg_snapshot_not_rebasable", snapshot=_snapshot(plan))
            self._build(plans, deltas)
        except _Unfit as unfit:
            return unfit.phrase
        for table, found in deltas.items():
            paths = [self._below(step.client_list) for step in plans[table].steps]
            self.recorded[table] = write_deltas(dict(zip(paths, found, strict=True)))
        self._draft.files += self._files
        return None

    def _deltas(self, plans: Mapping[TableId, Plan]) -> dict[TableId, list[ListDelta]]:
        wanted = {
            table: [
                ListDeltaWanted(
                    location=self._root,
                    path=self._below(step.client_list),
                    base=self._below(step.base_list) if step.base_list else "",
                    snapshot_id=step.header.snapshot_id,
                    is_append=step.operation == "append",
                )
                for step in plan.steps
            ]
            for table, plan in plans.items()
        }
        everything = [one for group in wanted.values() for one in group]
        found = dict(zip(everything, self._draft.want_all(everything), strict=True))
        return {
            table: [ListDelta.from_bytes(_data(one.path, found[one])) for one in group]
            for table, group in wanted.items()
        }

    def _build(
        self, plans: Mapping[TableId, Plan], deltas: Mapping[TableId, list[ListDelta]]
    ) -> None:
        wanted = {
            table: self._lists(plan, deltas[table])
            for table, plan in plans.items()
            if not _is_apart(plan, deltas[table])
        }
        found = dict(zip(wanted, self._draft.want_all(wanted.values()), strict=True))
        apart = {
            table: self._lists(plan, self._only_added(plan, deltas[table]))
            for table, plan in plans.items()
            if table not in wanted or (_is_rewritten(found[table]) and _appends(plan))
        }
        wanted |= apart
        found |= zip(apart, self._draft.want_all(apart.values()), strict=True)
        for table, one in wanted.items():
            _data(one.path, found[table])
            for path, data in zip(one.paths, found[table].files, strict=False):
                self._files.append(FileToWrite(self._root, path, data))

    def _lists(self, plan: Plan, deltas: Sequence[ListDelta]) -> ListsWanted:
        is_strict, base = not _appends(plan), plan.steps[0].base_list
        return ListsWanted(
            location=self._root,
            head=self._below(plan.head_list) if plan.head_list else "",
            paths=tuple(self._below(step.new_list) for step in plan.steps),
            layers=tuple(
                Layer(delta.to_bytes(), step.header, step.believed)
                for step, delta in zip(plan.steps, deltas, strict=True)
            ),
            is_strict=is_strict,
            base=self._below(base) if is_strict and base else "",
        )

    def _only_added(self, plan: Plan, deltas: Sequence[ListDelta]) -> list[ListDelta]:
        """Return differences that need no manifest of the list that the client began from."""
        places: dict[FilteredWanted, tuple[str, str]] = {}
        for step, delta in zip(plan.steps, deltas, strict=True):
            for number, record in enumerate(filter(merges, delta.added)):
                source, place = record["manifest_path"], f"{step.filtered}-m{number}.avro"
                wanted = FilteredWanted(self._root, self._below(place), self._below(source))
                places[wanted] = (source, place)
        replaced: dict[str, tuple[str, int]] = {}
        for one, found in zip(places, self._draft.want_all(places), strict=True):
            _data(one.path, found)
            source, place = places[one]
            replaced[source] = (place, found.observation.size)
            self._files += [FileToWrite(self._root, one.path, data) for data in found.files]
        return [
            ListDelta(
                tuple(
                    only_added(record, *new) if new else record
                    for record in delta.added
                    for new in [replaced.get(record["manifest_path"])]
                )
            )
            for delta in deltas
        ]

    def _below(self, location: str) -> str:
        """Return a file's path below the tables root."""
        if path := path_below(location, self._root):
            return path
        raise _Unfit("iceberg_list_outside_root", path=location)


def _appends(plan: Plan) -> bool:
    return all(step.operation == "append" for step in plan.steps)


def _snapshot(plan: Plan) -> int:
    return plan.steps[-1].header.snapshot_id


def _is_apart(plan: Plan, deltas: Sequence[ListDelta]) -> bool:
    """Return True if an append's merged manifests can't stay as they are.

    It isn't known what they are made of, or it is what this very commit adds, under the numbers
    that its client hoped for.
    """
    own: set[str] = set()
    for delta in deltas:
        if not own.isdisjoint(delta.removed):
            return True
        own |= {one["manifest_path"] for one in delta.added if one["added_files_count"]}
    return not plan.knows_base and any(merges(one) for delta in deltas for one in delta.added)


def _is_rewritten(found: Found) -> bool:
    """Return True if a manifest that a commit replaces isn't in the head's list any more."""
    return not found.observation.size


def _data(path: str, found: Found) -> bytes:
    """Return what was found; refuse if it isn't there or isn't usable."""
    size = found.observation.size
    if size < 0:
        raise _Unfit("iceberg_list_missing", path=path)
    if isinstance(found.error, Phrase):
        raise _Unfit(found.error.name, **found.error.arguments)
    if found.error or size > ICEBERG_LIST_BYTES_MAX:
        raise _Unfit("iceberg_list_unusable", path=path, bytes_max=ICEBERG_LIST_BYTES_MAX)
    return found.data or b""


def _check(step: Step, delta: ListDelta, plan: Plan) -> None:
    """Refuse a commit whose list says something else than its operation."""
    for record in delta.added:
        where = {"path": record["manifest_path"]}
        if record["key_metadata"] is not None:
            raise _Unfit("iceberg_manifest_encrypted", **where)
        adds = count(record, "added_files_count")
        if adds and record["partition_spec_id"] != plan.spec_id:
            raise _Unfit("iceberg_spec_changed_since", spec=record["partition_spec_id"], **where)
        if step.operation == "append" and (
            record["content"] != DATA or count(record, "deleted_files_count")
        ):
            raise _Unfit("iceberg_append_removes", **where)
