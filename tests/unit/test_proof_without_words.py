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
from commitlog.codecs.manifest_file import decode_manifest
from commitlog.errors import TransactionRejected
from commitlog.model.limits import LANCE_RELEASE_SINCE, PROTOCOL_SUPPORTED
from commitlog.model.operations import DropTable
from commitlog.model.records import Outcome, Status, Transaction
from commitlog.spark.log_positions import outcomes_end
from commitlog.spark.recompute import audit_partition
from consumers.tools.rules import in_force, put_in_force
from consumers.tools.verify import VerifyOptions, verify
from tests.service import SCHEMA, Service, rows, service
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
    verdict = verify(world.log, 0, VerifyOptions())
    assert verdict.problems == []


@pytest.mark.slow
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


@pytest.mark.slow
def test_another_release_of_lance_is_put_in_force_by_a_record(
    world: Service, tmp_path: Path
) -> None:
    client = world.client
    if in_force(client)[0].protocol < LANCE_RELEASE_SINCE:
        with pytest.raises(TransactionRejected, match="which this program"):
            put_in_force(client, lambda rules: rules, lance_release="15.1.0")
        assert_proven(world)
        return
    before = client.append(TABLE, rows(200)).version
    put_in_force(client, lambda rules: rules, lance_release="15.1.0")
    after = client.append(TABLE, rows(201)).version
    client.create_table("made$since", SCHEMA)
    found = [writer_of(world, TABLE, version) for version in (before, after)]
    assert [*found, writer_of(world, "made$since", 1)] == ["14.0.2", "15.1.0", "15.1.0"]
    world.running.pop().stop()
    world.start().await_leading()
    assert in_force(client)[0].lance_release == "15.1.0"
    assert_proven(world)
    # Made again from the log alone, an old version is as it was.
    for version in (before, after):
        manifest = next(world.location(TABLE).glob(f"_versions/*{2**64 - 1 - version}.manifest"))
        data = manifest.read_bytes()
        manifest.unlink()
        client.open(TABLE, version)
        assert manifest.read_bytes() == data


def writer_of(world: Service, table: str, version: int) -> str:
    """Return the release that a version's manifest names as its writer."""
    path = next(world.location(table).glob(f"_versions/*{2**64 - 1 - version}.manifest"))
    state, _ = decode_manifest(path.read_bytes())
    return state.header.message.writer_version.version


def test_a_name_that_is_no_release_is_refused(tmp_path: Path) -> None:
    with service(tmp_path) as made:
        for name in ("newest", "1.2", "14.0.2 ", "1.2." + "3" * 80):
            with pytest.raises(TransactionRejected, match="is not a release of Lance"):
                put_in_force(made.client, lambda rules: rules, lance_release=name)
