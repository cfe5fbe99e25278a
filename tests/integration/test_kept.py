"""What a partition's server keeps doesn't grow with what came and went: tables, sessions, watches.

Counted are the things in its own collections, not bytes of the process, so that the result is the
same on any machine. `COMMITLOG_SOAK_SECONDS` lets it go on for longer.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from consumers.socket import remembered
from tests.kept import kept
from tests.service import SCHEMA, Running, Service, rows, service
from tests.waiting import wait_until

SOAK_SECONDS = float(os.environ.get("COMMITLOG_SOAK_SECONDS", "0"))
ROUNDS = 5

GROWS = {
    "Deduplication._open": "ids of the horizon, 86 bytes each",
    "Deduplication._chunk_of": "ids of the horizon, 86 bytes each",
    "Deduplication._changed": "one for 4,096 ids",
    "Deduplication._packed": "one for 4,096 outcomes",
    "IdIndex._buckets": "ids of the horizon",
    "PackedIds._blocks": "ids of the horizon",
    "Checkpoints._saved": "one for 4,096 outcomes",
    "OfKind.outcomes": "kinds of outcomes that were met, of tables that are counted",
    "Locations._places": "a location belongs to one incarnation for ever",
    "Locations._sorted": "a location belongs to one incarnation for ever",
    "Locations._encoded": "a location belongs to one incarnation for ever",
    "Locations._of": "an incarnation has one location for ever",
    "Catalogue.ended_rows": "how far rows of a dropped table were applied",
    "OffsetIndex._places": "one for 1,000 outcomes",
    "Lanes._quick": "lanes whose last job was quick, QUICK_MAX at most; fewer on a slow disk",
    "Appending._busy": "who wrote within 200 ms, until the next record",
    "Appending._heard": "who wrote within 200 ms, until the next record",
}
"""What grows with what is decided, or stays until something is, and why."""


def one_round(made: Service) -> None:
    """Come and go: a table, a session, watches, a refusal, a request of each kind."""
    client = CommitLog(lambda: MemoryLog(made.cluster))
    try:
        client.create_table("comes$and_goes", SCHEMA)
        client.append("comes$and_goes", rows(1, 2))
        client.delete("comes$and_goes", "id = 1")
        client.write_rows("comes$and_goes", rows(3)).result(wait="accepted")
        client.open("comes$and_goes", version=2)
        client.outcome(client.append("comes$and_goes", rows(4)).transaction_id)
        client.drop_table("comes$and_goes")
        never = client.runtime().watch(str(uuid.uuid4()))
        assert not never.done()
    finally:
        client.close()


def settled(running: Running) -> Counter[str]:
    """Return what is kept once files and a checkpoint are written and nobody is connected."""
    committer = running.committer
    session = committer._session
    assert session is not None
    wait_until(lambda: session.written_sequence >= session.published, "the files")
    wait_until(lambda: not committer._answers._connections.all(), "the last connection's end")

    def begins_to_save() -> bool:  # not beside another one, which is of an earlier state
        return not session.saving.is_under_way and session.checkpoint()

    wait_until(lambda: session.mailbox.call(begins_to_save).result(60), "a checkpoint")
    wait_until(lambda: not session.saving.is_under_way, "the checkpoint's files")
    return session.mailbox.call(lambda: kept(committer, without=[MemoryCluster])).result(60)


@pytest.mark.timeout(SOAK_SECONDS + 600)
def test_nothing_is_kept_of_what_came_and_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "REMEMBERED_MAX", 4)
    with service(tmp_path) as made:
        counts: list[Counter[str]] = []
        until = time.monotonic() + SOAK_SECONDS
        while len(counts) < 2 or time.monotonic() < until:
            for _ in range(ROUNDS):
                one_round(made)
            counts = [*counts[:1], settled(made.running[0])]
        assert {"Materializer._by_incarnation", "Watches._watchers"} <= counts[0].keys()

        def grown() -> dict[str, int]:
            now = settled(made.running[0]) - counts[0]
            return {name: more for name, more in now.items() if name not in GROWS}

        wait_until(lambda: not grown(), "the end of what is only passing", state=grown)
