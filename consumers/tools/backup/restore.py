"""`commitlog restore`: puts a backup into an empty root, or onto another cluster.

A note in the root says that it isn't finished until all is there and was read back; nothing starts
on such a root, and running the restore again starts it over.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.kafka_moved import Moves
from commitlog.adapters.kafka_restore import RestoredTopics
from commitlog.adapters.kafka_settings import ClientSettings
from commitlog.adapters.places import bound
from commitlog.adapters.storage import local_path, store_for
from commitlog.client.history.roots import roots_of, use_roots
from commitlog.errors import CorruptLog, InvalidTransaction, Unavailable, WrongLog
from commitlog.ports import Move, MovedPartition, RawRecord
from consumers.broker.embedded import EmbeddedBroker
from consumers.broker.home import Home
from consumers.runtime.config import Config
from consumers.runtime.locks import taken
from consumers.runtime.places import MARKS
from consumers.runtime.progress import OnCount, Tally, untold
from consumers.runtime.roots import RESTORING, RootInUse, RootUnusable, made
from consumers.tools.archive.proof import Archive
from consumers.tools.backup.archives import archives_of, missing_of, take_over, with_archived
from consumers.tools.backup.checkpoints import put_back
from consumers.tools.backup.cut import Heads, RestorePoint, answers, cut, end_of, kept
from consumers.tools.backup.lacking import Lacking, lacking_in
from consumers.tools.backup.remains import Remains, look_at
from consumers.tools.backup.saved import (
    ARCHIVE,
    TABLES,
    Backup,
    BadBackup,
    SavedFile,
    SavedPartition,
    Store,
    files_of,
    need_backup,
    part,
    take_checked,
)
from consumers.tools.backup.writer import records_of
from consumers.tools.moved_proof import end_of_topic


@dataclass(slots=True)
class Restored:
    """What was put back."""

    root: str
    tables_root: str
    log: str = ""
    positions: dict[int, int] = field(default_factory=dict)
    backed_up: dict[int, int] = field(default_factory=dict)
    """The last outcome of each partition that the backup has."""
    transactions: int = 0
    undecided: int = 0
    """Transactions that the next leader decides."""
    missing: int = 0
    """Decided transactions that neither the topic nor the archive had any more."""
    files: int = 0
    bytes: int = 0
    elsewhere: tuple[str, ...] = ()
    lacking: tuple[Lacking, ...] = ()
    """Tables whose files no run of the backup found any more."""
    places: dict[str, str] = field(default_factory=dict)
    """Places that the backup has in a named root and the restored log, as of then, doesn't."""
    checkpoints: int = 0
    """Of how many partitions; the others are read from their beginning."""
    damage: list[str] = field(default_factory=list)
    """Each damaged file of the backup that was left out, in words."""
    remains: Remains | None = None
    """What is left of the log that was lost, if that was named."""


def restore(
    place: str,
    config: Config,
    at: str = "",
    remains: str = "",
    on_progress: OnCount = untold,
) -> Restored:
    """Put a backup back, as of a position or a time; name what `remains` of the log has beyond it.

    Raises:
        BadBackup: there is none, or a file of its log or archive isn't what was written.
        RootInUse: another process restores to that root.
        RootUnusable: the root, or the place of the tables, isn't empty.
        WrongLog: the cluster has a log of that name.
    """
    root = config.need_root()
    source = store_for(place)
    backup = need_backup(source, place)
    if config.sources["log"] != "default" and config.log != backup.log:
        raise WrongLog(f"the backup at {place} is of log {backup.log!r}, not {config.log!r}")
    use_roots(backup.roots, has_tables=True)
    sequence, until_ms = end_of(at, backup)
    heads = Heads()
    cuts = [cut(source, one, heads, sequence, until_ms) for one in backup.partitions]
    if until_ms is not None and not any(one.sequence for one in cuts):
        raise InvalidTransaction(
            f"the log had nothing yet at {at}, so nothing would be restored",
            field="at",
            value=at,
            advice="Give a later time, or a position",
        )
    done = Restored(str(root), backup.tables_root, backup.log, elsewhere=tuple(backup.elsewhere))
    if remains:
        done.remains = _beyond(remains, source, backup, heads if not at else None)
    ends = {one.partition: end for one, end in zip(backup.partitions, cuts, strict=True)}
    with _taken(root, backup, place) as goes_on:
        _fill(place, config, backup, ends, heads, done, on_progress, goes_on=goes_on)
    return done


def _fill(
    place: str,
    config: Config,
    backup: Backup,
    ends: Mapping[int, RestorePoint],
    heads: Heads,
    done: Restored,
    on_progress: OnCount,
    *,
    goes_on: bool,
) -> None:
    """Put archive, topics, checkpoints and tables into a root that this process has taken."""
    root, source = config.need_root(), store_for(place)
    files = files_of(source, backup).values()
    _files(files, ARCHIVE, str(root / ARCHIVE), place, heads, done, on_progress)
    archives, tally = archives_of(root / ARCHIVE, ends), Tally(on_progress)
    with _cluster(config, root, backup) as servers:
        settings = ClientSettings(servers, config.kafka)
        with contextlib.closing(KafkaLog(settings, backup.log, 60.0)) as log:
            factor = log.replication_factor()
            topics = RestoredTopics(settings, backup.log, len(ends), factor, goes_on=goes_on)
            # Then all was put; or they are another log's, which the comparison finds.
            is_filled = goes_on and topics.is_finished()
            for saved in backup.partitions:
                number = saved.partition
                to = None if is_filled else topics
                archive = archives.get(number)
                _put(to, log, source, saved, ends[number], archive, done, tally)
            if config.bootstrap_servers:
                _arrive(settings, log, backup, ends.values())
            topics.finish()
            log.check_settings()
            log.genesis()
            take_over(archives, log, ends)
            done.checkpoints = put_back(place, root, log, ends, done.damage)
            unnamed = backup.roots.keys() - roots_of(log).keys()
            done.places = {place: bound(place) for place in sorted(unnamed)}
            if backup.tables_root:
                own = backup.tables_root
                _files(files, TABLES, own, place, heads, done, on_progress, goes_on=goes_on)
                done.lacking = tuple(lacking_in(log, root, own, ends))


def _beyond(place: str, source: Store, backup: Backup, heads: Heads | None) -> Remains:
    """Name what is left of a log that its whole backup hasn't."""
    if heads is None:  # it is restored to an earlier position
        heads = Heads()
        for one in backup.partitions:
            cut(source, one, heads, None, None)
    ends = {one.partition: one.sequence for one in backup.partitions}
    return look_at(place, heads, ends, backup.tables_root)


@contextlib.contextmanager
def _taken(root: Path, backup: Backup, place: str) -> Iterator[bool]:
    """Make sure that nothing is overwritten, and note that a restore is under way until it is done.

    The value is True if it had begun before, so that a cluster may have a part of the topics. The
    lock on the note keeps a second process off, which would remove what this one has put there.
    """
    note = root / RESTORING
    goes_on = note.is_file()
    tables = bound(backup.tables_root) if backup.tables_root else ""
    mark = {"log_id": backup.log_id, "from": place, "tables": tables}
    if not goes_on and root.exists() and any(root.iterdir()):
        raise RootUnusable(f"{root} isn't empty: name an empty root, or one that isn't there yet")
    if not goes_on and backup.tables_root and _is_used(backup):
        raise RootUnusable(
            f"the log's tables belong in {tables}, and something is there: give them another place"
            f" (--places {tables}=NEW), or move away what is there"
        )
    with open(made(root) / RESTORING, "a+", encoding="utf-8") as held:
        _lock(held, note)
        if goes_on:
            held.seek(0)
            left = [one for one in root.iterdir() if one != note]
            _check_begun(held.read(), mark, root, is_empty=not left)
            _await_broker(root)
            for one in left:
                shutil.rmtree(one) if one.is_dir() else one.unlink()
        held.truncate(0)
        held.write(json.dumps(mark))
        held.flush()
        yield goes_on
        note.unlink()


def _await_broker(root: Path) -> None:
    """Wait until the broker of a restore that was killed has ended; BrokerRunning if it doesn't."""
    home = Home(root)
    if home.folder.is_dir():
        os.close(home.lock())


def _lock(held: IO[str], note: Path) -> None:
    """Lock a root's note; RootInUse if another process has it, or has just come to its end."""
    with contextlib.suppress(FileNotFoundError):
        if taken(held) and os.path.samestat(note.stat(), os.fstat(held.fileno())):
            return
    root = note.parent
    raise RootInUse(
        f"another `commitlog restore` to {root} runs: wait for its end, or choose another root"
    )


def _check_begun(text: str, mark: Mapping[str, str], root: Path, *, is_empty: bool) -> None:
    """Raise RootUnusable if the restore that a root's note tells of isn't this one."""
    if not text and not is_empty:
        raise RootUnusable(f"{root} isn't empty: a backup is restored to an empty root")
    if not text:  # it was killed as it began
        return
    begun = json.loads(text)
    begun = {"tables": mark["tables"], **begun}
    if {**begun, "tables": mark["tables"]} != mark:
        raise RootUnusable(f"{root} has an unfinished restore of another backup: empty it")
    if begun != mark:
        raise RootUnusable(
            f"{root} has an unfinished restore, which was to put its tables in"
            f" {begun['tables']}, not in {mark['tables']}: run it with the same --places, or empty"
            " both"
        )


def _is_used(backup: Backup) -> bool:
    """Return True if there is anything where the log's tables belong."""
    folder = local_path(backup.tables_root)
    if folder is not None:
        return folder.is_dir() and any(folder.iterdir())
    return store_for(backup.tables_root).size(f"{MARKS}/{backup.log_id}.json") >= 0


@contextlib.contextmanager
def _cluster(config: Config, root: Path, backup: Backup) -> Iterator[str]:
    """Yield the servers of the cluster that the log is put on."""
    if config.bootstrap_servers:
        yield config.bootstrap_servers
        return
    with EmbeddedBroker.start(
        root, port=config.kafka_port, fsync=config.fsync, cluster_id=backup.cluster_id
    ) as broker:
        try:
            yield broker.bootstrap_servers
        except Unavailable as error:
            if (failure := broker.failure()) is not None:  # a full disk, say
                raise failure from error
            raise


def _arrive(
    settings: ClientSettings, log: KafkaLog, backup: Backup, cuts: Iterable[RestorePoint]
) -> None:
    """Record on a cluster that the log, which names the one that it was made on, continues here."""
    here, ends = log.identity_here(), (MovedPartition(c.sequence, c.hash, c.offset) for c in cuts)
    now = time.time_ns() // 1_000_000
    act = Move(backup.cluster_id, here.cluster_id, now, tuple(ends))
    # New topics: what else remembers the old ones may know more than was restored.
    made = replace(here, cluster_id=backup.cluster_id)
    Moves(settings, backup.log).arrive(here, made, (act,), log.replication_factor())


def _put(
    topics: RestoredTopics | None,
    log: KafkaLog,
    source: Store,
    saved: SavedPartition,
    end: RestorePoint,
    archive: Archive | None,
    done: Restored,
    tally: Tally,
) -> None:
    """Put one partition's records back, and read them again."""
    for is_transactions, found in (
        (True, with_archived(kept(source, saved, end), archive, end)),
        (False, answers(source, saved, end)),
    ):
        sent, start = _Digest(found), 0
        if topics is None or not topics.is_new(is_transactions=is_transactions):
            start = end_of_topic(log, saved.partition, is_transactions)
        # A restore that was killed left the first ones; what they are is compared below.
        left = tally.of("records put back", (one for one in sent if one.offset >= start))
        if topics is not None:
            topics.put(saved.partition, left, is_transactions=is_transactions, start=start)
        for _ in left:
            pass
        again = _Digest(
            one
            for one in records_of(log, saved.partition, is_transactions=is_transactions)
            if not (is_transactions and one.value is None and one.offset not in sent.empty)
        )
        for _ in tally.of("records compared", again):
            pass
        if (again.count, again.hexdigest) != (sent.count, sent.hexdigest):
            kind = "transactions" if is_transactions else "outcomes"
            raise CorruptLog(
                f"partition {saved.partition} has {again.count} {kind} that differ from the"
                f" backup's {sent.count}. If they are another log's, name another cluster; else"
                f" remove the topics of log {log.name!r} there, and run the restore again"
            )
        if is_transactions:
            done.transactions += sent.count
            done.undecided += len(sent.offsets - sent.empty - end.decided)
            done.missing += len(missing_of(sent.offsets, archive, end))
    done.positions[saved.partition] = end.sequence
    done.backed_up[saved.partition] = saved.sequence


class _Digest:
    """Passes records on, and remembers what they were."""

    def __init__(self, records: Iterable[RawRecord]) -> None:
        self._records = records
        self._made = hashlib.sha256()
        self.count = 0
        self.offsets: set[int] = set()
        self.empty: set[int] = set()
        """Offsets of tombstones that were copied."""

    @property
    def hexdigest(self) -> str:
        return self._made.hexdigest()

    def __iter__(self) -> Iterator[RawRecord]:
        for one in self._records:
            self.count += 1
            self.offsets.add(one.offset)
            if one.value is None:
                self.empty.add(one.offset)
            self._made.update(repr(tuple(one)).encode())
            yield one


def _files(
    files: Iterable[SavedFile],
    kind: str,
    to: str,
    place: str,
    heads: Heads,
    done: Restored,
    on_progress: OnCount,
    *,
    goes_on: bool = False,
) -> None:
    """Copy the tables' or the archive's files that belong to what is restored, and read each.

    A damaged file of a table is left out, and noted: all others are worth having.
    """
    copies, target = part(place, kind), store_for(to)
    for one in files:
        name, _, path = one.path.partition("/")
        if name == kind == TABLES and not heads.have(to, path):
            if goes_on:  # the restore that was killed may have been one as of a later position
                target.delete(path)
        elif name == kind:
            try:
                take_checked(target, path, copies, one)
            except BadBackup as error:
                if kind != TABLES:  # without an archive, the log lacks transactions
                    raise
                done.damage.append(str(error))
                continue
            done.files += 1
            done.bytes += one.size
            on_progress("files", done.files)
