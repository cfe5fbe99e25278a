"""What a leader watches beside its work: settings, strangers, its own pace, one bad table."""

from __future__ import annotations

import gc
import shutil
import threading
import uuid
import weakref
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import lance
import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.core.partition.machine import Machine
from commitlog.errors import InvalidTransaction, RetryableConflict, Unavailable
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.operations import CreateTable, LanceCommit, Operation, RegisterTable
from commitlog.model.records import Status, Transaction
from commitlog.protocol import outcomes_topic, transactions_topic
from consumers.partition import leader_checks
from consumers.partition.files.bypass import ADOPT, PROPERTY, Bypass
from consumers.servers.committer import Committer
from consumers.socket import http_servers, requests
from consumers.tools.rows.writer import RowWriter
from consumers.tools.verify import VerifyOptions, verify
from consumers.views import health
from consumers.views.health import Health, Level
from tests.core_world import column
from tests.service import SCHEMA, Service, ids_of, rows
from tests.waiting import Clock, wait_until

SETTLED_SECONDS = 180.0


def committer(running: Service) -> Committer:
    return running.running[0].committer


def scan(running: Service) -> list[Bypass]:
    """Look for strangers' versions now, as the leader does every minute."""
    leading = committer(running)
    assert leading._session is not None
    return leading._checks.scan(leading._session, threading.Event())


def table(running: Service, name: str, **properties: str) -> str:
    """Make a table with one row, and properties."""
    running.client.create_table(name, SCHEMA, properties=properties)
    running.client.append(name, rows(1))
    return str(running.location(name))


def test_a_scan_moves_a_version_away_that_was_written_around_the_log(running: Service) -> None:
    location = table(running, "t")
    assert scan(running) == []
    lance.write_dataset(rows(666), location, mode="append")
    [found] = scan(running)
    assert (found.table, found.version) == ("t", 3)
    assert found.became.startswith("_quarantine/")
    assert ids_of(lance.dataset(location)) == [1]
    assert scan(running) == []
    assert running.client.append("t", rows(2)).version == 3
    assert ids_of(lance.dataset(location)) == [1, 2]
    status = running.client.runtime().request(0, "status")
    assert status["bypasses_found"] == 1
    assert [one["kind"] for one in status["incidents"]] == ["bypass"]


@pytest.mark.parametrize("policy", ["every", "latest"])
@pytest.mark.parametrize("appends", [1, 30])
def test_no_reader_by_path_misses_a_row_that_was_answered(
    running: Service, policy: str, appends: int
) -> None:
    """The strangers came since the last scan: an append or many, and a compaction."""
    running.client.create_table("t", SCHEMA, policy=policy)
    assert running.client.append("t", rows(1)).version == 2
    location = str(running.location("t"))
    for number in range(appends):
        lance.write_dataset(rows(600 + number), location, mode="append")
    if appends > 1:
        lance.dataset(location).optimize.compact_files()
    strangers = lance.dataset(location).version - 2
    assert strangers >= appends
    for version in (3, 4):
        assert running.client.append("t", rows(version)).version == version
        assert lance.dataset(location).version == version
    assert ids_of(lance.dataset(location)) == [1, 3, 4]
    assert len(list((Path(location) / "_quarantine").iterdir())) == strangers
    status = running.client.runtime().request(0, "status")
    assert status["bypasses_found"] == strangers
    assert scan(running) == []
    running.running[0].stop()
    assert verify(running.log, 0, VerifyOptions(contents=True)).problems == []


def test_a_native_write_upon_strangers_clears_the_way_for_the_next_one(running: Service) -> None:
    location = table(running, "t")
    dataset = running.client.open("t")
    for number in (666, 777):
        lance.write_dataset(rows(number), location, mode="append")
    with pytest.raises(RetryableConflict, match="have been moved away: write again"):
        lance.write_dataset(rows(2), dataset, mode="append")
    assert running.client.table("t").version == 2
    lance.write_dataset(rows(2), dataset, mode="append")
    assert ids_of(lance.dataset(location)) == [1, 2]


def test_a_table_may_adopt_what_was_written_around_the_log(running: Service) -> None:
    location = table(running, "t", **{PROPERTY: ADOPT})
    for number in (666, 777):
        lance.write_dataset(rows(number), location, mode="append")
    found = [(one.version, one.became) for one in scan(running)]
    assert found == [(3, "adopted"), (4, "adopted")]
    assert running.client.table("t").version == 4
    assert running.client.append("t", rows(2)).version == 5
    for version, ids in ((3, [1, 666]), (4, [1, 666, 777]), (5, [1, 2, 666, 777])):
        assert ids_of(lance.dataset(location, version=version)) == ids
    assert scan(running) == []
    running.running[0].stop()
    assert verify(running.log, 0, VerifyOptions(contents=True)).problems == []


def test_what_the_log_refuses_to_adopt_is_moved_away(running: Service) -> None:
    location = table(running, "t", **{PROPERTY: ADOPT})
    lance.write_dataset(rows(666), location, mode="append")
    newest = min((Path(location) / "_versions").glob("*.manifest"))
    newest.write_bytes(b"no manifest at all")
    [found] = scan(running)
    assert found.became.startswith("_quarantine/")
    assert running.client.append("t", rows(2)).version == 3


def test_a_scan_stops_at_no_table_and_moves_nothing_of_another_leader(running: Service) -> None:
    bad, good = table(running, "bad"), table(running, "good")
    for location in (bad, good):
        lance.write_dataset(rows(666), location, mode="append")
    (Path(bad) / "_quarantine").write_bytes(b"a file where a folder should be")
    assert [one.table for one in scan(running)] == ["good"]
    lance.write_dataset(rows(777), good, mode="append")
    leading = committer(running)
    assert leading._session is not None
    # As if somebody else had begun a term since: what it wrote is its own.
    leading._session.follower.replica.chain.epoch -= 1
    assert scan(running) == []
    leading._session.follower.replica.chain.epoch += 1
    assert lance.dataset(good).version == 3


def test_with_many_tables_scans_take_turns(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_checks, "TABLES_PER_SCAN", 2)
    locations = [table(running, f"t{number}") for number in range(3)]
    for location in locations:
        lance.write_dataset(rows(666), location, mode="append")
    found = [one.table for _ in range(3) for one in scan(running)]
    assert sorted(found) == ["t0", "t1", "t2"]


def topics_of(running: Service) -> dict[str, str]:
    return running.cluster.topics[outcomes_topic(running.log.name)].settings


def test_a_scan_of_tables_that_lack_nothing_asks_kafka_nothing(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        table(running, f"t{number}")
        running.client.expire_versions(f"t{number}", retain_versions=1)
    asked: list[int] = []
    monkeypatch.setattr(
        committer(running)._log, "last_outcome_records", lambda partition, count: asked.append(0)
    )
    committer(running)._checks._deep_at = 0.0
    assert scan(running) == []
    assert asked == []


def test_wrong_topic_settings_end_the_term_until_they_are_right_again(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_checks, "SETTINGS_RETRY_SECONDS", 0.05)
    table(running, "t")
    watch = committer(running)._checks
    topics_of(running)["retention.ms"] = "3600000"
    watch._settings_due = 0.0  # an hour is over
    wait_until(lambda: watch.settings_problem, "a look at the settings")
    assert "retention.ms is 3600000" in watch.settings_problem
    wait_until(lambda: committer(running)._leader is None, "the end of the term")
    assert [one.kind for one in watch.incidents] == ["topic-settings"]
    topics_of(running)["retention.ms"] = "-1"
    assert running.client.append("t", rows(2)).version == 3
    assert watch.settings_problem == ""


def test_readiness_is_red_while_topics_are_set_wrong(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Health(MemoryLog(running.cluster), None)
    try:
        assert {c.name: c.level for c in watch.check()}["topics"] is Level.OK
        settings = running.cluster.topics[transactions_topic(running.log.name)].settings
        settings["cleanup.policy"] = "delete"
        assert watch._topics is not None, "and is asked again after an hour"
        assert {c.name: c.level for c in watch.check()}["topics"] is Level.OK
        watch._topics_due = 0.0
        [found] = [check for check in watch.check() if check.name == "topics"]
        assert found.level is Level.FAIL
        assert "cleanup.policy is delete" in found.message
        settings["cleanup.policy"] = "compact"
        monkeypatch.setattr(health, "SETTINGS_RETRY_SECONDS", 0.0)
        watch._topics_due = 0.0  # ten seconds are over
        assert {c.name: c.level for c in watch.check()}["topics"] is Level.OK
    finally:
        watch.close()


def test_a_server_learns_of_others_of_the_same_log(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (Health(MemoryLog(running.cluster), None, server=name) for name in "ab")
    doctor = Health(MemoryLog(running.cluster), None)
    try:
        assert not one.is_alone(), "it hasn't asked yet"
        for watch in (one, doctor, one):
            watch.check()
        assert not one.is_alone(), "the others may not have asked this leader yet"
        monkeypatch.setattr(http_servers, "SURE_SECONDS", 0.0)
        one.check()
        assert one.is_alone_now()
        other.check()
        assert one.is_alone(), "as it knew last"
        assert not one.is_alone_now()
        one.check()
        assert not one.is_alone()
        monkeypatch.setattr(http_servers, "SILENT_SECONDS", 0.0)
        one.check()
        assert one.is_alone()
    finally:
        for watch in (one, other, doctor):
            watch.close()


def test_readiness_is_red_while_files_do_not_follow_and_says_which(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "FILES_SECONDS_MAX", 0.2)
    bad, _ = table(running, "bad"), table(running, "good")
    versions = Path(bad) / "_versions"
    versions.rename(versions.with_name("kept"))
    versions.write_bytes(b"a file where a folder should be")
    watch = Health(MemoryLog(running.cluster), None)

    def found() -> tuple[Level, str]:
        [check] = [check for check in watch.check() if check.name == "leader"]
        return check.level, check.message

    try:
        updates = lance.LanceOperation.UpdateMap({"a": "b"}, replace=False)
        operation = lance.LanceOperation.UpdateConfig(table_metadata_updates=updates)
        running.client.submit("bad", operation).result(wait="committed")
        wait_until(lambda: found()[0] is Level.FAIL, "a failing check", state=found)
        assert "manifests of bad have not been written" in found()[1]
        versions.unlink()
        versions.with_name("kept").rename(versions)
        wait_until(lambda: found()[0] is Level.OK, "a check that holds again", state=found)
    finally:
        watch.close()


def test_rows_that_no_row_writer_applies_are_late(running: Service) -> None:
    running.client.create_table("t", SCHEMA, primary_key="id", properties={"rows": "log"})
    runtime = running.client.runtime()

    def lag() -> float:
        return float(runtime.request(0, "status")["rows_lag_seconds"])

    assert lag() == 0
    running.client.write_rows("t", rows(1)).result(wait="accepted")
    wait_until(lambda: 0 < lag() < SETTLED_SECONDS, "a write that waits")
    RowWriter(running.client).drain(threading.Event())
    assert lag() == 0


class Deciding:
    """As much of a leader as the pulse needs."""

    oldest_undecided = -1
    undecided_count = 0

    def waiting(self) -> dict[str, int]:
        return {}


class Leading:
    """As much of a session as the pulse needs."""

    def __init__(self) -> None:
        self.leader = Deciding()


def test_the_oldest_undecided_transaction_is_timed() -> None:
    clock, session = Clock(), Leading()
    leader = session.leader
    watch = leader_checks.LeaderChecks(MemoryLog(), 0, None, clock=clock)  # type: ignore[arg-type]

    def after(seconds: float) -> float:
        clock.now += seconds
        watch.pulse(session)  # type: ignore[arg-type]
        return float(watch.status()["decision_lag_seconds"])

    assert after(1) == 0
    leader.oldest_undecided = 7
    assert after(1) == 0
    assert after(40) == 40
    leader.oldest_undecided = 8
    assert after(1) == 0, "another one is the oldest now"
    leader.oldest_undecided = -1
    assert after(5) == 0


def test_a_leader_that_was_ready_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop, which asks twice, told nobody if the next table's look began in between."""
    clock, session = Clock(), Mock()
    checks = leader_checks.LeaderChecks(MemoryLog(), 0, Mock(), clock=clock)
    monkeypatch.setattr(leader_checks, "repair", lambda *_, **__: [])
    session.mailbox.call.return_value.result.return_value = [(Mock(), 1)]
    checks.repair(session)
    assert not checks.has_repaired
    clock.now += leader_checks.HANGS_SECONDS
    assert checks.has_repaired
    checks.repair(session)
    assert checks.has_repaired


def test_only_a_bug_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    watch = leader_checks.LeaderChecks(MemoryLog(), 0, Mock())
    for error in (Unavailable("the term is over"), OSError("the disk is away"), KeyError("a bug")):
        watch._tried("repairing tables", Mock(side_effect=error))
    assert [bool(one.exc_info) for one in caplog.records] == [False, False, True]
    assert caplog.messages[0] == (
        "repairing tables failed and will be tried again: the term is over"
    )


def test_a_leader_that_hangs_is_timed(running: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "STATUS_SECONDS", 0.2)
    runtime = running.client.runtime()
    assert runtime.request(0, "status")["deciding_silence_seconds"] == 0
    session = committer(running)._session
    assert session is not None
    go_on = threading.Event()
    hanging = session.mailbox.call(lambda: go_on.wait(SETTLED_SECONDS))
    wait_until(
        lambda: runtime.request(0, "status")["deciding_silence_seconds"] > 1,
        "a leader that hasn't decided for a second",
    )
    go_on.set()
    hanging.result(SETTLED_SECONDS)
    assert runtime.request(0, "status")["deciding_silence_seconds"] == 0


def test_the_states_of_ended_terms_do_not_gather_in_memory(running: Service) -> None:
    location = table(running, "t")
    ended: list[weakref.ref[Machine]] = []
    gc.disable()
    try:
        for number in range(2, 5):
            session = committer(running)._session
            assert session is not None
            assert session.leader is not None
            ended.append(weakref.ref(session.follower.machine))
            session.mailbox.call(partial(session.leader._end, Unavailable("Kafka is away")))
            del session
            assert running.client.append("t", rows(number)).version == number + 1
        # What answers in these milliseconds may still have the last one.
        assert [machine() for machine in ended[:-1]] == [None, None]
    finally:
        gc.enable()
    assert ids_of(lance.dataset(location)) == [1, 2, 3, 4]


@pytest.mark.parametrize("harm", ["manifests cannot be written", "the location vanished"])
def test_one_bad_table_stops_no_other(running: Service, harm: str) -> None:
    bad, _ = table(running, "bad"), table(running, "good")
    versions = Path(bad) / "_versions"
    kept = versions.with_name("kept")
    if harm == "the location vanished":
        shutil.move(bad, bad + "-gone")
        Path(bad).write_bytes(b"a file where a folder should be")
    else:
        versions.rename(kept)
        versions.write_bytes(b"a file where a folder should be")
    client = running.client
    updates = lance.LanceOperation.UpdateMap({"a": "b"}, replace=False)
    stuck = client.submit("bad", lance.LanceOperation.UpdateConfig(table_metadata_updates=updates))
    if harm == "manifests cannot be written":
        assert stuck.result(wait="committed").version == 3
        wait_until(
            lambda: client.runtime().request(0, "status")["failing_tables"] == ["bad"],
            "the table's name in the leader's status",
        )
    for number in range(2, 12):
        assert client.append("good", rows(number)).version == number + 1
    assert ids_of(lance.dataset(str(running.location("good")))) == list(range(1, 12))
    materializer = committer(running)._session.materializer  # type: ignore[union-attr]
    assert len(materializer._unwritten) <= 1, "nothing is kept of what was written"
    if harm == "the location vanished":
        Path(bad).unlink()
        shutil.move(bad + "-gone", bad)
    else:
        versions.unlink()
        kept.rename(versions)
    assert stuck.result().version == 3
    assert client.append("bad", rows(2)).version == 4


def made_of(location: str, number: int) -> tuple[Operation, ...]:
    """Return operations that name an impossible place, each in a way of its own."""
    name, path = (f"p{number}",), "_versions/18446744073709551614.manifest"
    return (
        RegisterTable(name, str(uuid.uuid4()), location, 1, path),
        CreateTable(name, str(uuid.uuid4()), location, (column("id", 0),)),
    )


@pytest.mark.parametrize(
    "location", ["foo://bucket/x", "/dev/null/x", "/" + "x" * 5000, "/dev/null/\ud800x"]
)
def test_a_record_that_names_an_impossible_place_stops_nobody(
    running: Service, location: str
) -> None:
    writer = running.log.transactions_writer()
    table(running, "good")
    for number, operation in enumerate(made_of(location, 1)):
        asked = Transaction(str(uuid.uuid4()), (operation,))
        try:
            writer.append(asked, partition=0)
        except InvalidTransaction:
            continue  # not even a record can say so
        outcome = running.client.outcome(asked.transaction_id, wait="committed")
        assert outcome is not None
        assert number or outcome.status is Status.REJECTED
    assert running.client.append("good", rows(2)).version == 3
    assert running.running[0].failure is None


@pytest.mark.parametrize("path", ["../../etc/passwd", "x" * 5000, "a\0b", "."])
def test_a_data_file_of_an_impossible_name_is_not_there(running: Service, path: str) -> None:
    location = table(running, "good")
    message = LanceTransaction(read_version=2, uuid=str(uuid.uuid4()))
    fragment = message.append.fragments.add(physical_rows=1)
    fragment.files.add(path=path, fields=[0, 1], column_indices=[0, 1], file_major_version=2)
    operation = LanceCommit(("good",), "Append", 2, message.SerializeToString())
    asked = Transaction(str(uuid.uuid4()), (operation,))
    running.log.transactions_writer().append(asked, partition=0)
    outcome = running.client.outcome(asked.transaction_id, wait="committed")
    assert outcome is not None
    assert outcome.status is Status.REJECTED
    assert running.client.append("good", rows(2)).version == 3
    assert ids_of(lance.dataset(location)) == [1, 2]
