"""Does a log go on on another cluster as if nothing had been, and nowhere else?"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient as KafkaAdmin

from commitlog import CommitLog
from commitlog.adapters.kafka import KafkaLog
from commitlog.client.feed import Subscription
from commitlog.errors import CommitLogError, LogMoved, WrongLog
from consumers.broker import EmbeddedBroker
from consumers.commands.exit_codes import ExitCode
from tests.integration.test_up import COMMAND, run, service

pytestmark = [pytest.mark.broker]

SCHEMA = pa.schema([("id", pa.int64())])
WAIT_SECONDS = 180.0


def numbers(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)}, schema=SCHEMA)


def has_topics(servers: str) -> bool:
    log = KafkaLog.connect(servers)
    try:
        return log.partitions() > 0
    except CommitLogError:
        return False
    finally:
        log.close()


def test_a_log_is_moved_once_however_often_that_is_killed(tmp_path: Path) -> None:
    with service(tmp_path / "old", "--no-maintain") as up:
        log = CommitLog.connect(up.kafka)
        log.create_table("shop$orders", SCHEMA)
        for number in range(5):
            log.append("shop$orders", numbers(number))
        log.delete("shop$orders", "id = 4")
        feed = log.subscribe("shop$*", "beginning")
        with EmbeddedBroker.start(tmp_path / "new") as broker:
            servers = broker.bootstrap_servers
            killed = subprocess.Popen([*COMMAND, "move", servers, "--root", str(up.root)])
            deadline = time.monotonic() + WAIT_SECONDS
            while not has_topics(servers):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            killed.kill()
            killed.wait(30)
            moved = run("move", servers, "--root", str(up.root), "--json")
            assert moved.returncode == 0, moved.stderr
            [side] = json.loads(moved.stdout)["partitions"]
            assert side["sequence"] == side["committed"] >= 7
            assert side["rows"] == {"shop$orders": 4}
            again = run("move", servers, "--root", str(up.root))
            assert "shop$orders" in again.stdout
            assert "4 rows on both" in again.stdout

            check_closed(log, feed, up.kafka, servers)
            found = run("doctor", "--root", str(up.root), "--json")
            assert found.returncode == ExitCode.REFUSED
            assert servers in found.stdout
            up.stop()

            # The root's index is the log's, wherever it is.
            with service(tmp_path / "old", "--bootstrap-servers", servers, "--no-maintain"):
                log = CommitLog.connect(servers)
                assert log.open("shop$orders").count_rows() == 4
                made = log.append("shop$orders", numbers(5))
                assert made.sequence == side["sequence"] + 1
                assert log.open("shop$orders", 3).count_rows() == 2
                where = ("--root", str(tmp_path / "old"), "--bootstrap-servers", servers)
                whole = run("verify", *where, "--contents")
                assert whole.returncode == 0, whole.stdout + whole.stderr
                assert "index" in whole.stdout


def check_closed(log: CommitLog, feed: Subscription, old: str, servers: str) -> None:
    """See that the old cluster takes nothing, and tells everybody where the log is."""
    with pytest.raises(LogMoved, match=servers):
        CommitLog.connect(old).append("shop$orders", numbers(99))
    before = KafkaLog.connect(old).read_raw(0, is_transactions=True).end_offset()
    ticket = log.submit("shop$orders", lance.LanceOperation.Append([]), read_version=1)
    with pytest.raises(LogMoved, match="log.outcome") as told:
        ticket.result(WAIT_SECONDS)
    assert told.value.bootstrap_servers == servers
    assert told.value.transaction_id == ticket.transaction_id
    with pytest.raises(LogMoved, match=servers):
        log.open("shop$orders")
    with pytest.raises(LogMoved, match=servers):
        poll_for_ever(feed)
    log.close()
    assert KafkaLog.connect(old).read_raw(0, is_transactions=True).end_offset() == before


def poll_for_ever(feed: Subscription) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        feed.poll(0.2)


def test_a_backup_is_restored_to_another_cluster(tmp_path: Path) -> None:
    with service(tmp_path / "old", "--no-maintain") as up:
        log = CommitLog.connect(up.kafka)
        log.create_table("t", SCHEMA)
        kept = log.append("t", numbers(1))
        assert run("backup", str(tmp_path / "backup"), "--root", str(up.root)).returncode == 0
        up.stop()
    shutil.rmtree(tmp_path / "old")
    with EmbeddedBroker.start(tmp_path / "new") as broker:
        where = ("--root", str(tmp_path / "root"), "--bootstrap-servers", broker.bootstrap_servers)
        done = run("restore", str(tmp_path / "backup"), *where)
        assert done.returncode == 0, done.stderr
        tables = ("--tables-root", str(tmp_path / "old" / "tables"))
        with service(tmp_path / "root", *where[2:], *tables, "--no-maintain"):
            log = CommitLog.connect(broker.bootstrap_servers)
            assert log.outcome(kept.transaction_id).sequence == kept.sequence
            assert log.append("t", numbers(2)).sequence == kept.sequence + 1
            whole = run("verify", *where, "--contents")
            assert whole.returncode == 0, whole.stdout + whole.stderr
        admin = KafkaAdmin({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_topics(["commitlog.moved"])["commitlog.moved"].result(30)
        with pytest.raises(WrongLog, match="copied from another log"):
            CommitLog.connect(broker.bootstrap_servers).tables()
