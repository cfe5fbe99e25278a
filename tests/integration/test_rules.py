"""The rules that a log decides by: shown, changed, and kept by whoever replays it."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from lance import LanceOperation

from commitlog import CommitLog
from commitlog.adapters import log_start
from commitlog.adapters.log_start import append_rules, protocol_version
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.client.leader.tables import TableInfo
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, NamingScheme, manifest_name
from commitlog.errors import (
    InvalidTransaction,
    OutcomeUnknown,
    TransactionRejected,
    UnsupportedFormat,
)
from commitlog.model.limits import LAST_VERSIONS_SINCE, PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import RegisterTable
from commitlog.model.records import Code, Outcome, Status
from consumers.tools.rules import in_force, put_in_force, rules_in
from consumers.tools.verify import VerifyOptions, verify
from tests.service import SCHEMA, Service, leading, rows, service

T = "ns$t"


def test_rules_come_into_force_and_last(tmp_path: Path) -> None:
    with service(tmp_path) as made:
        made.client.create_table(T, SCHEMA)
        for number in range(4):
            made.client.append(T, rows(number))
        assert in_force(made.client) == [Rules(PROTOCOL_SUPPORTED)]
        found = put_in_force(made.client, lambda now: replace(now, history_versions=2))
        assert found == in_force(made.client) == [Rules(PROTOCOL_SUPPORTED, history_versions=2)]
        late = LanceOperation.Delete([], [0], "id = 0")
        stale = made.client.submit(T, late, read_version=2).result()
        assert (stale.status, stale.code) == (Status.RETRYABLE, Code.READ_VERSION_PRUNED)
        made.running[0].stop()
        made.start(made.root / "again").await_leading()
        assert in_force(made.client) == found, "from the log alone"


def test_rules_that_the_leader_has_yet_to_decide_are_awaited(tmp_path: Path) -> None:
    with service(tmp_path) as made:
        (before,) = in_force(made.client)
        waits, may_decide = threading.Event(), threading.Event()

        def wait() -> None:
            waits.set()
            may_decide.wait(60)

        session = made.running[0].committer._session
        assert session is not None
        session.mailbox.call(wait)
        assert waits.wait(60)
        record = protocol_version("id-rules", replace(before, history_versions=7))
        writer = made.log.transactions_writer()
        append_rules(writer, record, 0, 60)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(in_force, made.client)
            # Answered after the other request was read.
            assert rules_in(made.client.runtime().request(0, "status")) == before
            may_decide.set()
            assert asked.result(60) == [replace(before, history_versions=7)]


def test_rules_are_shown_where_the_topic_ends_with_tombstones(tmp_path: Path) -> None:
    with service(tmp_path) as made:
        made.client.create_table(T, SCHEMA)
        made.log.tombstone(0, [b"%d/tombstone" % number for number in range(3)])
        assert in_force(made.client) == [Rules(PROTOCOL_SUPPORTED)]
        made.running[0].stop()
        made.start().await_leading()
        assert in_force(made.client) == [Rules(PROTOCOL_SUPPORTED)], "after another start, too"


def test_what_cannot_hold_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with service(tmp_path) as made:
        before = in_force(made.client)
        with pytest.raises(TransactionRejected, match="limits must be positive"):
            put_in_force(made.client, lambda now: replace(now, operations_max=0))
        with pytest.raises(TransactionRejected, match="protocols only grow"):
            put_in_force(made.client, lambda now: replace(now, protocol=1))
        sequence = made.client.runtime().request(0, "status")["sequence"]
        assert put_in_force(made.client, lambda now: now) == before
        assert made.client.runtime().request(0, "status")["sequence"] == sequence


def test_a_protocol_that_the_leader_does_not_know_is_refused(
    tmp_path: Path,
) -> None:
    with service(tmp_path) as made:
        runtime, newer = made.client.runtime(), PROTOCOL_SUPPORTED + 1
        sequence = runtime.request(0, "status")["sequence"]
        with pytest.raises(UnsupportedFormat, match=f"would stop at protocol {newer}: install"):
            put_in_force(made.client, lambda now: replace(now, protocol=newer))
        assert runtime.request(0, "status")["sequence"] == sequence


def test_a_failure_says_which_partitions_have_new_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = MemoryCluster()
    log = MemoryLog(cluster)
    log.create(partitions=3, tables_root=str(tmp_path / "tables"))
    with contextlib.ExitStack() as stack:
        for partition in range(3):
            stack.enter_context(leading(log, tmp_path, partition=partition))
        client = stack.enter_context(CommitLog(lambda: MemoryLog(cluster)))
        outcome, asked = client.outcome, iter([True, True, False])

        def answered(transaction_id: str, timeout: float) -> Outcome:
            if not next(asked):
                raise OutcomeUnknown("no answer", transaction_id)
            return outcome(transaction_id, timeout)

        with monkeypatch.context() as patch:
            patch.setattr(client, "outcome", answered)
            with pytest.raises(OutcomeUnknown) as caught:
                put_in_force(client, lambda now: replace(now, history_versions=7))
        assert str(caught.value) == (
            "no answer. Before, the new rules came into force in partition 0, 1 of 3: `commitlog"
            " rules` shows what each has, and the same again changes the others"
        )
        with pytest.raises(TransactionRejected, match=r"positive$"):
            put_in_force(client, lambda now: replace(now, operations_max=0))
        found = put_in_force(client, lambda now: replace(now, history_versions=7))
        assert [one.history_versions for one in found] == [7, 7, 7]


def test_a_log_of_an_older_protocol_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(log_start, "PROTOCOL_SUPPORTED", 1)
        world = Service(tmp_path)
    world.start().await_leading()
    try:
        world.client.create_table(T, SCHEMA)
        world.client.merge_insert(T, rows(1, 2), "id").raise_for_conflict()
        assert in_force(world.client) == [Rules(1)]
        clone = LanceOperation.Clone(True, None, 2, str(world.location(T)), "dev")
        with pytest.raises(InvalidTransaction, match="protocol 1.*commitlog rules --upgrade"):
            world.client.submit("ns$branch", clone)
        put_in_force(world.client, lambda now: replace(now, protocol=PROTOCOL_SUPPORTED))
        assert in_force(world.client) == [Rules(PROTOCOL_SUPPORTED)]
        world.client.merge_insert(T, rows(2, 3), "id").raise_for_conflict()
        assert world.client.open(T).count_rows() == 3
        assert world.client.submit("ns$branch", clone).result().status is Status.COMMITTED
    finally:
        world.close()


def test_version_numbers_are_given_twice_under_older_protocols_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table comes back from an older version: verify decides each as the leader did."""
    with monkeypatch.context() as patch:
        patch.setattr(log_start, "PROTOCOL_SUPPORTED", LAST_VERSIONS_SINCE - 1)
        world = Service(tmp_path)
    world.start().await_leading()
    try:
        log = world.client
        for name in ("before", "after"):
            log.create_table(name, SCHEMA)
            log.append(name, rows(1))
            log.append(name, rows(2))
        backs = {name: _at_version_2(log.table(name)) for name in ("before", "after")}
        log.drop_table("before")
        assert log.submit(None, backs["before"]).result().version == 2
        assert log.append("before", rows(3)).version == 3
        put_in_force(log, lambda now: replace(now, protocol=PROTOCOL_SUPPORTED))
        log.drop_table("after")
        world.running.pop().stop()
        world.start().await_leading()
        with pytest.raises(TransactionRejected, match="Register version 3 or a newer one"):
            log.submit(None, backs["after"]).result().raise_for_conflict()
        assert log.undrop("after").version == 3
        assert log.append("after", rows(4)).version == 4
        log.close()
        world.running.pop().stop()
        verdict = verify(world.log, 0, VerifyOptions(tmp_path, table="after", contents=True))
        assert verdict.problems == []
        assert (verdict.is_whole, verdict.terms) == (True, 2)
    finally:
        world.close()


def _at_version_2(info: TableInfo) -> RegisterTable:
    path = f"{VERSIONS_DIRECTORY}/{manifest_name(2, NamingScheme.V2)}"
    return RegisterTable(info.table_id, info.incarnation, info.location, 2, path)
