"""`commitlog move`: has a log go on on another Kafka cluster, at the same positions.

The topics are copied while writers write. Then the old cluster is closed: it takes no record any
more, and says where the log goes. What came meanwhile is copied, and both sides are read and
compared. Killed anywhere, it goes on when it is run again. The tables stay where they are.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.kafka_moved import Moves
from commitlog.adapters.kafka_restore import RestoredTopics
from commitlog.adapters.kafka_settings import ClientSettings
from commitlog.adapters.log_records import to_answered
from commitlog.core.log.chain import Chain
from commitlog.errors import CommitLogError, CorruptLog, Unavailable, WrongLog
from commitlog.model.records import Outcome, Status
from commitlog.ports import RawRecord
from consumers.tools.backup.writer import batches

ROUNDS_MAX = 20
SMALL = 1_000
"""Records that are left when the old cluster is closed: few, so that writers wait shortly."""
CLOSED_SECONDS = 3.0
"""How long nothing more may come until the old cluster's topics count as closed."""
CLOSING_SECONDS = 60.0

OnProgress = Callable[[str, int], None]


@dataclass(slots=True)
class Side:
    """What one cluster has of one partition."""

    transactions: int = 0
    outcomes: int = 0
    sha256: str = ""
    """Of each record's offset, time, key and value, of both topics."""
    sequence: int = 0
    hash: str = ""
    """The chain's last hash."""
    committed: int = 0


@dataclass(slots=True)
class Moved:
    """What was moved, and that both sides are the same."""

    log: str
    bootstrap_servers: str
    partitions: list[Side] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return asdict(self)


def move(
    old: ClientSettings,
    new: ClientSettings,
    log: str,
    servers: str,
    on_progress: OnProgress = lambda *_: None,
) -> Moved:
    """Move a log; `servers` is what its old cluster tells those who look for it there.

    Done again after its end, it compares both sides once more.

    Raises:
        WrongLog: the new cluster has another id, or a log of this name that isn't a copy.
        CorruptLog: both sides differ; the old one stays closed, and the new one unfinished.
        Unavailable: a cluster doesn't answer, or the old one isn't closed in time.
    """
    source, target = KafkaLog(old, log, 60.0), KafkaLog(new, log, 60.0)
    moves = Moves(old, log)
    try:
        partitions = source.partitions()
        _check_clusters(source, target, moves.note(), servers)
        topics = RestoredTopics(new, log, partitions, target.replication_factor(), goes_on=True)
        if topics.is_finished():
            if moves.note() is None:
                raise WrongLog(f"{servers} has a log {log!r} of its own: name another cluster")
            return _proven(source, target, partitions, Moved(log, servers))
        for _ in range(ROUNDS_MAX):
            if _copy(source, target, topics, partitions, on_progress) < SMALL:
                break
        note = {"bootstrap_servers": servers, "closed_at_ms": time.time_ns() // 1_000_000}
        moves.close_here(note, source.replication_factor())
        _await_closed(source, partitions)
        _copy(source, target, topics, partitions, on_progress)
        moved = _proven(source, target, partitions, Moved(log, servers))
        topics.finish()
        target.check_settings()
        target.genesis()
        return moved
    finally:
        source.close()
        target.close()


def _check_clusters(
    source: KafkaLog, target: KafkaLog, note: dict[str, object] | None, servers: str
) -> None:
    if note is not None and note["bootstrap_servers"] != servers:
        raise WrongLog(
            f"the log was closed to be moved to {note['bootstrap_servers']}, not to {servers}: name"
            " the former"
        )
    if (found := target.cluster_id()) != (wanted := source.cluster_id()):
        raise WrongLog(
            f"the log belongs to a cluster with the id {wanted}, which its first record names, and"
            f" the one at {servers} has {found}: format that with kafka-storage format --cluster-id"
            f" {wanted}"
        )
    try:
        if target.identity() != source.identity():
            return
    except CommitLogError:
        return  # it has no such topics yet
    raise WrongLog(f"the log is on {servers} already: name another cluster")


def _ends(log: KafkaLog, partition: int, is_transactions: bool) -> int:
    reader = log.read_raw(partition, 0, is_transactions=is_transactions)
    try:
        return reader.end_offset()
    finally:
        reader.close()


def _copy(
    source: KafkaLog,
    target: KafkaLog,
    topics: RestoredTopics,
    partitions: int,
    on_progress: OnProgress,
) -> int:
    """Copy what the new cluster lacks now; return how many records that were."""
    count = 0
    for partition in range(partitions):
        for is_transactions in (True, False):
            start = _ends(target, partition, is_transactions)
            found = batches(source, partition, start, is_transactions=is_transactions)
            end = topics.put(
                partition,
                (one for batch in found for one in batch),
                is_transactions=is_transactions,
                start=start,
            )
            count += end - start
            on_progress("records", end)
    return count


def _await_closed(source: KafkaLog, partitions: int) -> None:
    """Wait until nothing comes any more: brokers hear of settings one after the other."""

    def ends() -> list[int]:
        return [_ends(source, one, which) for one in range(partitions) for which in (True, False)]

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


def _proven(source: KafkaLog, target: KafkaLog, partitions: int, moved: Moved) -> Moved:
    """Read both sides and compare them; on the new one, what its leader added is left out."""
    for partition in range(partitions):
        ends = {which: _ends(source, partition, which) for which in (True, False)}
        there, here = _side(source, partition, ends), _side(target, partition, ends)
        if there != here:
            raise CorruptLog(
                f"partition {partition} differs: the old cluster has {asdict(there)}, and the new"
                f" one {asdict(here)}. Delete the new cluster's topics, and run this again"
            )
        moved.partitions.append(here)
    return moved


def _side(log: KafkaLog, partition: int, ends: dict[bool, int]) -> Side:
    """Read one side up to the old one's ends: its bytes, and the chain that they make."""
    side, made, chain = Side(), hashlib.sha256(), Chain()
    for raw in _records(log, partition, ends[True], is_transactions=True):
        if raw.value is not None:  # tombstones fill gaps on the new side
            made.update(repr(tuple(raw)).encode())
            side.transactions += 1
    for raw in _records(log, partition, ends[False], is_transactions=False):
        made.update(repr(tuple(raw)).encode())
        side.outcomes += 1
        record = to_answered(partition, *raw).record
        if chain.admit(record) or not isinstance(record, Outcome):
            continue
        side.sequence, side.hash = record.sequence, record.hash.hex()
        if record.status is Status.COMMITTED:
            side.committed += 1
    side.sha256 = made.hexdigest()
    return side


def _records(
    log: KafkaLog, partition: int, end: int, *, is_transactions: bool
) -> Iterator[RawRecord]:
    for batch in batches(log, partition, 0, is_transactions=is_transactions):
        yield from (one for one in batch if one.offset < end)
