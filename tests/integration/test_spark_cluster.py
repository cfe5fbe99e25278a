"""The audit, and compactions, on executors that are processes of their own, as on a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.child import lines_of
from tests.spark_start import python_path

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
]

REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS = 540


def test_a_log_is_audited_and_its_tables_compacted_by_a_cluster(
    broker: Any, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.spark_audit", "--transactions", "1500", "--compact"]
    command += ["--master", "local-cluster[2,1,1024]", "--into", str(tmp_path / "audit")]
    command += ["--bootstrap-servers", broker.bootstrap_servers]
    env = {"PYTHONPATH": python_path(REPOSITORY)}
    lines = lines_of(command, cwd=REPOSITORY, env=env, seconds=SECONDS)
    filled, *progress, found, seconds, rebuilt = lines[:-4]
    assert "'committed': " in filled
    assert "'incompatible': " in filled
    assert "'rejected': " in filled
    assert progress[-1].startswith("partition 0: 1,601 of 1,60")
    counts = "outcomes=1601, recomputed=1601, as_recorded=0, states=1, rows=0"
    assert f"{counts}, differences=[]" in found
    assert seconds.startswith("1,601 outcomes in ")
    assert rebuilt.startswith("rebuilt: 1,601 outcomes, ")
    *alone, removed, kept = lines[-4:]
    assert alone == ["compacted: 24 fragments became 2"] * 2
    assert removed.startswith("removed: ")
    assert kept.startswith("compacted by policy, ")
