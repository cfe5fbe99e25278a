"""Unneeded files: listed with the reason and the age, and removed by a record.

What the ledger doesn't know as needed is a leftover, once it is old enough: counted from the record
that ended it, and from when the file was written. A client that reads an old version, or is about
to name a file that it wrote, has that long. Removing begins with a record, and looks at the log
once more after it. It may be killed at any moment: the next run finds what is left.

A client that is late may name a file at that very moment. So the file gets another name first, with
which the leader refuses it, and then the log is looked at: what was decided before is there by now,
and its file gets its name back. An object store has no names to change, only copies to make: there
the time of a look and of some removals stays in which such a client loses its file.

A dropped table may come back until its files go. So its newest manifest goes first, under another
name: registering the table again needs that manifest, so once it is gone that is impossible.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from commitlog import CommitLog
from commitlog.adapters.lance_refs import versions_with_files
from commitlog.adapters.reading import read_on
from commitlog.adapters.storage import FileFound, store_for
from commitlog.client.commits.names import like_known
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, decode_manifest
from commitlog.core.log.replica import Replica
from commitlog.core.partition.machine import Machine
from commitlog.errors import CommitLogError, NoSuchTable
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.names import REASON
from commitlog.model.operations import AlterProperties, Properties
from commitlog.ports import Log
from consumers.partition.files.events import Event
from consumers.partition.files.table_files import QUARANTINE
from consumers.partition.follower import Follower
from consumers.runtime.progress import SILENT, Tally
from consumers.tools.orphans.branch_files import (
    TREE,
    branch_names,
    branch_of,
    needed_by_branches,
)
from consumers.tools.orphans.ended_tables import EndedTables
from consumers.tools.orphans.file_ledger import FileLedger, LifeFiles, Standing, Why
from consumers.tools.orphans.leftover import (
    GONE,
    Leftover,
    bring_back,
    leftover,
    name_again,
    owner,
    put_aside,
    said,
)
from consumers.tools.orphans.named_files import paths_in
from consumers.tools.orphans.nested_places import nested_in
from consumers.tools.turns import Turns

CATCH_UP_SECONDS = 600.0
LIST_SECONDS = 600.0
"""A store that hasn't listed a table's files by then holds up no other's."""
AT_ONCE = 1_000
"""Files that are removed after one look at the log."""
BLOCK_BYTES = 4096

logger = logging.getLogger(__name__)


class Leftovers:
    """Unneeded files of the tables in one partition. Reads the whole partition; close it."""

    def __init__(
        self,
        log: Log,
        partition: int,
        *,
        clock: Callable[[], float] = time.time,
        tally: Tally = SILENT,
    ) -> None:
        """Read the log to its present end; `tally` tells how far that and the looks are."""
        self._clock, self._log, self._partition, self._tally = clock, log, partition, tally
        self.taken = Counter[tuple[str, bool]]()
        """Bytes on a disk by incarnation: its newest version needs them, or (False) others."""
        self._turns = Turns(LIST_SECONDS)
        self._unlisted: set[str] = set()
        """Incarnations of tables whose stores failed or hung when they were to list their files."""
        self._gone: set[str] = set()
        """What the last look at all tables neither found nor saw needed."""
        self._begin()

    def _begin(self) -> None:
        """Read the log from its beginning."""
        genesis = self._log.genesis(self._partition)
        self._machine, self._ledger, self._ended = Machine(genesis), FileLedger(), EndedTables()
        self._follower = Follower(self._log, genesis, self._machine, Replica())
        self._read()

    def close(self) -> None:
        """Stop reading."""
        self._follower.close()

    def rest(self) -> None:
        """Let go of both connections until the next look."""
        self._follower.rest()

    def find(self, table: str | None = None) -> Iterator[Leftover]:
        """Yield the leftovers of a table, dropped ones of its name included, or of all."""
        if any(one.is_forgotten and one.is_live for one in self._ledger.lives.values()):
            self._follower.close()
            self._begin()
        lives = [one for one in self._ledger.lives.values() if table in {None, one.name}]
        if table is not None and not lives:
            hint = like_known(table, {one.name for one in self._ledger.lives.values()})
            raise NoSuchTable(f"the log has no Lance table {table!r}.", hint=hint)
        lives = [one for one in lives if not self._ended.is_over(one)]
        # The files first: one that is there now is named later, if anybody names it.
        listed = {}
        for life in self._tally.of("tables listed", lives, each=1):
            with _apart(life, is_only=table is not None):
                listed[life.incarnation] = self._turns.take(life.incarnation, partial(_files, life))
        self._unlisted = {life.incarnation for life in lives} - listed.keys()
        self._read()
        empty = [self._ledger.lives[name] for name, files in listed.items() if not files]
        self._ledger.forget_tables(self._ended.note(empty, int(self._clock() * 1000)))
        needed = self._needed(self._ledger.known_of(lives))
        locations = sorted(one.location for one in self._ledger.lives.values())
        self.taken.clear()
        there: set[str] = set()
        judged = 0
        for life in lives:
            found: list[Leftover] = []
            if life.incarnation in listed:
                with _apart(life, is_only=table is not None):
                    files, nested = listed[life.incarnation], nested_in(life.location, locations)
                    found += self._of(life, files, nested, needed, there)
                    judged += 1
            yield from found
        if table is None and judged == len(lives):
            # Twice: a file that came between the list and the log is on the next list.
            gone = self._ledger.known_of(life for life in lives if life.is_live) - needed - there
            self._ledger.forget(gone & self._gone)
            self._gone = gone - self._gone

    def read_elsewhere(self, table: str) -> Iterator[tuple[FileFound, set[str]]]:
        """Yield a table's files that its newest version doesn't read, and which others do."""
        standing = self._standing()
        for life in (one for one in self._ledger.lives.values() if one.is_live):
            if life.name != table:
                continue
            for file in _files(life):
                named = owner(life, file.path)
                readers = self._ledger.readers(named, standing) if named not in life.readers else ()
                if names := {one.name for one in readers if one is not life}:
                    yield file, names

    def remove(
        self,
        found: Iterable[Leftover],
        log: CommitLog,
        *,
        on_removed: Callable[[Leftover], None],
        go_on: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Remove leftovers, table by table, each after a record; return True if none is left.

        Stops early once `go_on` returns False.
        """
        for life in self._ledger.lives.values():
            if life.incarnation in self._unlisted:
                continue
            with _apart(life):
                if life.is_live and life.came_back:
                    bring_back(life)
                if life.dropped is not None and life.incarnation in self._ended.bare:
                    store_for(life.location).prune()  # folders that a killed removal has left
        for leftovers in self.by_table(found):
            life = self._ledger.lives[leftovers[0].incarnation]
            if life.is_live:
                if not self._remove_of_table(life, leftovers, log, on_removed, go_on):
                    return False
            elif self._is_out_of_reach(life):
                if not self._delete(life, leftovers, on_removed, go_on):
                    return False
                store = store_for(life.location)
                for name in list(store.names(VERSIONS_DIRECTORY)):
                    if name.endswith(GONE):
                        store.delete(f"{VERSIONS_DIRECTORY}/{name}")
                store.prune()
        return True

    def by_table(self, found: Iterable[Leftover]) -> list[list[Leftover]]:
        """Return leftovers in lists, one for each incarnation of a table."""
        tables: dict[str, list[Leftover]] = {}
        for one in found:
            tables.setdefault(one.incarnation, []).append(one)
        return list(tables.values())

    def _remove_of_table(
        self,
        life: LifeFiles,
        leftovers: Sequence[Leftover],
        log: CommitLog,
        on_removed: Callable[[Leftover], None],
        go_on: Callable[[], bool],
    ) -> bool:
        # Who and why; the files are named by the records that ended them.
        properties = {REASON: said(leftovers)}
        ticket = log.submit(None, AlterProperties(life.table), properties=properties)
        ticket.result(CATCH_UP_SECONDS).raise_for_conflict()
        for start in range(0, len(leftovers), AT_ONCE):
            some = self._unneeded(life, leftovers[start : start + AT_ONCE])
            with self._aside(life, some) as unneeded:
                if not self._delete(life, unneeded, on_removed, go_on):
                    return False
        return True

    def _unneeded(self, life: LifeFiles, leftovers: Sequence[Leftover]) -> list[Leftover]:
        """Return those that are unneeded by the branches and the log as they are now."""
        of_branches = _of_branches(life)
        branches = branch_names(store_for(life.location))
        self._read()
        names = [owner(life, one.path, branches) for one in leftovers]
        needed = {*self._needed(names), *of_branches, ""}
        return [one for one, name in zip(leftovers, names, strict=True) if name not in needed]

    @contextlib.contextmanager
    def _aside(self, life: LifeFiles, leftovers: Sequence[Leftover]) -> Iterator[list[Leftover]]:
        """Put aside what a late transaction could name; yield what none names.

        What is aside at the end gets its name back.
        """
        store = store_for(life.location)
        moved = [one for one in leftovers if one.why is Why.ABANDONED and not one.is_aside]
        if not moved or not store.renames:
            yield list(leftovers)
            return
        aside = {one.path: replace(one, is_aside=True) for one in moved}
        try:
            for one in aside.values():
                with contextlib.suppress(FileNotFoundError):
                    store.move(one.path, one.file)
            yield [aside.get(one.path, one) for one in self._unneeded(life, leftovers)]
        finally:
            for path in aside:
                name_again(life, path)

    def _is_out_of_reach(self, life: LifeFiles) -> bool:
        """Keep a dropped table from being registered again; return False if it was."""
        store = store_for(life.location)
        newest = versions_with_files(life.location).get(life.version)
        if newest is not None:
            store.move(newest, newest + GONE)
        self._read()
        if life.is_live and newest is not None:
            store.move(newest + GONE, newest)
        return not life.is_live

    def _delete(
        self,
        life: LifeFiles,
        leftovers: Sequence[Leftover],
        on_removed: Callable[[Leftover], None],
        go_on: Callable[[], bool],
    ) -> bool:
        store = store_for(life.location)
        # The manifest that keeps a dropped table out of reach goes last.
        for one in (one for one in leftovers if not one.path.endswith(GONE)):
            if not go_on():
                return False
            store.delete(one.file)
            on_removed(one)
        for folder in {one.path.rpartition("/")[0] for one in leftovers}:
            if folder.startswith(("data/", "_indices/")):
                store.prune(folder)
            elif folder.startswith(TREE):
                store.prune("/".join(folder.split("/")[:2]))
        return True

    def _read(self) -> None:
        """Read to the log's present end: what is decided, and what may be yet."""

        def take(events: list[Event]) -> None:
            for event in self._tally.of("changes read", events):
                self._ledger.take(event)

        self._follower.catch_up(CATCH_UP_SECONDS, take)
        for submitted in read_on(self._follower.transactions):
            self._follower.replica.receive_submitted(submitted)

    def _needed(self, paths: Collection[str]) -> set[str]:
        """Return which of some files are needed, and what transactions name without an outcome."""
        needed = self._ledger.needed(paths, self._standing())
        undecided = (s.record for s in self._follower.replica.undecided.values())
        return needed | self._ledger.undecided(undecided)

    def _standing(self) -> Standing:
        now_ms = int(self._clock() * 1000)
        return self._ledger.standing(self._properties, now_ms, self._unlisted)

    def _properties(self, life: LifeFiles) -> Properties:
        table = self._machine.tables.get(life.table)
        if table is None or table.incarnation != life.incarnation:
            return ()
        return table.properties

    def _of(
        self,
        life: LifeFiles,
        files: Sequence[FileFound],
        below: Sequence[str],
        needed: set[str],
        there: set[str],
    ) -> Iterator[Leftover]:
        """Yield a table's leftovers; add to `there` what its files are known by.

        What is in the folders `below` is another table's.
        """
        foreign: set[str] | None = None
        of_branches = _of_branches(life)
        branches = branch_names(store_for(life.location))
        manifests = {path: v for v, path in versions_with_files(life.location).items()}
        for file in files:
            if any(file.path.startswith(f"{nested}/") for nested in below):
                continue
            path, is_aside = put_aside(file.path)
            named = owner(life, path, branches)
            there.add(named)
            is_needed = named in needed or named in of_branches
            if is_needed and is_aside:
                name_again(life, path)  # who put it aside was killed
            if life.is_live and (is_needed or file.path in manifests):
                is_newest = named in life.readers or manifests.get(file.path) == life.version
                self.taken[life.incarnation, is_newest] += _on_disk(file.size)
            if is_needed:
                continue
            if not life.is_live:
                if life.dropped is None:
                    continue
                yield leftover(life, file, Why.DROPPED, str(life.dropped), life.dropped.time_ms)
            elif named:
                ended = self._ledger.ended(named)
                if ended is not None:
                    yield leftover(life, file, ended[0], str(ended[1]), ended[1].time_ms)
                    continue
                if foreign is None:
                    foreign = set(_foreign(life, files))
                branch, _ = branch_of(file.path)
                if named in foreign or file.path.startswith(f"{QUARANTINE}/"):
                    yield leftover(life, file, Why.FOREIGN, "somebody wrote it past the log")
                elif branch and branch not in branches:
                    yield leftover(life, file, Why.ABANDONED, f"there is no branch {branch} now")
                elif branch:
                    yield leftover(life, file, Why.ABANDONED, f"no version of {branch} names it")
                else:
                    yield leftover(life, file, Why.ABANDONED, "no transaction names it")


@contextlib.contextmanager
def _apart(life: LifeFiles, *, is_only: bool = False) -> Iterator[None]:
    """Keep the trouble of one table from holding up others; raise it if there are none."""
    try:
        yield
    except (CommitLogError, OSError, ValueError) as error:
        if is_only:
            raise
        logger.warning("files of %s were left for later: %s", life.name, error)


def _files(life: LifeFiles) -> list[FileFound]:
    return list(store_for(life.location).files())


def _of_branches(life: LifeFiles) -> set[str]:
    return set(needed_by_branches(life)) if life.is_live else set()


def _on_disk(size: int) -> int:
    """Return what a file takes of a disk: of thousands of one-row files far more than they hold."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _foreign(life: LifeFiles, files: Sequence[FileFound]) -> Iterator[str]:
    """Yield the files that quarantined manifests name."""
    store = store_for(life.location)
    for file in files:
        if not file.path.startswith(f"{QUARANTINE}/"):
            continue
        try:
            state, _ = decode_manifest(store.read(file.path))
        except (CommitLogError, OSError, ValueError):
            continue
        for encoded in state.fragments.values():
            yield from paths_in(life, DataFragment.FromString(encoded))
