"""Does a log go on on another cluster as if nothing had been, and nowhere else?"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient as KafkaAdmin

from commitlog import CommitLog
from commitlog.adapters.kafka import KafkaLog
from commitlog.client.history.feed import Subscription
from commitlog.errors import LogMoved, WrongLog
from consumers import cli
from consumers.broker.embedded import EmbeddedBroker
from consumers.commands.exit_codes import ExitCode
from tests import forked
from tests.integration.test_up import COMMAND, LEAN, Service, log_on, run, service
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker]

SCHEMA = pa.schema([("id", pa.int64())])
WAIT_SECONDS = 180.0


def numbers(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)}, schema=SCHEMA)


def test_a_log_is_moved_once_whatever_is_killed_meanwhile(broker: Any, tmp_path: Path) -> None:
    servers, name = broker.bootstrap_servers, f"moved-{uuid.uuid4().hex[:8]}"
    with (
        service(tmp_path / "old", *LEAN, "--log", name) as up,
        up.connect() as log,
        log.subscribe("shop$*", "beginning", missing_ok=True) as feed,
    ):
        root = ("--root", str(up.root), "--log", name)
        log.create_table("shop$orders", SCHEMA)
        for number in range(5):
            log.append("shop$orders", numbers(number))
        log.delete("shop$orders", "id = 4")
        killed(up.kafka, servers, name, up.root, "proved")
        check_closed(log, feed, up, servers)
        check_answers(up, servers)
        found = run("doctor", *root, "--json")
        assert found.returncode == ExitCode.REFUSED
        assert servers in found.stdout
        up.stop(signal.SIGKILL)
        refused = run("up", *root, "--port", "0")
        assert refused.returncode == ExitCode.STOP
        assert servers in refused.stderr
        early = run("committer", *root, "--bootstrap-servers", servers)
        assert early.returncode == ExitCode.STOP
        assert "use `commitlog move`" in early.stderr
        # Its broker alone is enough for the rest.
        with subprocess.Popen(
            [*COMMAND, "broker", "--root", str(up.root)], stdout=subprocess.PIPE, text=True
        ) as alone:
            assert alone.stdout is not None
            assert alone.stdout.readline().startswith("ready kafka")
            moved = run("move", servers, *root, "--json")
            again = run("move", servers, *root)
            alone.terminate()
        assert moved.returncode == 0, moved.stderr
        [side] = json.loads(moved.stdout)["partitions"]
        assert side["sequence"] == side["committed"] >= 7
        assert side["rows"] == {"shop$orders": 4}
        assert "4 rows on both" in again.stdout

        # The root's index is the log's, wherever it is.
        there_now = ("--bootstrap-servers", servers, "--log", name)
        with service(tmp_path / "old", *there_now, *LEAN):
            with CommitLog.connect(servers, name) as there:
                assert there.open("shop$orders").count_rows() == 4
                made = there.append("shop$orders", numbers(5))
                assert made.sequence == side["sequence"] + 1
                assert there.open("shop$orders", 3).count_rows() == 2
            whole = run("verify", *root, "--bootstrap-servers", servers, "--contents")
            assert whole.returncode == 0, whole.stdout + whole.stderr
            assert "index" in whole.stdout


def killed(old: str, new: str, log: str, root: Path, point: str) -> None:
    """Move a log, and end that by SIGKILL at a point."""
    done = forked.run(["-m", "tests.move_child", old, new, log, str(root), point], timeout=300)
    assert done.returncode == -signal.SIGKILL, (point, done.stderr[-2000:])


def check_answers(up: Service, servers: str) -> None:
    """See that HTTP says where the log is: to Lance's clients, to Iceberg's, and to operators."""
    moved = f"LogMoved {servers}"
    describe = ("/v1/table/shop$orders/describe", "POST")
    wait_until(lambda: up.get(*describe)[1].get("detail") == moved, "Lance's answer")
    assert up.get(*describe)[0] == 503
    wait_until(lambda: "LogMovedException" in str(up.get("/v1/namespaces")), "Iceberg's answer")
    status, said = up.get("/v1/namespaces")
    assert (status, servers in str(said)) == (503, True)
    status, said = up.get("/v1/log/feed")
    assert (status, servers in str(said)) == (503, True)
    wait_until(lambda: servers in str(up.get("/readyz")), "what /readyz says of it")


def check_closed(log: CommitLog, feed: Subscription, up: Service, servers: str) -> None:
    """See that the old cluster takes nothing, and tells everybody where the log is."""
    with pytest.raises(LogMoved, match=servers), up.connect() as late:
        late.append("shop$orders", numbers(99))
    before = end_of(up)
    ticket = log.submit("shop$orders", lance.LanceOperation.Append([]), read_version=1)
    with pytest.raises(LogMoved, match="log.outcome") as told:
        ticket.result(WAIT_SECONDS)
    assert told.value.bootstrap_servers == servers
    assert told.value.transaction_id == ticket.transaction_id
    with pytest.raises(LogMoved, match=servers):
        for_ever(lambda: log.open("shop$orders"))  # until the last leader's term ends
    with pytest.raises(LogMoved, match=servers):
        for_ever(lambda: feed.poll(0.2))
    log.close()
    assert end_of(up) == before


def end_of(up: Service) -> int:
    with (
        closing(KafkaLog.connect(up.kafka, up.log)) as log,
        closing(log.read_raw(0, is_transactions=True)) as reader,
    ):
        return reader.end_offset()


def for_ever(ask: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        ask()


def test_a_move_to_where_the_log_is_already_is_a_wrong_argument(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers, name = broker.bootstrap_servers, f"log-{uuid.uuid4().hex[:8]}"
    with closing(KafkaLog.connect(servers, log=name)) as log:
        log.create(tables_root=str(tmp_path / "tables"))
        code = cli.main(["move", servers, "--bootstrap-servers", servers, "--log", name])
        assert code == ExitCode.USAGE
        assert f"the log is on {servers} already" in capsys.readouterr().err
        log.genesis()


def test_a_backup_is_restored_to_another_cluster(broker: Any, tmp_path: Path) -> None:
    with service(tmp_path / "old", *LEAN, *log_on(broker)) as up:
        with up.connect() as log:
            log.create_table("t", SCHEMA)
            kept = log.append("t", numbers(1))
        assert run("backup", str(tmp_path / "backup"), "--root", str(up.root)).returncode == 0
        up.stop()
    shutil.rmtree(tmp_path / "old")
    with EmbeddedBroker.start(tmp_path / "new") as other:
        servers = other.bootstrap_servers
        on_other = ("--bootstrap-servers", servers, "--log", up.log)
        where = ("--root", str(tmp_path / "root"), *on_other)
        done = run("restore", str(tmp_path / "backup"), *where)
        assert done.returncode == 0, done.stderr
        tables = ("--tables-root", str(tmp_path / "old" / "tables"))
        with service(tmp_path / "root", *on_other, *tables, *LEAN):
            with CommitLog.connect(servers, up.log) as log:
                assert log.outcome(kept.transaction_id).sequence == kept.sequence
                assert log.append("t", numbers(2)).sequence == kept.sequence + 1
            whole = run("verify", *where, "--contents")
            assert whole.returncode == 0, whole.stdout + whole.stderr
        admin = KafkaAdmin({"bootstrap.servers": servers})
        topic = f"{up.log}.moved"
        admin.delete_topics([topic])[topic].result(120)
        # The broker answers before it has forgotten it.
        wait_until(lambda: topic not in admin.list_topics(timeout=120).topics, "its end")
        copied = pytest.raises(WrongLog, match="copied from another log")
        with copied, CommitLog.connect(servers, up.log) as log:
            log.tables()
