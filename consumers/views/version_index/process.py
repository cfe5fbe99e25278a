"""Follows the log into the version index: gather, commit rows with position, publish.

Outcomes are read first, then transactions up to the last one that an outcome answers, so that a
position is always the end of what is in the index, never in the middle of a pair. Rows are
gathered between publications and committed once per publication: a reader sees nothing of the
others in between, and a busy log costs few DuckDB transactions instead of many.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict

from commitlog.adapters.recordings import Recordings
from commitlog.core.log.chain import Chain
from commitlog.core.log.replica import Decided, Replica
from commitlog.errors import CommitLogError, CorruptLog, Unavailable
from commitlog.model.records import LeaderStarted, Outcome
from commitlog.ports import PATIENT_SECONDS, Log
from consumers.runtime.progress import OnProgress, untold
from consumers.views.version_index.lateness import Lateness
from consumers.views.version_index.layout import forget_failure, note_failure
from consumers.views.version_index.store import IndexPosition, Term, VersionIndex

BATCH_RECORDS_MAX = 5_000
"""Rows are committed at least this often while catching up."""

POLL_RECORDS_MAX = 1_000
"""Records asked for at once; a record may have 16 MiB, so not too many."""

POLL_TIMEOUT_SECONDS = 0.5
"""How long an idle loop waits at once, and how late it may notice `stop`."""

CATCH_UP_PUBLISH_SECONDS = 2.0
END_OFFSET_SECONDS = 2.0
CHECK_TIMEOUT_SECONDS = 30.0
MISSING_SECONDS = 30.0
"""How long an outcome's transaction may take to come before it is asked whether it can."""

GATHER_SECONDS = 0.1
"""Between two publications records are read so often: hundreds at once cost a third of as many
one by one."""

PUBLISH_SECONDS = 0.65
"""From the beginning of one publication to that of the next while there is something new, so that
readers stay fresh within a second; what comes after a silence is published at once."""

PUBLISH_SHARE = 4.0
"""After a publication, wait at least so many times what it took: it shares its machine."""

PUBLISH_SECONDS_MAX = 0.65
"""But no longer than this."""

logger = logging.getLogger("commitlog.version_index")


class IndexedPartition:
    """One partition on its way into the index."""

    def __init__(
        self, log: Log, partition: int, position: IndexPosition, leader: LeaderStarted | None
    ):
        """Start reading where the index ends.

        Raises CorruptLog if the log has lost what the index holds.
        """
        self.partition = partition
        self._log = log
        self._outside: Recordings | None = None
        self.pending: list[Decided] = []
        self.terms: list[Term] = []
        self._start = position
        self._last_outcome_offset = position.last_outcome_offset
        self._changed_at_ms = position.changed_at_ms
        _check_tail(log, position)
        chain = Chain()
        if position.outcomes_offset:
            chain.genesis = log.genesis(partition)
            chain.leader = leader
            chain.epoch = position.epoch
            chain.sequence = position.sequence
            chain.hash = position.hash
        self._replica = Replica(
            chain,
            transactions_position=position.transactions_offset,
            outcomes_position=position.outcomes_offset,
            decided_beyond=position.decided_beyond,
        )
        self._outcomes = log.read_outcomes(
            partition, position.outcomes_offset, patient=PATIENT_SECONDS
        )
        self._transactions = log.read_transactions(
            partition, position.transactions_offset, patient=PATIENT_SECONDS
        )
        self.end_offset = self._outcomes.end_offset()
        self._end_asked = time.monotonic()
        self.whole_at = 0.0
        """When the log was seen last to have nothing that wasn't read and flushed."""
        self.total = max(self.end_offset - position.outcomes_offset, 0)
        """Records of the outcomes topic that were ahead at the start."""

    @property
    def done(self) -> int:
        """How many of `total` were read."""
        read = self._outcomes.position() - self._start.outcomes_offset
        return max(min(read, self.total), 0)

    def gather(self, timeout_seconds: float, stop: threading.Event) -> bool:
        """Read what is there into `pending` and `terms`; return True if there may be more."""
        replica = self._replica
        answers = self._outcomes.poll(records_max=POLL_RECORDS_MAX, timeout_seconds=timeout_seconds)
        for answered in answers:
            void = replica.receive_answered(answered)
            if void:
                logger.warning(
                    "partition %d, outcomes offset %d is void: %s",
                    self.partition,
                    answered.offset,
                    void,
                )
            elif isinstance(answered.record, LeaderStarted):
                self.terms.append(Term(answered.record, answered.offset))
        self.pending.extend(replica.drain())
        # A transaction is in the log before its outcome, so this ends as soon as Kafka answers.
        heard = time.monotonic()
        while replica.waiting_for is not None and not stop.is_set():
            submitted = self._transactions.poll(
                records_max=POLL_RECORDS_MAX, timeout_seconds=POLL_TIMEOUT_SECONDS
            )
            for one in submitted:
                replica.receive_submitted(one)
            self.pending.extend(replica.drain())
            if submitted:
                heard = time.monotonic()
            elif time.monotonic() >= heard + MISSING_SECONDS:
                self._check_missing()
                heard = time.monotonic()
        return len(answers) == POLL_RECORDS_MAX

    def _check_missing(self) -> None:
        """Raise CorruptLog if the transaction that is waited for can never come."""
        wanted = self._replica.waiting_for
        assert wanted is not None
        where = f"partition {self.partition}: an outcome answers the transaction at offset {wanted}"
        try:
            end = self._transactions.end_offset()
        except Unavailable as error:
            logger.warning("%s, which did not come yet: %s", where, error)
            return
        if self._transactions.position() <= wanted < end:
            logger.warning("%s, which the log has and does not send", where)
            return
        raise CorruptLog(
            f"{where}, which the log has no more: its transactions end at {end}. Restore the topic,"
            " or replay an archive of it; `commitlog verify` says what else is missing"
        )

    def flush(self, index: VersionIndex) -> list[Decided]:
        """Commit what was gathered, with the position after it; return it."""
        replica = self._replica
        if not (self.pending or self.terms) or replica.waiting_for is not None:
            return []
        if self.pending:
            last = self.pending[-1]
            self._last_outcome_offset = last.answered_offset
            self._changed_at_ms = last.outcome.time_ms
        first, beyond = replica.resume_point()
        self._look_at_end()
        position = IndexPosition(
            partition=self.partition,
            sequence=replica.chain.sequence,
            outcomes_offset=replica.outcomes_position,
            transactions_offset=first,
            decided_beyond=tuple(beyond),
            last_outcome_offset=self._last_outcome_offset,
            hash=replica.chain.hash,
            epoch=replica.chain.epoch,
            end_offset=max(self.end_offset, replica.outcomes_position),
            changed_at_ms=self._changed_at_ms,
        )
        index.apply(self.pending, position, terms=self.terms, recordings=self._recordings)
        committed, self.pending, self.terms = self.pending, [], []
        return committed

    def _recordings(self, outcome: Outcome) -> Mapping[bytes, bytes]:
        if self._outside is None:
            self._outside = Recordings(self._log.genesis(self.partition).tables_root)
        return self._outside.of(outcome)

    def close(self) -> None:
        """Let go of the readers."""
        self._outcomes.close()
        self._transactions.close()

    def look_at_rest(self) -> None:
        """See now and then whether the log has more, while nothing of it comes."""
        if not (self.pending or self.terms):
            self._look_at_end()

    def _look_at_end(self) -> None:
        now = time.monotonic()
        if now < self._end_asked + END_OFFSET_SECONDS:
            return
        self._end_asked = now
        try:
            self.end_offset = self._outcomes.end_offset(timeout_seconds=1.0)
        except Unavailable:
            return  # only for showing the lag; reading goes on by itself
        if not (self.pending or self.terms) and self._outcomes.position() >= self.end_offset:
            self.whole_at = time.time()


def _check_tail(log: Log, position: IndexPosition) -> None:
    # A topic that lost its tail, or was made again, may have grown past our position again.
    if position.last_outcome_offset < 0:
        return
    where = f"partition {position.partition}, offset {position.last_outcome_offset}"
    advice = (
        "The log has lost records that were committed. Restore the topics, or, to accept the loss,"
        " delete index.duckdb and the folder index in the root to build the index anew"
    )
    with closing(log.read_outcomes(position.partition, position.last_outcome_offset)) as reader:
        if reader.end_offset() < position.outcomes_offset:
            raise CorruptLog(f"the outcomes topic ends before what the index holds ({where}). "
                             f"{advice}")  # fmt: skip
        deadline = time.monotonic() + CHECK_TIMEOUT_SECONDS
        found = reader.poll(records_max=1)
        while not found and time.monotonic() < deadline:
            found = reader.poll(records_max=1)
    if not found:
        raise Unavailable(f"no answer from the log within {CHECK_TIMEOUT_SECONDS} s ({where})")
    record = found[0].record
    if not isinstance(record, Outcome) or record.hash != position.hash:
        raise CorruptLog(f"the log has another outcome where the index ends ({where}). {advice}")


def run_index(
    log: Log,
    root: str | os.PathLike[str],
    *,
    stop: threading.Event,
    on_progress: OnProgress = untold,
    publish_interval_seconds: float = PUBLISH_SECONDS,
) -> None:
    """Keep the index under `root` up with the log until `stop` is set.

    `on_progress(done, total)` counts the outcome records that were ahead at the start; its last
    call has done = total.

    Raises:
        WrongLog: the index follows another log.
        CorruptLog: the log contradicts itself or the index.
        RootInUse: another process keeps the index.
        Unavailable: its files can't be written, or another program damaged them.
    """

    def told(done: int, total: int) -> None:
        if done == total:
            forget_failure(root)
        on_progress(done, total)

    with VersionIndex(root) as index:
        try:
            follow(
                log,
                index,
                stop=stop,
                on_progress=told,
                publish_interval_seconds=publish_interval_seconds,
            )
        except CommitLogError as error:
            note_failure(root, str(error))
            raise


def follow(
    log: Log,
    index: VersionIndex,
    *,
    stop: threading.Event,
    on_progress: OnProgress = untold,
    publish_interval_seconds: float = PUBLISH_SECONDS,
) -> None:
    """Do the work of `run_index` on an index that is open."""
    index.bind(asdict(log.identity()) | {"log_id": log.genesis().log_id})
    followers: list[IndexedPartition] = []
    try:
        for partition in range(log.partitions()):
            term = index.last_term(partition)
            followers.append(IndexedPartition(log, partition, index.position(partition), term))
        _Loop(index, followers, on_progress, publish_interval_seconds).run(stop)
    finally:
        for follower in followers:
            follower.close()


class _Loop:
    def __init__(
        self,
        index: VersionIndex,
        followers: list[IndexedPartition],
        on_progress: OnProgress,
        publish_interval_seconds: float,
    ):
        self._index = index
        self._lateness = Lateness(index.layout)
        self._followers = followers
        self._on_progress = on_progress
        self._interval = publish_interval_seconds
        self._total = sum(follower.total for follower in followers)
        self._catching_up = True
        self._due = 0.0
        self._is_behind = True
        self._whole_at = 0.0

    def run(self, stop: threading.Event) -> None:
        self._show()
        while not stop.is_set():
            self._gather(stop)
            if self._catching_up:
                self._report()
            else:
                self._rest(stop)
            if time.monotonic() >= self._due:
                self._show()
            elif sum(len(one.pending) for one in self._followers) >= BATCH_RECORDS_MAX:
                self._flush()
        self._show()

    def _gather(self, stop: threading.Event) -> None:
        timeout = POLL_TIMEOUT_SECONDS
        if any(one.pending or one.terms for one in self._followers):
            timeout = min(max(self._due - time.monotonic(), 0), timeout)
            if not (self._is_behind or self._catching_up):
                stop.wait(min(timeout, GATHER_SECONDS))
                timeout = 0.0
        share = timeout / len(self._followers)
        more = [follower.gather(share, stop) for follower in self._followers]
        self._is_behind = any(more)

    def _rest(self, stop: threading.Event) -> None:
        """Note that the index has all there is, which at rest no publication tells."""
        for follower in self._followers:
            if not stop.is_set():  # each may wait for Kafka
                follower.look_at_rest()
        at = min(follower.whole_at for follower in self._followers)
        if at > self._whole_at:
            self._whole_at = at
            self._index.note_whole(at)

    def _flush(self) -> None:
        for follower in self._followers:
            committed = follower.flush(self._index)
            if not self._catching_up:
                self._lateness.took(committed)

    def _show(self) -> None:
        """Commit what was gathered, and publish it."""
        started = time.monotonic()
        self._flush()
        shown = self._index.publish()
        if shown:
            self._lateness.shown()
        now = time.monotonic()
        if self._catching_up:
            self._due = now + CATCH_UP_PUBLISH_SECONDS
        elif shown:
            took = now - started
            pause = min(took * PUBLISH_SHARE, PUBLISH_SECONDS_MAX)
            self._due = now + max(self._interval - took, pause)

    def _report(self) -> None:
        done = sum(follower.done for follower in self._followers)
        if done >= self._total:
            self._flush()  # what was there already isn't late
            self._catching_up = False
            self._due = 0.0
        self._on_progress(done, self._total)
