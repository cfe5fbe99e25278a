"""Reads a feed up to the log's present end, however slow the machine is."""

from __future__ import annotations

import time
from typing import Any

from commitlog import CommitLog
from commitlog.client.feed_events import FeedEvent, token_places

WAIT_SECONDS = 180.0


def told(log: CommitLog, tables: Any, start: Any, *, refused: bool = False) -> list[FeedEvent]:
    """Return the events from `start` to the end of a log with one partition."""
    end = int(log.runtime().request(0, "status")["sequence"])
    log_id = log.runtime().genesis.log_id
    deadline = time.monotonic() + WAIT_SECONDS
    found: list[FeedEvent] = []
    with log.subscribe(tables, start, refused=refused) as feed:
        while token_places(feed.token, log_id, 1)[0].sequence < end:
            found += feed.poll(0.2)
            assert time.monotonic() < deadline
    return found
