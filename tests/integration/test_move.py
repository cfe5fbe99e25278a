"""Does a log go on on another cluster as if nothing had been, and nowhere else?"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest

from commitlog import CommitLog
from commitlog.adapters.kafka import KafkaLog
from commitlog.errors import CommitLogError, WrongLog
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
        cluster = KafkaLog.connect(up.kafka).cluster_id()
        stranger = EmbeddedBroker.start(tmp_path / "stranger")
        with stranger:
            refused = run("move", stranger.bootstrap_servers, "--root", str(up.root))
            assert refused.returncode == ExitCode.STOP
            assert "--cluster-id" in refused.stderr
        with EmbeddedBroker.start(tmp_path / "new", cluster_id=cluster) as broker:
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
            again = run("move", servers, "--root", str(up.root), "--json")
            assert json.loads(again.stdout)["partitions"] == [side]

            # The old cluster takes nothing any more, and says where the log is.
            with pytest.raises(WrongLog, match=servers):
                CommitLog.connect(up.kafka).append("shop$orders", numbers(99))
            before = KafkaLog.connect(up.kafka).read_raw(0, is_transactions=True).end_offset()
            with pytest.raises(CommitLogError):
                log.append("shop$orders", numbers(99), timeout=10)
            log.close()
            reader = KafkaLog.connect(up.kafka).read_raw(0, is_transactions=True)
            assert reader.end_offset() == before
            up.stop()

            new = ("--bootstrap-servers", servers, "--no-maintain")
            with service(tmp_path / "other", *new):
                log = CommitLog.connect(servers)
                assert log.open("shop$orders").count_rows() == 5
                made = log.append("shop$orders", numbers(5))
                assert made.sequence == side["sequence"] + 1
                assert log.open("shop$orders", 3).count_rows() == 2
                whole = run("verify", "--bootstrap-servers", servers, "--contents")
                assert whole.returncode == 0, whole.stdout + whole.stderr
