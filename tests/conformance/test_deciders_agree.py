"""`verify` and the audit on Spark decide a log again alike, whatever is in it.

One log holds what they could treat differently: a registered dataset, a clone, manifests staged by
native writes, two looks at one path (a clone's files lie at a path that its own have too), a
refused build, and an upgrade of the rules in the middle.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import lance
import pytest
from lance import LanceOperation

from commitlog.adapters import log_start
from commitlog.adapters.memory import MemoryLog
from commitlog.core.decisions import Need
from commitlog.core.partition import driving
from commitlog.core.partition.machine import Machine
from commitlog.errors import CorruptLog
from commitlog.model.limits import PROTOCOL_SUPPORTED, Rules
from commitlog.model.records import ProtocolVersion, Status, Transaction
from commitlog.spark.log_positions import outcomes_end
from commitlog.spark.recompute import audit_partition
from consumers.tools.verify import VerifyOptions, verify
from tests.core_world import World, append
from tests.service import SCHEMA, Service, rows, service

OLD = PROTOCOL_SUPPORTED - 1


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Service]:
    with mock.patch.object(log_start, "PROTOCOL_SUPPORTED", OLD), service(tmp_path) as made:
        yield made


def work(running: Service, name: str) -> None:
    """Do what decisions have to look around for."""
    client, path = running.client, running.root / "tables" / f"{name}.foreign"
    lance.write_dataset(rows(1, 2), str(path), schema=SCHEMA)
    client.register_table(f"{name}$registered", str(path))
    client.append(f"{name}$registered", rows(3))
    client.create_table(f"{name}$t", SCHEMA)
    client.append(f"{name}$t", rows(*range(8)))
    client.append(f"{name}$t", rows(*range(8, 12)))
    native = client.open(f"{name}$t")
    native.delete("id = 1")
    native.create_scalar_index("id", "BTREE")
    stale = client.table(f"{name}$t").version
    client.delete(f"{name}$t", "id = 2")
    image = lance.dataset(client.table(f"{name}$t").location, stale).get_fragments()[0]
    changed = image.delete("id = 3")
    assert changed is not None
    operation = LanceOperation.Delete([changed], [], "id = 3")
    assert client.submit(f"{name}$t", operation, read_version=stale).result().version
    source = client.table(f"{name}$t")
    clone = LanceOperation.Clone(True, None, source.version, source.location, None)
    client.submit(f"{name}$clone", clone).result().raise_for_conflict()
    client.append(f"{name}$clone", rows(20))
    client.delete(f"{name}$clone", "id = 4")
    with client.transact() as both:
        both.append(f"{name}$t", rows(30))
        both.delete(f"{name}$clone", "id = 5")
    refused = client.submit(f"{name}$t", LanceOperation.Restore(99)).result()
    assert refused.status is not Status.COMMITTED


def upgrade(running: Service) -> None:
    """Put the newest rules in force."""
    rules = Rules()
    record = ProtocolVersion(
        str(uuid.uuid4()),
        PROTOCOL_SUPPORTED,
        rules.id_horizon_ms,
        rules.history_versions,
        rules.operations_max,
    )
    MemoryLog(running.cluster).transactions_writer().append(record, partition=0)


def test_both_prove_the_same_log(running: Service) -> None:
    work(running, "before")
    upgrade(running)
    work(running, "after")
    verdict = verify(running.log, 0, VerifyOptions(root=running.root))
    audited = audit_partition(running.log, 0, outcomes_end(running.log, 0))
    assert verdict.problems == []
    assert audited.differences == []
    assert verdict.outcomes == audited.outcomes
    assert (verdict.decided_again, verdict.not_decided_again) == (verdict.outcomes, 0)
    assert (audited.recomputed, audited.as_recorded) == (audited.outcomes, 0)


def test_a_machine_that_asks_for_what_it_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.create()
    submitted = world.submitted(Transaction("a", (append(1, "a.lance"),)))
    (wanted,) = world.machine.prefetch(submitted)
    monkeypatch.setattr(Machine, "decide", lambda *_: Need((wanted,)))

    with pytest.raises(CorruptLog, match="what it was shown"):
        driving.drive(world.machine, submitted, world.observe)
