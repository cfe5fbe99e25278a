"""kill -9 around an Iceberg commit: before its outcome nothing is seen, after it all is there."""

from __future__ import annotations

import contextlib
import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import CommitLog
from commitlog.adapters.kafka import KafkaLog
from commitlog.core.iceberg.reading import dump_json
from commitlog.model.operations import CreateNamespace, IcebergChange, Operation
from commitlog.model.records import Outcome, Transaction
from consumers.servers.iceberg.log import LogIcebergService
from tests import forked
from tests.iceberg_files_world import find_orphans
from tests.integration.iceberg_child import AFTER_FILE, BEFORE_FILE, HOW
from tests.unit.iceberg_examples import create_updates
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker]

_NAME = ("crash", "t")
_WAIT_SECONDS = 180


class Crashing:
    """A log on a real broker whose leaders die."""

    def __init__(self, servers: str, root: Path) -> None:
        self.name = f"iceberg-{uuid.uuid4().hex[:8]}"
        self.servers, self.root = servers, root
        self.tables_root = str(root / "tables")
        self.log = KafkaLog.connect(servers, log=self.name, settings={}, timeout_seconds=30)
        self.log.create(tables_root=self.tables_root)
        self._writer = self.log.transactions_writer()

    def append(self, operation: Operation) -> str:
        id_ = str(uuid.uuid4())
        self._writer.append(Transaction(id_, (operation,)), partition=0)
        assert self._writer.flush(120) == 0
        return id_

    def set_property(self, value: str) -> str:
        updates = [{"action": "set-properties", "updates": {"crash": value}}]
        return self.append(IcebergChange(_NAME, "[]", dump_json(updates)))

    @contextlib.contextmanager
    def leader(self, how: str) -> Iterator[forked.Program]:
        command = ["-m", "tests.integration.iceberg_child", self.servers, self.name]
        with forked.beside([*command, str(self.root), how]) as (child, said):
            assert said.readline() == "leads\n"
            yield child

    def outcomes(self) -> dict[str, Outcome]:
        reader = self.log.read_outcomes(0, 0)
        found: dict[str, Outcome] = {}
        try:
            end = reader.end_offset()
            while reader.position() < end:
                for answered in reader.poll(timeout_seconds=1):
                    if isinstance(answered.record, Outcome):
                        found[answered.record.transaction_id] = answered.record
        finally:
            reader.close()
        return found

    def wait_for(self, ids: list[str]) -> None:
        wait_until(lambda: self.outcomes().keys() >= set(ids), f"outcomes of {ids}")

    def orphans(self) -> list[str]:
        return [orphan.location for orphan in find_orphans(self.log, self.tables_root)]

    def files(self) -> set[str]:
        return {str(path) for path in Path(self.tables_root).rglob("*.metadata.json")}


def test_kill_around_the_metadata_file_and_the_outcome(broker: Any, tmp_path: Path) -> None:
    crashing = Crashing(broker.bootstrap_servers, tmp_path)
    asked = [crashing.append(CreateNamespace(_NAME[:1]))]
    location = f"{crashing.tables_root}/crash/t"
    made = IcebergChange(_NAME, '[{"type":"assert-create"}]', dump_json(create_updates(location)))
    asked.append(crashing.append(made))
    for how in HOW:
        with crashing.leader(how) as child:
            # What the leader before left undecided, this one decides first.
            crashing.wait_for(asked)
            asked.append(crashing.set_property(how))
            assert child.wait(_WAIT_SECONDS) == -signal.SIGKILL
        outcomes = crashing.outcomes()
        files, orphans = crashing.files(), crashing.orphans()
        if how in {BEFORE_FILE, AFTER_FILE}:
            assert asked[-1] not in outcomes
            assert len(orphans) == (how == AFTER_FILE)
            for orphan in orphans:
                assert json.loads(Path(orphan).read_bytes())["properties"]["crash"] == how
        else:
            (result,) = outcomes[asked[-1]].results
            assert result.metadata_location in files
            assert not orphans
    with (
        crashing.leader("never"),
        CommitLog.connect(crashing.servers, crashing.name) as client,
    ):
        crashing.wait_for(asked)
        table = LogIcebergService(client).view().tables[_NAME]
        assert table.properties["crash"] == HOW[-1]
        written = {entry.value["metadata-file"] for entry in table.metadata_log}
        assert crashing.files() == written | {table.metadata_location}
        assert json.loads(Path(table.metadata_location).read_bytes()) == json.loads(table.to_json())
        assert not crashing.orphans()
    crashing.log.close()
