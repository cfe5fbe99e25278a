"""Does a log hold what a checkpoint was made from? Refuses, by name, where it doesn't."""

from __future__ import annotations

from commitlog.adapters.reading import end_of, read_to, record_at
from commitlog.core.log.replica import has_content
from commitlog.errors import CorruptLog
from commitlog.model.records import Outcome, Retained, Submitted
from commitlog.ports import Log
from consumers.partition.checkpoints.checkpoint import Checkpoint


def check_log_holds(
    log: Log,
    partition: int,
    checkpoint: Checkpoint,
) -> None:
    """Raise CorruptLog unless the checkpoint's last outcome and its transaction are in the log.

    A topic that lost its tail may be as long again by now, with other records.
    """
    _check_ends(log, partition, checkpoint)
    offset = checkpoint.outcome_offset
    if offset < 0:
        _check_epoch(log, partition, checkpoint, 0)
        return
    chain = checkpoint.chain
    answered = record_at(log.read_outcomes(partition, offset), offset)
    outcome = answered.record if answered is not None else None
    is_it = isinstance(outcome, Outcome) and outcome.sequence == chain.sequence
    if not isinstance(outcome, Outcome) or not is_it or outcome.hash != chain.hash:
        raise CorruptLog(
            f"outcome {chain.sequence} of the checkpoint is not at offset {offset} of the outcomes "
            "topic: the topic lost its tail, or the checkpoint is from another history. Run "
            "`commitlog verify`"
        )
    _check_epoch(log, partition, checkpoint, outcome.epoch)
    offset = outcome.transaction_offset
    submitted = record_at(log.read_transactions(partition, offset), offset)
    if submitted is None and _is_given_up(log, partition, checkpoint):
        return
    if submitted is None or not _is_answered_by(submitted, outcome):
        raise CorruptLog(
            f"transaction {outcome.transaction_id} of the checkpoint's last outcome is not at "
            f"offset {offset} of the transactions topic: the topic lost records. Run "
            "`commitlog verify`"
        )


def _is_answered_by(submitted: Submitted, outcome: Outcome) -> bool:
    record = submitted.record
    is_its = record.transaction_id == outcome.transaction_id
    return is_its and has_content(record, outcome.payload_hash)


def _is_given_up(log: Log, partition: int, checkpoint: Checkpoint) -> bool:
    """Return True if a later record says that the checkpoint's transactions are archived.

    They are missing from the topic then, wherever their archive is.
    """
    chain = checkpoint.chain
    reader = log.read_outcomes(partition, checkpoint.outcome_offset)
    for answered in read_to(reader):
        retained = answered.record
        if not isinstance(retained, Retained) or retained.sequence < chain.sequence:
            continue
        if retained.sequence > chain.sequence or retained.hash == chain.hash:
            return True
    return False


def _check_ends(log: Log, partition: int, checkpoint: Checkpoint) -> None:
    """Compare both positions with where the topics end."""
    answered, submitted = checkpoint.outcomes_position, checkpoint.transactions_position
    for name, position, end in (
        ("outcomes", answered, end_of(log.read_outcomes(partition, answered))),
        ("transactions", submitted, end_of(log.read_transactions(partition, submitted))),
    ):
        if end < position:
            raise CorruptLog(
                f"when the checkpoint was made, the {name} topic had been read to offset "
                f"{position}, but now it ends at {end}: it lost its tail. Run `commitlog "
                "verify`"
            )


def _check_epoch(log: Log, partition: int, checkpoint: Checkpoint, epoch: int) -> None:
    """Find the start of the checkpoint's term, if it comes after the last outcome's `epoch`."""
    leader = checkpoint.chain.leader
    if epoch == checkpoint.chain.epoch or leader is None:
        return
    reader = log.read_outcomes(partition, max(checkpoint.outcome_offset, 0))
    for answered in read_to(reader, checkpoint.outcomes_position):
        if getattr(answered.record, "leader_id", "") == leader.leader_id:
            return
    raise CorruptLog(
        f"the checkpoint was made in epoch {leader.epoch} of leader {leader.leader_id}, "
        "which is not at that offset of the outcomes topic: the topic lost its tail, or "
        "the checkpoint is from another history. Run `commitlog verify`"
    )
