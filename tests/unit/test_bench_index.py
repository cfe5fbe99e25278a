"""The made-up log is a log, and the measurement answers every question on it."""

from __future__ import annotations

from collections import Counter

import pytest

from commitlog.codecs import avro
from commitlog.core.log.replica import Replica
from commitlog.model.records import Answered, LeaderStarted
from consumers.tools.bench import index
from consumers.tools.bench.made_log import NODE, TableLog

COUNT = 2500


def test_the_made_up_log_is_valid() -> None:
    log = TableLog()
    replica = Replica()
    replica.receive_answered(Answered(0, 0, 0, log.log.genesis()))
    leader = LeaderStarted(1, NODE, "bench", 0, log.head, b"")
    assert not replica.receive_answered(Answered(0, 1, 0, leader))
    decided, operations, refused = 0, Counter[str](), 0
    for one, data in log.sealed(COUNT):
        outcome = one.outcome
        assert avro.decode_outcome_record(data) == outcome
        replica.receive_submitted(one.submitted)
        assert not replica.receive_answered(Answered(0, one.answered_offset, 0, outcome))
        decided += len(list(replica.drain()))
        operations.update(result.operation for result in outcome.results)
        refused += outcome.conflict is not None
    assert decided == COUNT
    assert operations.keys() == {"CreateTable", "Append", "Delete", "Rewrite"}
    assert refused > COUNT // 50
    assert log.version == COUNT - 1 - refused


@pytest.mark.slow
def test_everything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASKED", "ASKED_LEAST", "COMMITS", "PUBLICATIONS"):
        monkeypatch.setattr(index, name, 2)
    monkeypatch.setattr(index, "SETTLE_SECONDS", 0.1)
    told: list[str] = []
    report = index.run(sizes=(1200,), rate=100, seconds=0.3, report=told.append)
    (costs,) = report["costs"]
    assert costs["publish_p50_ms"] > 0
    assert {row["versions"] for row in report["questions"]} == {1200}
    assert len(report["questions"]) > 25
    fresh = report["freshness"]
    assert 0 < fresh["fresh_p50_ms"] <= fresh["fresh_p99_ms"] <= fresh["max_ms"]
    assert fresh["cpu_ms_per_commit"] > 0
    assert told
