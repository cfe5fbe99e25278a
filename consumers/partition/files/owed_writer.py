"""Writes what a checkpoint owes, once a store is back: versions are made again from the log.

They are made from the newest file that is there and what the outcomes since then decided. So they
take no memory while the store is away, and the log is read for them on a worker, beside all work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from google.protobuf.message import DecodeError

from commitlog.adapters.lance_refs import versions_in
from commitlog.adapters.recordings import Recordings
from commitlog.adapters.storage import ObjectStore
from commitlog.client.leader.valid_outcomes import Valid
from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.log.chain import BEGINNING, ChainPlace
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.partition.machine import Machine
from commitlog.core.tables.branch_names import FOLDER
from commitlog.errors import CorruptLog
from commitlog.model.records import Genesis
from commitlog.model.table import Policy, format_table_id
from commitlog.ports import Log
from consumers.partition.files.catalogue import Head
from consumers.partition.files.failing_store import open_or_fail_later
from consumers.partition.files.lance_branches import follow_branch
from consumers.partition.files.offset_index import OffsetIndex
from consumers.partition.files.old_versions import OldVersions
from consumers.partition.files.owed import Owed
from consumers.partition.files.past_outcomes import maker_of
from consumers.partition.files.table_files import TableFiles, delete_versions

VERSIONS_AT_ONCE = 100
"""Then those who wait for them hear of them."""

WriteVersion = Callable[[TableFiles, Change], bool]
"""Returns False if a version gets no file."""


PaysOwed = Callable[[TableFiles, WriteVersion], None]
"""Writes the next versions that are owed of a table, and the rest with the last ones; raises as
stores and logs do."""


class OwedWriter:
    """Writes what one checkpoint owes; from any thread, each another table."""

    def __init__(
        self,
        log: Log,
        genesis: Genesis,
        owed: Sequence[Owed],
        machine: Machine,
        index: OffsetIndex,
        open_store: Callable[[str], ObjectStore],
        clock: Callable[[], float],
    ) -> None:
        """Begin with the machine of the checkpoint, and the index, which learns its places."""
        self._open_store = open_store
        index.note_all(one.place for one in owed if one.place != BEGINNING)
        self._places = _Places(owed, machine, index.places())
        self._old = OldVersions(
            log,
            genesis.partition,
            Recordings(genesis.tables_root, partial(open_or_fail_later, open_store)),
            self._places,
            open_store=open_store,
            clock=clock,
            reached_max=len(owed),
        )
        self._old.rules = lambda: machine.rules

    def __call__(self, files: TableFiles, write_version: WriteVersion) -> None:
        """Write the next versions of what is owed; with the last ones, do the rest as well."""
        # Of the table as the checkpoint has it; what comes after that is made upon it.
        state = files.state
        try:
            owed = self._write_versions(files, write_version)
            if owed.has_versions:
                return
            delete_versions(files, owed.change(ChangeKind.VERSIONS_DELETED))
            if owed.end is ChangeKind.DROPPED and FOLDER in owed.location:
                self._end_branch(files, owed)
        finally:
            files.state = state
        files.paid += owed.changes
        files.owed = None

    def _write_versions(self, files: TableFiles, write_version: WriteVersion) -> Owed:
        """Write the next versions; return what is owed then."""
        owed = files.owed
        assert owed is not None
        is_every = owed.policy is Policy.EVERY
        # Under `latest`, those that wait behind it bring a newer one.
        is_covered = not is_every and _has_newer(files)
        is_branch = FOLDER in owed.location
        if not owed.has_versions or (is_covered and not is_branch):
            return replace(owed, first=0, last=0)
        reached = written = 0
        for change, made, valid in self._made_after(files, owed):
            reached, files.state = change.version, made
            self._places.passed(owed, reached, valid.place)
            if reached < owed.first:
                continue
            if is_every or (reached == owed.last and not is_covered):
                written += write_version(files, change)
                files.written_version = reached
            follow_branch(self._open_store, files, [change])
            if is_every:
                # The last change is paid with the rest: until then, checkpoints tell of the debt.
                paid = int(owed.changes > 1)
                changes = owed.changes - paid
                owed = replace(owed, first=reached + 1, base=reached, changes=changes)
                files.owed = owed
                files.paid += paid
                if written >= VERSIONS_AT_ONCE:
                    return owed
        if reached < owed.last:
            name = format_table_id(owed.table)
            raise CorruptLog(f"the log lacks version {owed.last} of {name}; run `commitlog verify`")
        return replace(owed, first=owed.last + 1)

    def _made_after(
        self, files: TableFiles, owed: Owed
    ) -> Iterator[tuple[Change, ManifestState, Valid]]:
        """Return the versions after the newest file before what is owed, as `OldVersions` does."""
        head, there = _head(owed), versions_in(files.store)
        if owed.base and owed.end is None and not there:
            raise FileNotFoundError(f"{owed.location} has no manifests: is its disk mounted?")
        try:
            base, state = self._old.newest_before(head, owed.first, files.store, there)
        except DecodeError as error:
            raise CorruptLog(f"a manifest in {owed.location} cannot be read: {error}") from error
        if not base and not owed.base and FOLDER in owed.location:
            base = owed.first - 1  # a branch begins with a version of its table
        needed = owed.first if owed.policy is Policy.EVERY else owed.last
        return self._old.made_after(head, base, owed.last, state, first=needed)

    def _end_branch(self, files: TableFiles, owed: Owed) -> None:
        """Remove the reference of a branch that was dropped."""
        there = versions_in(files.store)
        newest = max(there, default=0) + 1
        _, state = self._old.newest_before(_head(owed), newest, files.store, there)
        if state is not None:
            files.state = state
            follow_branch(self._open_store, files, [owed.change(ChangeKind.DROPPED)])


class _Places:
    """Where to begin to read: as the checkpoint says, and by what was read since."""

    def __init__(self, owed: Sequence[Owed], machine: Machine, places: list[ChainPlace]) -> None:
        self._owed = {one.incarnation: one for one in owed}
        self._passed = {one.incarnation: _Passed(one.first, one.place, one.place) for one in owed}
        # Of the newest files: without it, the log would be read to know that they are its own.
        self._makers = {
            (one.incarnation, one.base): maker_of(machine, _head(one), one.base) for one in owed
        }
        self._places = places

    def passed(self, owed: Owed, version: int, behind: ChainPlace) -> None:
        """Note the place behind the outcome that made a version."""
        passed = self._passed[owed.incarnation]
        if behind.sequence > passed.behind.sequence:
            self._passed[owed.incarnation] = _Passed(version, passed.behind, behind)

    def before(self, sequence: int) -> ChainPlace:
        return BEGINNING

    def before_version(self, head: Head, version: int) -> ChainPlace | None:
        passed = self._passed[head.incarnation]
        if version >= passed.version:
            return passed.before
        owed = self._owed[head.incarnation]
        return owed.place if version > owed.base else None

    def indexed(self) -> list[ChainPlace]:
        return self._places

    def made_by(self, head: Head, version: int) -> str:
        return self._makers.get((head.incarnation, version), "")

    def came_by(self, places: list[ChainPlace]) -> None:
        """Keep none: the session's own index has them."""


class _Passed(NamedTuple):
    """The last outcome of a table that was read."""

    version: int
    """The first one that it made."""
    before: ChainPlace
    """Before it, and behind the one before."""
    behind: ChainPlace


def _has_newer(files: TableFiles) -> bool:
    """Return True if a version waits to be written."""
    # Another thread appends meanwhile, which an iterator of the queue would trip over.
    waiting = (files.pending[position][0] for position in range(len(files.pending)))
    return any(change.delta is not None for change in waiting)


def _head(owed: Owed) -> Head:
    return Head(
        table=owed.table,
        incarnation=owed.incarnation,
        location=owed.location,
        policy=owed.policy,
        version=owed.last,
        header=None,
        primary_key=(),
        properties=(),
        stable_row_ids=False,
    )
