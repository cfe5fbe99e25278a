"""Is a backup in a bucket whole, whatever was killed, and does another cluster go on from it?"""

from __future__ import annotations

import json
import signal
import uuid
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.storage import store_for
from commitlog.errors import Unavailable
from commitlog.model.records import Outcome
from consumers.broker.embedded import EmbeddedBroker
from consumers.tools.backup.check import check
from consumers.tools.backup.saved import NAME, digest, files_of, need_backup
from consumers.tools.backup.writer import Copied, back_up
from tests import forked
from tests.backup_child import RESTORE_POINTS
from tests.installed import need
from tests.integration.test_backup import log_of
from tests.integration.test_move_kills import DOMAINS, TABLES, led
from tests.integration.test_up import LEAN, run, service, write
from tests.object_store import s3_server
from tests.service import Service, rows
from tests.waiting import wait_until

need("moto", "obstore")
pytestmark = [pytest.mark.broker]

PLACE = "s3://bucket/backup"


def backed_up(servers: str, log: str, point: str = "nowhere") -> dict[str, Any]:
    """Back up from a process of its own, which ends at a point; return what it says."""
    command = ["-m", "tests.backup_child", point, servers, log, PLACE]
    done = forked.run(command, timeout=300)
    if point == "nowhere":
        assert done.returncode == 0, done.stderr[-2000:]
        return dict(json.loads(done.stdout))
    assert done.returncode == -signal.SIGKILL, (point, done.stderr[-2000:])
    return {}


def knows(root: Path, table: str, version: int | None) -> bool:
    """Return True if the index has a version of a table as the newest one."""
    found = run("history", table, "--root", str(root), "--json")
    versions = json.loads(found.stdout) if found.returncode == 0 else []
    return bool(versions) and versions[0]["version"] == version


def test_another_cluster_goes_on_from_a_backup_in_a_bucket(broker: Any, tmp_path: Path) -> None:
    here, old = broker.bootstrap_servers, tmp_path / "old"
    name = f"kept-{uuid.uuid4().hex[:8]}"  # the broker is shared, with a former try too
    with closing(KafkaLog.connect(here, name)) as made:
        made.create(partitions=3, domains=DOMAINS, tables_root=str(old / "tables"))
    committed: list[tuple[str, Outcome]] = []
    with s3_server(), led(here, old, name) as client:
        for table in TABLES:
            client.create_table(table, rows().schema)
            committed += [(table, client.append(table, rows(one))) for one in (1, 2)]
        first = backed_up(here, name)
        committed += [(table, client.append(table, rows(3, 4))) for table in TABLES]
        store = store_for(PLACE)
        before = store.read(NAME)
        for point in ("log/1/transactions", "file", NAME):
            backed_up(here, name, point)
            assert store.read(NAME) == before, "a run that is killed leaves the backup as it was"
        second = backed_up(here, name)
        assert second["positions"] == {part: last + 1 for part, last in first["positions"].items()}
        assert second["outcomes"] == second["transactions"] == 3
        # The run that was killed before `backup.json` had copied and listed all files.
        assert 0 == second["files"] < first["files_in_all"] < second["files_in_all"]
        backup = need_backup(store, PLACE)
        for path, one in files_of(store, backup).items():
            assert digest(store, path) == one.sha256

        moment = committed[-2][1].time_ms
        at = datetime.fromtimestamp(moment / 1000, UTC).isoformat()
        tables = tmp_path / "new" / "tables"
        with EmbeddedBroker.start(tmp_path / "there") as other:
            where = (
                *("--root", str(tmp_path / "new"), "--log", name),
                *("--bootstrap-servers", other.bootstrap_servers),
                *("--places", f"{old / 'tables'}={tables}"),
            )
            for point in RESTORE_POINTS:
                command = ["tests.backup_child", "restore", point, PLACE, *where, "--at", at]
                ended = forked.run(["-m", *command])
                assert ended.returncode == -signal.SIGKILL, point
            done = run("restore", PLACE, *where, "--at", at, "--json")
            assert done.returncode == 0, done.stderr
            said = json.loads(done.stdout)
            assert said["backed_up"] == second["positions"]
            with service(tmp_path / "new", *where[2:], *LEAN) as up:
                for table in TABLES:
                    kept = [o for one, o in committed if one == table and o.time_ms <= moment]
                    wait_until(partial(knows, tmp_path / "new", table, kept[-1].version), table)
                assert write(up, 5, name)[-1] == "1"
                whole = run("verify", *where, "--contents")
                assert whole.returncode == 0, whole.stdout + whole.stderr


def test_of_two_runs_at_once_the_later_one_to_end_takes_nothing_back(made: Service) -> None:
    """A bucket has no locks: what the first one wrote would be overwritten by less."""
    ended = list[Copied]()

    def another(what: str, count: int) -> None:
        if what == "files" and not ended:
            made.client.append("t", rows(9))
            ended.append(back_up(log_of(made), PLACE, None))

    made.client.create_table("t", rows().schema)
    with s3_server():
        for is_first in (True, False):
            ended.clear()
            made.client.append("t", rows(8))
            with pytest.raises(Unavailable, match=r"has written backup.json since this one began"):
                back_up(log_of(made), PLACE, None, another)
            [whole] = ended
            checked = check(PLACE)
            assert (checked.damage, checked.positions) == ([], whole.positions), is_first
        assert back_up(log_of(made), PLACE, None).outcomes == 0
