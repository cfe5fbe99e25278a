"""With `--fsync`, the power goes off at any write: nothing that was acknowledged is gone.

A whole service in one process, with a log that Kafka has on disk. Everything is looked at
afterwards by a new process's eyes: start, open by path, open by the log, append.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from pathlib import Path

import lance
import pytest

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.errors import Unavailable
from tests.power_cut import Machine, PowerCut
from tests.service import SCHEMA, Service, ids_of, on_memory, rows
from tests.tampering import Copy
from tests.waiting import wait_until

SCENARIO_SECONDS = 120.0
STRIDE = int(os.environ.get("POWER_CUT_STRIDE", "9"))
"""Of the writes of the scenario, so many lie between two that are cut."""
WRITES = 200
"""About as many changes of the disk as the scenario has; later cuts come after its end."""


class Scenario:
    """What a writer does, and what it was told so far."""

    def __init__(self, service: Service, machine: Machine) -> None:
        self.service, self._machine = service, machine
        self.told: list[tuple[str, int, list[int]]] = []
        """(table, version, ids in it) that opens by path, as its writer was told."""
        self.failure: BaseException | None = None
        self.is_over = threading.Event()

    def run(self) -> None:
        try:
            self._run(self.service.client)
        except BaseException as error:
            self.failure = error
        finally:
            self.is_over.set()

    def _run(self, client: CommitLog) -> None:
        for table, policy in (("every", "every"), ("latest", "latest")):
            client.create_table(table, SCHEMA, policy=policy)
            self._note(table, client.append(table, rows(1, 2, 3, 4)).version, [1, 2, 3, 4])
            first, second = client.open(table), client.open(table)
            first.delete("id = 1")
            second.delete("id = 3")
            # The second one was rebased: the leader wrote its deletion file.
            self._note(table, client.table(table).version, [2, 4])
            self._note(table, client.append(table, rows(5)).version, [2, 4, 5])

    def _note(self, table: str, version: int, ids: list[int]) -> None:
        if not self._machine.is_off.is_set():
            self.told.append((table, version, ids))


def run(root: Path, monkeypatch: pytest.MonkeyPatch, cut_at: int) -> tuple[Scenario, Machine]:
    """Run the scenario to its end or the power cut; return it with the machine."""
    service = Service(root)

    def off() -> None:
        service.cluster.is_reachable = False

    machine = Machine(cut_at, off)
    with monkeypatch.context() as patched:
        machine.install(patched)
        scenario = Scenario(service, machine)
        with contextlib.suppress(PowerCut):  # the first change is the clock's, as it starts
            service.start()
            threading.Thread(target=scenario.run, daemon=True).start()
        for _ in range(int(SCENARIO_SECONDS * 100)):
            if scenario.is_over.wait(0.01) or machine.is_off.is_set():
                break
        if not machine.is_off.is_set():
            assert scenario.is_over.is_set(), "the scenario hangs"
            assert scenario.failure is None, scenario.failure
        if cut_at:
            machine.is_off.set()
            off()
        for running in service.running:
            # Whoever lived on would write through the next test's machine, and cut its power.
            running.stop()
        service.client.close()
    return scenario, machine


def look(root: Path, log: MemoryLog, scenario: Scenario) -> None:
    """See that a new start finds everything, and goes on."""
    running = on_memory(log.cluster, root)
    client = CommitLog(lambda: MemoryLog(log.cluster))
    try:
        running.await_leading()
        for table in {table for table, _, _ in scenario.told}:
            _await_files(client, table)
        for table, version, ids in scenario.told:
            location = client.table(table).location
            assert ids_of(client.open(table, version)) == ids, f"{table} {version} by the log"
            assert ids_of(lance.dataset(location, version=version)) == ids, f"{table} {version}"
        for table in {table for table, _, _ in scenario.told}:
            location = client.table(table).location
            before = ids_of(client.open(table))
            client.append(table, rows(100))
            assert ids_of(client.open(table)) == [*before, 100]
            assert ids_of(lance.dataset(location)) == [*before, 100]
            assert not list(Path(location).glob("_quarantine/*")), "our own file was a stranger's"
    finally:
        client.close()
        running.stop()


def _await_files(client: CommitLog, table: str) -> None:
    """Wait until the new leader has come to a table that was made after its checkpoint."""

    def is_open() -> bool:
        try:
            client.open(table)
        except Unavailable:
            return False
        return True

    wait_until(is_open, f"files of {table}")


def test_the_scenario_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, machine = run(tmp_path / "root", monkeypatch, cut_at=0)
    assert len(scenario.told) == 6
    assert WRITES * 0.5 < machine.changes < WRITES * 1.5, machine.changes


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("cut_at", range(1, WRITES, STRIDE))
def test_nothing_acknowledged_is_gone_after_a_power_cut(
    cut_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    scenario, machine = run(root, monkeypatch, cut_at)
    seed = random.randrange(1 << 32)
    damaged = machine.come_back(random.Random(seed))
    print(f"seed {seed}", f"told {scenario.told}", *damaged, sep="\n")
    look(root, Copy(scenario.service.log).log, scenario)
