"""A log is proven by programs that word refusals otherwise, and that write for another Lance."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import lance
import pytest

from commitlog import words
from commitlog.adapters import log_start, memory
from commitlog.model.limits import PROTOCOL_SUPPORTED
from commitlog.model.operations import DropTable
from commitlog.model.records import Outcome, Status, Transaction
from commitlog.spark.log_positions import outcomes_end
from commitlog.spark.recompute import audit_partition
from consumers.rules import put_in_force
from consumers.verify import Options, verify
from tests.service import Service, rows, service
from tests.unit.test_spark_audit import TABLE, make_history

UPGRADED = "3, then 4"


@pytest.fixture(params=["3", "4", UPGRADED])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """A log of one protocol, or one that was upgraded in the middle."""
    first = 4 if request.param == "4" else 3
    with patch.object(log_start, "PROTOCOL_SUPPORTED", first), service(tmp_path) as made:
        make_history(made)
        refuse(made)
        if request.param == UPGRADED:
            put_in_force(made.client, lambda rules: replace(rules, protocol=PROTOCOL_SUPPORTED))
            refuse(made)
            made.client.append(TABLE, rows(100))
        yield made


def refuse(world: Service) -> None:
    """Have refused what cannot be, in all the ways that are easily had."""
    client = world.client
    head = client.table(TABLE).version
    restore = lance.LanceOperation.Restore(1_000)
    assert client.submit(TABLE, restore).result().status is Status.REJECTED
    nowhere = Transaction(str(uuid.uuid4()), (DropTable(("nowhere",)),))
    for _ in range(2):
        world.log.transactions_writer().append(nowhere, partition=0)
    unread = Transaction(str(uuid.uuid4()), (DropTable((TABLE,)),))
    with patch.object(memory, "encode_to_append", lambda _: b"no record of this log"):
        world.log.transactions_writer().append(unread, partition=0)
    client.append(TABLE, rows(head))


def outcomes(world: Service) -> list[Outcome]:
    found = world.log.read_outcomes(0).poll(timeout_seconds=0)
    return [one.record for one in found if isinstance(one.record, Outcome)]


def assert_proven(world: Service) -> None:
    audited = audit_partition(world.log, 0, outcomes_end(world.log, 0))
    assert audited.differences == []
    assert audited.outcomes == audited.recomputed
    assert audited.states >= 1
    verdict = verify(world.log, 0, Options())
    assert verdict.problems == []


def test_reworded_refusals_prove_the_same_log(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = [one for one in outcomes(world) if one.status is not Status.COMMITTED]
    assert len(refused) >= 4
    assert_proven(world)
    monkeypatch.setattr(words, "WORDS", dict.fromkeys(words.WORDS, "it cannot be"))
    monkeypatch.setattr(words, "ADVICE", dict.fromkeys(words.ADVICE, "give up"))
    assert_proven(world)
    typed = [one for one in outcomes(world) if one.reason is not None]
    for one in typed:
        assert one.message.endswith("it cannot be")
        assert one.conflict is None or one.conflict.advice in ("give up", "")
