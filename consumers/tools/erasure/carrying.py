"""Carries acts out: takes erased rows out of every copy, and says of each whether they are gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from math import inf
from pathlib import Path

from commitlog import CommitLog
from commitlog.adapters.log_records import to_submitted
from commitlog.adapters.places import plain
from commitlog.adapters.reading import read_to
from commitlog.adapters.storage import store_for
from commitlog.client.leader.tables import TableInfo
from commitlog.codecs.payloads import inline_rows
from commitlog.core.catalogue.version_deletion import without
from commitlog.model.operations import AlterProperties
from commitlog.model.records import Transaction
from commitlog.ports import ArchivableLog, RawRecord
from consumers.partition.files.events import in_words
from consumers.tools.archive.log import FOLDER
from consumers.tools.archive.proof import Archive, alone
from consumers.tools.archive.rows import Erased, has_rows, take_out
from consumers.tools.archive.writer import ArchiveRun, archive, give_up
from consumers.tools.backup.saved import ARCHIVE, TABLES, Backup, transactions_there
from consumers.tools.backup.writer import is_being_written
from consumers.tools.clocks import clock_difference
from consumers.tools.erasure.acts import DONE, RecordedErasure
from consumers.tools.erasure.writes import HeldWrite, TableWrites
from consumers.tools.orphans.file_ledger import Why
from consumers.tools.orphans.leftover import Leftover
from consumers.tools.orphans.named_files import INDICES
from consumers.tools.orphans.orphans import Leftovers

READ_SECONDS = 120.0
CLEANING_SECONDS = 300.0
WRITING_SECONDS = 600
"""How long after an act somebody may still write a file from rows read before it."""
QUIET_SECONDS = 3_600
"""An index build has ended if nothing was written to its folder for so long, the longest that one
may take here."""
_ENDED = frozenset({Why.EXPIRED, Why.REFUSED, Why.APPLIED})
_SHOWN = 5
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds to wait until row writers have applied what a segment ends with."""

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Copy:
    """A place that has, or had, what was erased."""

    name: str
    is_gone: bool
    said: str


@dataclass(frozen=True, slots=True)
class Places:
    """Where copies are, besides the log's topic and the table."""

    root: Path
    """The log's; its archive is below."""
    backups: Sequence[str] = ()
    clean_at_once: Callable[[], AbstractContextManager[None]] | None = None
    """Has the topic's cleaner work at once; None: it works when the topic's settings say so."""


def erased_by(acts: Sequence[RecordedErasure]) -> dict[int, set[int]]:
    """Return the operations whose rows acts name, by their transactions' positions."""
    found: dict[int, set[int]] = {}
    for act in acts:
        for at in act.writes:
            found.setdefault(at.sequence, set()).add(at.operation)
    return found


class Carrying:
    """One table's acts, carried out step by step; each step looks at what is left to do."""

    def __init__(
        self,
        client: CommitLog,
        open_log: Callable[[], ArchivableLog],
        info: TableInfo,
        places: Places,
        on_step: OnStep,
    ) -> None:
        """Erase through a client; `open_log` reads the log together with its archive."""
        self._client, self._open_log, self._info = client, open_log, info
        self._places, self._on_step = places, on_step
        self._partition = client.runtime().domains.partition(info.table_id)
        self._waits = False
        """Whether rewritten segments can't be given up yet, so that the topic keeps their rows."""

    def run(self, acts: Sequence[RecordedErasure], done: int) -> list[Copy]:
        """Take out what acts name, newest last; the table's files are done through `done`."""
        erased = erased_by(acts)
        writes = self._writes(erased)
        inline: dict[int, set[int]] = {}
        for write in writes:
            if not write.path:
                inline.setdefault(write.offset, set()).add(write.at.operation)
        copies = [self._row_files(writes)]
        self._on_step("erasing from the archive and the topic")
        copies.append(self._archive(erased))
        copies.append(self._topic(inline, is_given_up=not self._waits))
        if acts and acts[-1].sequence > done:
            self._on_step("rewriting the table's files")
            copies.append(self._table(acts[-1]))
        else:
            said = "its files were rewritten before" if acts else "nothing is recorded for it"
            copies.append(Copy("table", True, said))
        for place in self._places.backups:
            self._on_step(f"looking at the backup {place}")
            copies.append(self._backup(place, inline))
        return copies

    def _writes(self, erased: Erased) -> list[HeldWrite]:
        with closing(self._open_log()) as log:
            found = TableWrites(log, self._partition, self._info).read()
            return [
                one._replace(payload=None)
                for one in found
                if one.at.operation in erased.get(one.at.sequence, ())
            ]

    def _row_files(self, writes: Sequence[HeldWrite]) -> Copy:
        paths = [write.path for write in writes if write.path]
        store = store_for(self._info.location)
        for path in paths:
            store.delete(path)
        return Copy("files of rows", True, f"{len(paths):,} removed")

    def _archive(self, erased: Erased) -> Copy:
        """Archive the log, without these rows, and give up what has them in the topic."""
        folder, number = self._places.root / FOLDER, self._partition
        with alone(folder), closing(self._open_log()) as log:
            kept = Archive.open(folder, log.identity(), log.genesis(number))
            if not erased and not kept.segments:
                return Copy("archive", True, "there is none")
            last = max(erased, default=0)
            if last > kept.end.sequence:
                archive(log, number, folder)
                kept = Archive.open(folder, log.identity(), log.genesis(number))
            take_out(kept, erased)
            for pause in (0.0, *_PAUSES):
                if pause:  # a segment ends with the log, maybe before its writes were applied
                    time.sleep(pause)
                    archive(log, number, folder)
                run = ArchiveRun(number)
                give_up(log, number, folder, run)
                kept = Archive.open(folder, log.identity(), log.genesis(number))
                self._waits = any(one.is_rewritten and not one.given_up for one in kept.segments)
                if not self._waits:
                    break
            left = has_rows(kept, erased)
            waits = f"; {run.waiting} segments wait for a row writer" if run.waiting else ""
            said = f"{len(kept.segments):,} segments through {kept.end.sequence}{waits}"
            return Copy("archive", not left, said)

    def _topic(self, wanted: Mapping[int, set[int]], *, is_given_up: bool) -> Copy:
        left = self._in_topic(wanted)
        if left and not is_given_up:
            said = (
                f"{len(left):,} of {len(wanted):,} records stay, since writes that were archived"
                " with them aren't applied: start a row writer (`commitlog rows`), then run this"
                " again"
            )
            return Copy("topic", False, said)
        clean = self._places.clean_at_once
        if clean is not None:
            with clean():  # though nothing is left: a killed run may have left the settings
                left = self._wait_for_the_cleaner(wanted, left)
        if not left:
            return Copy("topic", True, f"none of {len(wanted):,} records is left")
        said = (
            f"{len(left):,} of {len(wanted):,} records stay until Kafka's cleaner removes them;"
            " pass --now, or run this again after the topic's min.compaction.lag.ms"
        )
        return Copy("topic", False, said)

    def _wait_for_the_cleaner(
        self, wanted: Mapping[int, set[int]], left: Sequence[RawRecord]
    ) -> list[RawRecord]:
        deadline = time.monotonic() + CLEANING_SECONDS
        with closing(self._open_log()) as log:
            while left and time.monotonic() < deadline:
                # An append rolls the segment, and the cleaner takes those that are closed.
                log.tombstone(self._partition, [raw.key for raw in left[:1] if raw.key])
                time.sleep(1.0)
                left = self._in_topic(wanted)
        return list(left)

    def _in_topic(self, wanted: Mapping[int, set[int]]) -> list[RawRecord]:
        """Return the records at these offsets that still have the rows."""
        if not wanted:
            return []
        with closing(self._open_log()) as log:
            raws = log.read_raw(self._partition, min(wanted), is_transactions=True)
            return [raw for raw in read_to(raws, max(wanted) + 1) if _holds(raw, wanted)]

    def _table(self, act: RecordedErasure) -> Copy:
        """Rewrite fragments with deleted rows and indices, and remove what had them before."""
        client, name = self._client, self._info.name
        client.compact(
            name,
            materialize_deletions=True,
            materialize_deletions_threshold=0.0,
            timeout=QUIET_SECONDS,
        )
        if client.open(name).describe_indices():
            client.optimize(name, retrain=True, timeout=QUIET_SECONDS)
        # Who writes on makes newer versions from this one: their files have no such rows.
        clean = client.describe(self._info.table_id, fresh=True).version
        client.expire_versions(name, retain_versions=1)
        problems = self._left_behind(act)
        now = client.describe(self._info.table_id, fresh=True)
        kept = without([(1, clean - 1)], now.deleted)
        if kept:
            problems.append(
                f"versions {in_words(kept[:_SHOWN])} are kept by a tag, a branch or a hold: remove"
                " that, and run this again"
            )
        if problems:
            return Copy("table", False, "; ".join(problems))
        operation = AlterProperties(self._info.table_id)
        ticket = client.submit(None, operation, properties={DONE: str(act.sequence)})
        ticket.result(READ_SECONDS).raise_for_conflict()
        said = f"versions before {clean} are gone, and its files were written since"
        return Copy("table", True, said)

    def _left_behind(self, act: RecordedErasure) -> list[str]:
        """Remove what no version needs, as far as that is safe by now; name what is left."""
        name = self._info.name
        wrong = clock_difference(self._client)
        with (
            closing(self._open_log()) as log,
            closing(Leftovers(log, self._partition)) as leftovers,
        ):
            found = list(leftovers.find(name))
            unneeded = [one for one in found if self._has_ended(one)]
            # By a clock that is ahead, a build that goes on has ended long ago.
            unneeded += [] if wrong else builds(found, time.time_ns() // 1_000_000)[0]
            leftovers.remove(unneeded, self._client, on_removed=lambda one: None)
            found = list(leftovers.find(name))
            shared = list(leftovers.read_elsewhere(name))
        going_on = set(builds(found, time.time_ns() // 1_000_000)[1])
        # What is begun later reads a version without these rows.
        last_ms = act.time_ms + WRITING_SECONDS * 1000
        left = [one for one in found if one.since_ms <= last_ms]
        busy = [one for one in left if one in going_on]
        others = [one for one in left if one not in going_on]
        clones = {name for file, names in shared if file.modified_ms <= last_ms for name in names}
        problems = [f"{wrong}, then run this again"] if wrong and left else []
        if clones:
            problems.append(
                f"files that may have such rows are read by {', '.join(sorted(clones))}: erase the"
                " rows there too, or drop that, then run this again"
            )
        if busy:
            last = max(one.since_ms for one in going_on) // 1000 + QUIET_SECONDS + 1
            problems.append(
                f"{_shown(busy)} may be of index builds that go on: run this again after"
                f" {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(last))} UTC, and what no build"
                " writes any more is removed"
            )
        if others:
            problems.append(
                f"{_shown(others)} of unknown purpose may have such rows;"
                f" `commitlog orphans {name} --remove` removes them after their time"
            )
        return problems

    def _has_ended(self, found: Leftover) -> bool:
        """Return True for a file that nobody may need again; a dropped table may come back."""
        is_own = found.incarnation == self._info.incarnation
        return found.why in _ENDED or (is_own and found.why is Why.DROPPED)  # of a clone

    def _backup(self, place: str, wanted: Mapping[int, set[int]]) -> Copy:
        """Return True if a backup has records with these rows, or files that were removed since."""
        store, name = store_for(place), f"backup {place}"
        backup = Backup.read(store, place)
        if backup is None:
            return Copy(name, False, "no backup is there: correct the place, or leave it out")
        if is_being_written(place):
            said = "a run of `commitlog backup` writes to it: run this again once that has ended"
            return Copy(name, False, said)
        # All that is there: a run that was killed has copied files that nothing names.
        records = transactions_there(store, backup, self._partition, min(wanted, default=inf))
        below = plain(self._info.location).removeprefix(f"{plain(backup.tables_root)}/")
        now = {f"{TABLES}/{below}/{f.path}" for f in store_for(self._info.location).files()}
        archived = (self._places.root / FOLDER).rglob("*.parquet")
        now |= {f"{ARCHIVE}/{p.relative_to(self._places.root / FOLDER)}" for p in archived}
        there = (file.path for own in (f"{TABLES}/{below}", ARCHIVE) for file in store.files(own))
        gone = [path for path in there if path not in now]
        data = [p for p in gone if p.endswith((".lance", ".parquet", ".arrow", ".idx"))]
        if not data and not any(_holds(raw, wanted) for raw in records):
            return Copy(name, True, "it was made after")
        said = f"it has them: run `commitlog backup NEW` to a new place, and remove {place}"
        return Copy(name, False, said)


def builds(found: Sequence[Leftover], now_ms: int) -> tuple[list[Leftover], list[Leftover]]:
    """Return the files of index builds that no transaction names: of ended ones, and of others."""
    folders: dict[str, list[Leftover]] = {}
    for one in found:
        folder, _, below = one.path.partition("/")
        if folder == INDICES and one.why is Why.ABANDONED:
            folders.setdefault(below.partition("/")[0], []).append(one)
    quiet: list[Leftover] = []
    busy: list[Leftover] = []
    for files in folders.values():
        newest = max(one.since_ms for one in files)
        (quiet if now_ms - newest >= QUIET_SECONDS * 1000 else busy).extend(files)
    return quiet, busy


def _shown(files: Sequence[Leftover]) -> str:
    return f"{len(files):,} files ({', '.join(one.location for one in files[:_SHOWN])})"


def _holds(raw: RawRecord, wanted: Mapping[int, set[int]]) -> bool:
    """Return True if a record of the transactions topic has rows of these operations."""
    numbers = wanted.get(raw.offset, ())
    submitted = to_submitted(0, *raw) if numbers else None
    record = submitted.record if submitted is not None else None
    inline = inline_rows(record) if isinstance(record, Transaction) else {}
    return any(inline.get(number) is not None for number in numbers)
