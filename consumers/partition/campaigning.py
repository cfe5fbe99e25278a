"""Appends what begins a term, and waits until Kafka has it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from commitlog.codecs.avro import encode_leader_started
from commitlog.errors import CommitLogError
from commitlog.model.records import LeaderStarted
from commitlog.ports import Log
from commitlog.protocol import leader_key

CAMPAIGN_SECONDS = 30.0

logger = logging.getLogger(__name__)


def append_started(
    log: Log, partition: int, started: LeaderStarted, clock: Callable[[], float]
) -> bool:
    """Append it; return True if Kafka acknowledged it."""
    landed: list[Exception | None] = []

    def delivered(offset: int, error: Exception | None) -> None:
        landed.append(error)

    writer = log.outcomes_writer(partition)
    deadline = clock() + CAMPAIGN_SECONDS
    try:
        key = leader_key(started.epoch, started.leader_id)
        writer.append(key, encode_leader_started(started), delivered)
        while not landed and clock() < deadline:
            writer.poll(0.1)
        error = landed[0] if landed else TimeoutError("no acknowledgement came")
        if error is not None:
            raise error
    except (CommitLogError, TimeoutError) as error:
        logger.warning("epoch %d was not started: %s", started.epoch, error)
        return False
    finally:
        writer.close()
    return True
