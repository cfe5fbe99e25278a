"""Is a removal that was killed at any of its steps finished by the next, and nothing else lost?"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from tests import forked
from tests.integration.test_up import LEAN, log_on, run, service

pytestmark = [pytest.mark.broker]

CHILD_SECONDS = 300.0
STEPS_MAX = 60
SCHEMA = pa.schema([("id", pa.int64())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)}, schema=SCHEMA)


def test_killed_at_every_step(broker: Any, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with service(root, *LEAN, *log_on(broker)) as up, up.connect() as log:
        for name in ("kept", "gone"):
            log.create_table(name, SCHEMA)
            log.append(name, rows(1, 2))
            log.append(name, rows(3))
            log.delete(name, "id = 1")
        place, dropped = (Path(log.table(name).location) for name in ("kept", "gone"))
        log.compact("kept")
        plain = lance.dataset(str(place))
        log.expire_versions("kept", retain_versions=1)
        log.drop_table("gone")
        kills = 0
        for step in range(1, STEPS_MAX):
            # Each child finds less to do, so the first steps of what is left come again.
            child = ["-m", "tests.integration.removal_child", up.kafka, up.log]
            done = forked.run([*child, str(1 + step % 8)], timeout=CHILD_SECONDS)
            assert sorted(lance.dataset(str(place)).to_table()["id"].to_pylist()) == [2, 3]
            if done.returncode == 0:
                break
            assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
            kills += 1
        assert kills >= 4
        assert not dropped.exists()
        assert len(list(place.glob("data/*"))) == 1
        assert sorted(plain.to_table()["id"].to_pylist()) == [2, 3], "a reader by path goes on"
        log.append("kept", rows(9))
        assert log.open("kept").count_rows() == 3
        verdict = run("verify", "--contents", "--root", str(root), timeout=CHILD_SECONDS)
        assert verdict.returncode == 0, verdict.stdout + verdict.stderr
