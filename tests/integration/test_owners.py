"""Only the loop touches a partition's state: not sockets, requests, workers, checks or readers."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from tests.integration.test_kept import one_round
from tests.owned import Ownership
from tests.service import SCHEMA, rows, service
from tests.waiting import wait_until


def test_no_method_of_the_partition_s_state_is_called_from_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ownership = Ownership(monkeypatch)
    with service(tmp_path) as made:
        client, runtime = made.client, made.client.runtime()
        one_round(made)
        client.create_table("t", SCHEMA, policy="latest")
        for number in range(3):
            client.append("t", rows(number))
        client.open("t", version=2)
        updates = lance.LanceOperation.UpdateMap({"b": "c"}, replace=False)
        operation = lance.LanceOperation.UpdateConfig(table_metadata_updates=updates)
        client.submit("t", operation, read_version=1, dry_run=True)
        for method in ("tables", "namespaces", "iceberg_tables", "rows_pending"):
            runtime.request(0, method)
        for method in ("table", "iceberg_table", "quarantine", "materialize"):
            runtime.request(0, method, table="t")
        status = runtime.request(0, "status", newest_rules=True, measures=True)
        assert status["ready"]
        # A term ends, a standby takes over, and looks back for what it didn't decide.
        standby = made.start(tmp_path / "standby")
        outcome = client.append("t", rows(9))
        made.running[0].stop()
        standby.await_leading()
        assert client.outcome(outcome.transaction_id).version == outcome.version
        one_round(made)
        wait_until(lambda: ownership.calls > 1_000, "calls that were looked at")
    assert not ownership.wrong, sorted(set(ownership.wrong))
