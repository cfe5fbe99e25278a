"""One committer and its writers, whole, on a log in memory and real files."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lance
import pytest

from commitlog.adapters.memory_cluster import Partition, Topic
from commitlog.client.rows.opening import is_there
from commitlog.codecs.avro import seal_outcome
from commitlog.errors import (
    CorruptLog,
    NoSuchTable,
    OutcomeUnknown,
    RetryableConflict,
    TableAlreadyExists,
    TransactionRejected,
)
from commitlog.model.records import Code, Outcome, Status, TableAbsent, TableVersionIs
from commitlog.protocol import outcomes_topic, transactions_topic
from consumers.partition.checkpoints.checkpoint import Checkpoints
from consumers.partition.files.table_files import UNHINTED_MAX
from tests.service import SCHEMA, Service, ids_of, rows
from tests.waiting import wait_until


def table(running: Service, name: str = "ns$t", policy: str = "every") -> str:
    running.client.create_table(name, SCHEMA, policy=policy)
    return name


def test_under_every_each_version_opens_in_plain_pylance_by_path(running: Service) -> None:
    t = table(running)
    for number in range(1, 6):
        outcome = running.client.append(t, rows(number))
        assert outcome.version == number + 1
        assert ids_of(lance.dataset(str(running.location(t)))) == list(range(1, number + 1))
    for version in range(1, 7):
        dataset = lance.dataset(str(running.location(t)), version=version)
        assert ids_of(dataset) == list(range(1, version))


def test_under_latest_a_reader_by_path_finds_each_version_that_was_answered(
    running: Service,
) -> None:
    """Without a gap the hint stays a little behind, and Lance looks on from there."""
    t = table(running, policy="latest")
    for number in range(2 * UNHINTED_MAX + 3):
        outcome = running.client.append(t, rows(number))
        assert lance.dataset(str(running.location(t))).version == outcome.version


def test_under_latest_the_newest_opens_by_path_and_any_through_the_log(running: Service) -> None:
    t = table(running, policy="latest")
    [fragment] = lance.fragment.write_fragments(rows(1, 2), str(running.location(t)))
    operation = lance.LanceOperation.Append([fragment])
    tickets = [running.client.submit(t, operation, read_version=1) for _ in range(40)]
    assert sorted(ticket.result().version for ticket in tickets) == list(range(2, 42))
    location = running.location(t)
    assert lance.dataset(str(location)).count_rows() == 80
    assert len(list((location / "_versions").glob("*.manifest"))) < 42
    for version in (1, 2, 17, 41):
        assert running.client.open(t, version).count_rows() == 2 * (version - 1)


def test_rows_are_read_from_a_version_that_has_its_file(running: Service) -> None:
    """Under `latest` a head has no file for a while; making one takes a search of the log."""
    t = table(running, policy="latest")
    [fragment] = lance.fragment.write_fragments(rows(1, 2), str(running.location(t)))
    operation = lance.LanceOperation.Append([fragment])
    for ticket in [running.client.submit(t, operation, read_version=1) for _ in range(40)]:
        ticket.result()
    newest = running.client.table(t)
    missing = next(v for v in range(2, 42) if not is_there(newest.location, v))
    at_a_head_without_file = replace(newest, version=missing)
    assert running.client.opened.newest(at_a_head_without_file).version == 41
    assert not is_there(newest.location, missing)
    other_schema = replace(at_a_head_without_file, fields=newest.fields[:1])
    assert running.client.opened.newest(other_schema).version == missing
    assert running.client.delete(t, "id = 1").results[0].rebased_over == 0


def test_one_record_commits_two_tables_or_none(running: Service) -> None:
    client = running.client
    a, b = table(running, "ns$a"), table(running, "ns$b")
    with client.transact() as both:
        both.append(a, rows(1))
        both.append(b, rows(2))
    assert (client.table(a).version, client.table(b).version) == (2, 2)
    stale = client.open(b).get_fragments()[0].delete("id = 2")
    assert stale is None or stale.id == 0
    refusals = (RetryableConflict, TransactionRejected)
    stale_read = [TableVersionIs(("ns", "b"), 1)]
    with pytest.raises(refusals), client.transact(expects=stale_read) as both:  # noqa: PT012
        both.append(a, rows(3))
        both.append(b, rows(4))
    assert (client.table(a).version, client.table(b).version) == (2, 2)


def test_expectations_are_checked_where_the_order_is_made(running: Service) -> None:
    t = table(running)
    refused = running.client.append(t, rows(1), expects=[TableAbsent(("ns", "t"))])
    assert refused.code is Code.EXPECTATION_FAILED
    assert "ns$t" in refused.message
    done = running.client.append(t, rows(1), expects=[TableVersionIs(("ns", "t"), 1)])
    assert done.version == 2


def test_an_expectation_that_fails_is_told_at_once(running: Service) -> None:
    t = table(running)
    running.client.append(t, rows(2)).raise_for_conflict()
    asked = running.log.read_transactions(0).end_offset
    before = asked()
    stale = [TableVersionIs(("ns", "t"), 1)]
    appended = running.client.append(t, rows(1), expects=stale)
    assert (appended.code, asked()) == (Code.EXPECTATION_FAILED, before + 1)
    deleted = running.client.delete(t, "true", expects=stale)
    assert (deleted.code, asked()) == (Code.EXPECTATION_FAILED, before + 2)


def test_names_and_locations_are_taken_once(running: Service, tmp_path: Path) -> None:
    t = table(running)
    with pytest.raises(TableAlreadyExists):
        running.client.create_table(t, SCHEMA)
    assert running.client.create_table(t, SCHEMA, exist_ok=True) is not None
    inside = running.location(t) / "inside"
    for location in (str(running.location(t)), str(inside), str(running.location(t).parent)):
        with pytest.raises(TableAlreadyExists, match="location"):
            running.client.create_table("ns$other", SCHEMA, location=location)
    with pytest.raises(NoSuchTable, match=r"ns\$t"):
        running.client.append("ns$tt", rows(1))


def test_an_existing_dataset_is_taken_over_and_dropped(running: Service, tmp_path: Path) -> None:
    location = tmp_path / "tables" / "mine"
    lance.write_dataset(rows(1), str(location))
    lance.write_dataset(rows(2), str(location), mode="append")
    running.client.register_table("ns$mine", str(location))
    assert running.client.table("ns$mine").version == 2
    running.client.append("ns$mine", rows(3))
    assert ids_of(lance.dataset(str(location))) == [1, 2, 3]
    running.client.drop_table("ns$mine")
    with pytest.raises(NoSuchTable):
        running.client.table("ns$mine")


def test_without_its_checkpoint_the_committer_reads_the_log_to_the_same_state(
    running: Service,
) -> None:
    t = table(running)
    for number in range(5):
        running.client.append(t, rows(number))
    running.client.delete(t, "id = 3")
    first = running.running[0]
    first.stop()
    follower = first.committer._follower
    assert follower is not None
    digest = follower.machine.digest()
    shutil.rmtree(running.root / "checkpoints")
    second = running.start().await_leading()
    rebuilt = second.committer._follower
    assert rebuilt is not None
    assert rebuilt.machine.digest() == digest


def test_a_standby_takes_over_and_nothing_is_lost(running: Service, tmp_path: Path) -> None:
    t = table(running)
    standby = running.start(tmp_path / "standby")
    for number in range(5):
        running.client.append(t, rows(number))
    assert not standby.leads.is_set()
    running.running[0].stop()
    standby.await_leading()
    for number in range(5, 10):
        running.client.append(t, rows(number))
    assert ids_of(lance.dataset(str(running.location(t)))) == list(range(10))
    assert running.client.table(t).version == 11


def test_a_zombie_s_outcome_is_ignored_by_everybody(running: Service) -> None:
    t = table(running)
    running.client.append(t, rows(1))
    forged, record = seal_outcome(
        Outcome(99, str(uuid.uuid4()), 0, Status.COMMITTED),
        previous_hash=bytes(32),
        epoch=1,
        node="127.0.0.1:1",
    )
    # The true leader finds a foreign record in its topic, ends its term, and begins another one.
    running.cluster.append("commitlog.outcomes", 0, b"1/99", record)
    wait_until(lambda: running.client.append(t, rows(2)).epoch > 1, "a term after the first")
    versions = running.client.table(t).version
    assert lance.dataset(str(running.location(t))).version == versions
    follower = running.running[0].committer._follower
    assert follower is not None
    assert follower.replica.chain.sequence != forged.sequence


@pytest.mark.parametrize("made_again", [transactions_topic, outcomes_topic])
def test_topics_that_are_made_again_end_a_running_committer(
    running: Service, made_again: Callable[[str], str]
) -> None:
    """It may have no checkpoint yet; it appended a start that nobody heeds, again and again."""
    t, [committer] = table(running), running.running
    topic = made_again(running.log.name)
    with running.cluster.changed:
        settings = running.cluster.topics[topic].settings
        running.cluster.topics[topic] = Topic([Partition()], settings)
        shutil.rmtree(running.root / "checkpoints", ignore_errors=True)
    with pytest.raises(OutcomeUnknown):
        running.client.delete(t, "id = 1", timeout=0.2)
    committer.await_end()
    assert isinstance(committer.failure, CorruptLog), committer.failure
    assert re.search("made again|outside of", str(committer.failure))


def test_a_damaged_checkpoint_is_refused_with_advice(running: Service) -> None:
    table(running)
    running.running[0].stop()
    folder = running.root / "checkpoints" / "0"
    head = json.loads((folder / "head.json").read_text())
    part = next(folder.glob("*.part"))
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    checkpoints = Checkpoints(running.root, running.log.identity(), running.log.genesis())
    with pytest.raises(CorruptLog, match="is damaged. Delete this folder"):
        checkpoints.load()
    head["format"] = 99
    (folder / "head.json").write_text(json.dumps(head))
    with pytest.raises(CorruptLog, match="unknown format"):
        checkpoints.load()


def test_a_dry_run_tells_the_verdict_and_changes_nothing(running: Service) -> None:
    t = table(running)
    running.client.append(t, rows(1, 2))
    dataset = lance.dataset(str(running.location(t)))
    image = dataset.get_fragments()[0].delete("id = 1")
    assert image is not None
    delete = lance.LanceOperation.Delete([image], [], "id = 1")
    verdict = running.client.submit(t, delete, read_version=2, dry_run=True).result()
    assert (verdict.status, verdict.version) == (Status.COMMITTED, 3)
    assert running.client.table(t).version == 2
    running.client.delete(t, "id = 1")
    verdict = running.client.submit(t, delete, read_version=2, dry_run=True).result()
    assert verdict.status is Status.RETRYABLE
    assert running.client.table(t).version == 3
