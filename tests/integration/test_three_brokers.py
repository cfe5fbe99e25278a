"""With brokers of three away: who commits on, and does `doctor` say what is kept?"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumers import cli
from consumers.broker import EmbeddedBroker, ports
from consumers.commands.exit_codes import ExitCode
from tests.integration.test_move_kills import leading
from tests.integration.test_up import run
from tests.service import SCHEMA, ids_of, rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

LOG = "commitlog"


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


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    yield made
    for one in reversed(made.running.values()):
        one.stop()


def asked(servers: str, *flags: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code of `doctor`, and what it says of durability."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        code = cli.main(["doctor", "--bootstrap-servers", servers, "--json", *flags])
    found = [one for one in json.loads(shown.getvalue()) if one["name"] == "durability"]
    return code, found[0] if found else {"level": "", "message": ""}


def test_what_a_cluster_survives_is_told_by_its_copies(brokers: Brokers, tmp_path: Path) -> None:
    servers, root = brokers.servers, tmp_path / "root"
    made = run("init", "--bootstrap-servers", servers, "--root", str(root))
    assert made.returncode == 0, made.stderr
    with leading(servers, root, LOG) as log:
        log.create_table("t", SCHEMA)
        log.append("t", rows(1))
    code, found = asked(servers)
    assert found["level"] == "ok", found
    assert "3 copies, and a commit is acknowledged once 2 have it" in found["message"]

    brokers.running[3].kill()
    wait_until(lambda: asked(servers)[1]["level"] == "warn", "a copy that is missed")
    assert "2 of 3 copies" in asked(servers)[1]["message"]
    with leading(servers, root, LOG) as log:
        assert log.append("t", rows(2)).version == 3, "two copies are enough"
        assert asked(servers)[0] == ExitCode.OK
        assert asked(servers, "--strict")[0] == ExitCode.REFUSED

    brokers.running[2].kill()
    wait_until(lambda: asked(servers)[1]["level"] == "fail", "two copies that are missed")
    code, found = asked(servers)
    assert code == ExitCode.REFUSED
    assert "nothing is acknowledged now" in found["message"]

    brokers.start(2)
    wait_until(lambda: asked(servers)[1]["level"] == "warn", "a copy that is there again")
    with leading(servers, root, LOG) as log:
        assert log.append("t", rows(3)).version == 4
        assert ids_of(log.open("t")) == [1, 2, 3]
