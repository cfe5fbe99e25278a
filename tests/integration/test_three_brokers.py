"""With brokers of three away: who commits on, and does `doctor` say what is kept?"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from commitlog.adapters.kafka import KafkaLog
from commitlog.protocol import outcomes_topic
from consumers import cli
from consumers.broker import ports
from consumers.broker.embedded import EmbeddedBroker
from consumers.commands.exit_codes import ExitCode
from tests.integration.test_move_kills import led
from tests.integration.test_up import run
from tests.service import SCHEMA, ids_of, rows
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

LOG = "commitlog"
ANSWER_SECONDS, GIVEN_UP_SECONDS = 10.0, 30.0


class Brokers:
    """Three brokers, of which the first one is the controller too."""

    def __init__(self, folder: Path) -> None:
        """Start them."""
        self._folder = folder
        self._ports: list[int] = []
        while len(self._ports) < 4:
            port = ports.pick()
            self._ports += [port] if port not in self._ports else []
        self.running: dict[int, EmbeddedBroker] = {}
        for number in (1, 2, 3):
            self.start(number)

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports[1:])

    def start(self, number: int) -> None:
        controller, own = self._ports[0], self._ports[number]
        settings = {
            "node.id": str(number),
            "process.roles": "broker,controller" if number == 1 else "broker",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{own}",
            "default.replication.factor": "3",
        }
        if number == 1:
            settings["listeners"] += f",CONTROLLER://127.0.0.1:{controller}"
        self.running[number] = EmbeddedBroker.start(
            self._folder / f"broker-{number}",
            port=own,
            settings=settings,
            cluster_id=self.running[1].cluster_id if number > 1 else "",
        )

    def kill(self, number: int) -> None:
        """Kill one; the others may name it as the controller for a while."""
        self.running[number].kill()

    def pause(self, number: int) -> None:
        """Have one hang: it keeps its connections, and takes new ones."""
        os.kill(self.running[number].pid, signal.SIGSTOP)

    def lead(self, topic: str) -> int:
        """Return who leads a topic."""
        client = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        found = client.list_topics(topic, timeout=WAIT_SECONDS).topics[topic]
        return int(found.partitions[0].leader)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    yield made
    for one in reversed(made.running.values()):
        one.stop()


class Doctor:
    """Asks `doctor` until it says what is awaited: brokers hear of each other little by little."""

    def __init__(self, servers: str) -> None:
        """Remember whom to ask about."""
        self._servers = servers

    def ask(self, *flags: str) -> tuple[int, list[dict[str, Any]]]:
        """Return the exit code and all findings; none if the cluster did not answer in time."""
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            code = cli.main(["doctor", "--bootstrap-servers", self._servers, "--json", *flags])
        return code, json.loads(shown.getvalue() or "[]")

    def says(self, level: str, words: str, *flags: str, code: ExitCode | None = None) -> None:
        """Wait for a finding about durability with this level and these words, and the code."""

        def holds() -> bool:
            self._last = self.ask(*flags)
            ended, findings = self._last
            told = [one for one in findings if one["name"] == "durability"]
            return code in (None, ended) and any(
                one["level"] == level and words in one["message"] for one in told
            )

        wait_until(holds, f"{level}: {words}", state=lambda: self._last)


def test_what_a_cluster_survives_is_told_by_its_copies(brokers: Brokers, tmp_path: Path) -> None:
    servers, root = brokers.servers, tmp_path / "root"
    doctor = Doctor(servers)
    made = run("init", "--bootstrap-servers", servers, "--root", str(root))
    assert made.returncode == 0, made.stderr
    with led(servers, root, LOG) as log:
        log.create_table("t", SCHEMA)
        log.append("t", rows(1))
        whole = "3 copies, and a commit is acknowledged once 2 have it; all are in step"
        doctor.says("ok", whole, code=ExitCode.OK)

    brokers.kill(3)
    doctor.says("warn", "2 of 3 copies")
    with led(servers, root, LOG) as log:
        assert log.append("t", rows(2)).version == 3, "two copies are enough"
        doctor.says("warn", "2 of 3 copies", code=ExitCode.OK)
        doctor.says("warn", "2 of 3 copies", "--strict", code=ExitCode.REFUSED)

    brokers.kill(2)
    doctor.says("fail", "nothing is acknowledged now", code=ExitCode.REFUSED)

    brokers.start(2)
    doctor.says("warn", "2 of 3 copies")
    with led(servers, root, LOG) as log:
        assert log.append("t", rows(3)).version == 4
        assert ids_of(log.open("t")) == [1, 2, 3]


def led_by_another(brokers: Brokers, root: Path) -> KafkaLog:
    """Make logs until Kafka chooses another broker than the controller, which nobody replaces."""
    for number in range(50):
        log = KafkaLog.connect(brokers.servers, f"log-{number}", timeout_seconds=ANSWER_SECONDS)
        log.create(tables_root=str(root / log.name))
        if brokers.lead(outcomes_topic(log.name)) != 1:
            return log
        log.close()
    raise AssertionError("broker 1 leads each log")


def test_commits_go_on_while_a_broker_hangs_or_a_dead_one_is_named_as_the_controller(
    brokers: Brokers, tmp_path: Path
) -> None:
    servers, root = brokers.servers, tmp_path / "root"
    with contextlib.closing(led_by_another(brokers, tmp_path)) as asked:
        outcomes = outcomes_topic(asked.name)
        with led(servers, root, asked.name) as log:
            log.create_table("t", SCHEMA)
            hanging = brokers.lead(outcomes)
            brokers.pause(hanging)
            assert log.append("t", rows(1), timeout=GIVEN_UP_SECONDS).version == 2
            os.kill(brokers.running[hanging].pid, signal.SIGCONT)
        dead = 3 if brokers.lead(outcomes) != 3 else 2
        wait_until(lambda: asked._metadata().controller_id == dead, "a broker to be named")
        brokers.kill(dead)
        asked.check_settings()
