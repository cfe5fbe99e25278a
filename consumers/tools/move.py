"""`commitlog move`: moves a log to another Kafka cluster, at the same positions.

The topics are copied while writers write. Then the old cluster is closed: it takes no record any
more, and says where the log goes. What came meanwhile is copied, and both sides are read and
compared. The new cluster records where the log came from, so it keeps its identity there:
checkpoints, indices and archives fit. Killed anywhere, it continues when it is run again. The
tables stay where they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.kafka_moved import Event, Moves
from commitlog.adapters.kafka_restore import RestoredTopics
from commitlog.adapters.kafka_settings import ClientSettings
from commitlog.adapters.reading import record_at
from commitlog.errors import CommitLogError, CorruptLog, InvalidSettings, Unavailable, WrongLog
from commitlog.ports import ArchivableLog, Move
from consumers.runtime.patience import told_if_slow
from consumers.runtime.progress import OnCount, Tally, untold
from consumers.tools.backup.writer import records_of
from consumers.tools.moved_proof import ADVICE, Side, end_of_topic, expect_followed, prove

ROUNDS_MAX = 20
SMALL = 1_000
"""Records that are left when the old cluster is closed: few, so that writers wait shortly."""
CLOSED_SECONDS = 3.0
"""How long nothing more may come until the old cluster's topics count as closed."""
CLOSING_SECONDS = 60.0
ANSWER_SECONDS = 60.0
"""How long a cluster may take for an answer."""


@dataclass(slots=True)
class Moved:
    """What was moved, and that both sides are the same."""

    log: str
    bootstrap_servers: str
    partitions: list[Side] = field(default_factory=list)


def move(
    old: ClientSettings,
    new: ClientSettings,
    log: str,
    servers: str,
    root: Path | None = None,
    on_progress: OnCount = untold,
    *,
    answer_seconds: float = ANSWER_SECONDS,
    say: Callable[[str], None] = lambda text: None,
) -> Moved:
    """Move a log; `servers` is what its old cluster tells those who look for it there.

    A cluster may take `answer_seconds` for an answer; `say` hears what is waited for.
    The proof starts from the checkpoint in `root`, if there is one. Done again after its end, it
    compares both sides once more.

    Raises:
        InvalidSettings: the new cluster is the one that has the log.
        WrongLog: the new cluster has a log of this name that isn't a copy.
        CorruptLog: the old log can't be followed, and stays open; or both sides differ: then the
            old one stays closed, and the new one unfinished.
        Unavailable: a cluster doesn't answer, or the old one isn't closed in time.
    """
    source, target = (KafkaLog(side, log, answer_seconds) for side in (old, new))
    left, arrived, tally = Moves(old, log), Moves(new, log), Tally(on_progress)
    try:
        for side, which, settings in ((source, "old", old), (target, "new", new)):
            _await_answer(side, f"the {which} cluster at {settings.address}", answer_seconds, say)
        partitions = source.partitions()
        _check_clusters(source, target, left.departure(), servers)
        factor = target.replication_factor()
        topics = RestoredTopics(new, log, partitions, factor, goes_on=True)
        if (is_back := arrived.departure() is not None) or topics.is_finished():
            if target.identity() != source.identity():
                raise WrongLog(f"{servers} has a log {log!r} of its own: name another cluster")
            if not is_back:
                return Moved(log, servers, prove(source, target, partitions, root, tally))
            topics.reopen()
        _check_copied(source, target, partitions)
        for number in range(ROUNDS_MAX):
            count = _copy(source, target, topics, partitions, tally)
            if number == 0 and left.departure() is None:
                expect_followed(source, partitions, root, tally)  # before anything is closed
            elif count < SMALL:
                break
        left.close_here(servers, source.replication_factor())
        _await_closed(source, partitions)
        _copy(source, target, topics, partitions, tally)
        moved = Moved(log, servers, prove(source, target, partitions, root, tally))
        arrived.arrive(
            target.identity_here(),
            source.identity(),
            (*source.moves(), _act(source, target, moved)),
            factor,
        )
        topics.finish()
        target.check_settings()
        target.genesis()
        return moved
    finally:
        source.close()
        target.close()


def _await_answer(
    side: KafkaLog, name: str, answer_seconds: float, say: Callable[[str], None]
) -> None:
    """Wait until a cluster answers; Unavailable if it doesn't."""

    def text() -> str:
        waits = f"waiting for {name}, which hasn't answered about log {side.name!r} yet"
        trouble = f": {side.trouble()}" if side.trouble() else ""
        return f"{waits}, for up to {answer_seconds:g} s{trouble}"

    with told_if_slow(say, text):
        side.cluster_id()


def _check_clusters(source: KafkaLog, target: KafkaLog, note: Event | None, servers: str) -> None:
    if note is not None and note["bootstrap_servers"] != servers:
        raise WrongLog(
            f"the log was closed to be moved to {note['bootstrap_servers']}, not to {servers}: name"
            " the former"
        )
    try:
        if target.identity_here() != source.identity_here():
            return
    except CommitLogError:
        return  # it has no such topics yet
    raise InvalidSettings(f"the log is on {servers} already: name another cluster to move it to")


def _act(source: KafkaLog, target: KafkaLog, moved: Moved) -> Move:
    """Return what is recorded of a move."""
    return Move(
        source.cluster_id(),
        target.cluster_id(),
        time.time_ns() // 1_000_000,
        tuple(side.moved() for side in moved.partitions),
    )


def _check_copied(source: ArchivableLog, target: ArchivableLog, partitions: int) -> None:
    """Raise CorruptLog if the newest record of a topic on the new cluster is another on the old.

    So it is if two runs copied at the same time. Otherwise that would show only at the proof, when
    the old cluster is closed already.
    """
    for partition in range(partitions):
        for is_transactions in (True, False):
            end = end_of_topic(target, partition, is_transactions)
            if not 0 < end <= end_of_topic(source, partition, is_transactions):
                continue
            here, there = (
                record_at(
                    side.read_raw(partition, end - 1, is_transactions=is_transactions), end - 1
                )
                for side in (source, target)
            )
            # A tombstone fills the place of what compaction had removed.
            if here and there and here != there and None not in {here.value, there.value}:
                raise CorruptLog(
                    f"the new cluster's copy of partition {partition} has another record at offset"
                    f" {end - 1}: two runs copied at the same time. {ADVICE}, once no other"
                    " runs"
                )


def _copy(
    source: KafkaLog, target: KafkaLog, topics: RestoredTopics, partitions: int, tally: Tally
) -> int:
    """Copy what the new cluster lacks now; return how many records that were."""
    count = 0
    for partition in range(partitions):
        for is_transactions in (True, False):
            start = end_of_topic(target, partition, is_transactions)
            if start > end_of_topic(source, partition, is_transactions):
                topics.expect_unfinished()
                raise CorruptLog(
                    f"the new cluster has more of partition {partition} than the old one: it isn't"
                    f" a copy. {ADVICE}"
                )
            records = records_of(source, partition, start, is_transactions=is_transactions)
            found = tally.of("records copied", records)
            end = topics.put(partition, found, is_transactions=is_transactions, start=start)
            count += end - start
    return count


def _await_closed(source: KafkaLog, partitions: int) -> None:
    """Wait until nothing comes any more: brokers hear of settings one after the other."""

    def ends() -> list[int]:
        return [
            end_of_topic(source, one, which) for one in range(partitions) for which in (True, False)
        ]

    deadline = time.monotonic() + CLOSING_SECONDS
    known, since = ends(), time.monotonic()
    while time.monotonic() < since + CLOSED_SECONDS:
        time.sleep(0.2)
        if (found := ends()) != known:
            known, since = found, time.monotonic()
        if time.monotonic() > deadline:
            raise Unavailable(
                "the old cluster still takes records, although its topics were closed: see that all"
                " of its brokers run, then run this again"
            )
