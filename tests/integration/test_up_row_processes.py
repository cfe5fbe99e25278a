"""Does `commitlog up` lose no more than one request to a process that aborts under load?"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from consumers.tools.bench.environment import descendants
from tests.hostile import forget_peak, resident_mib
from tests.integration.test_hostile_clients import is_server
from tests.integration.test_up import Service, cmdline, log_on, service
from tests.namespace_world import ARROW_STREAM, arrow_stream, numbers
from tests.waiting import at_once

pytestmark = [pytest.mark.broker]
ABORTS, ASKERS = 5, 4


@pytest.fixture(scope="module")
def running(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("rows"), *log_on(broker)) as made:
        yield made


def ask(running: Service, path: str, body: bytes = b"{}", kind: str = "application/json") -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{running.port}{path}", data=body, headers={"Content-Type": kind}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def row_processes(running: Service) -> list[int]:
    """Return the processes for work on rows that belong to this service."""
    below = descendants(running.process.pid)
    return [pid for pid in below if b"consumers.servers.row_process" in cmdline(pid).split(b"\0")]


def test_an_abort_costs_the_request_that_it_hits_and_nothing_else(running: Service) -> None:
    made = ask(running, "/v1/table/a$t/create", arrow_stream(numbers(0, 50)), ARROW_STREAM)
    assert made[0] == 200, made
    stop = threading.Event()
    answers: list[tuple[int, Any]] = []
    commits: list[tuple[int, Any]] = []

    def read() -> None:
        while not stop.is_set():
            # Without a predicate the server counts by itself.
            answers.append(ask(running, "/v1/table/a$t/count_rows", b'{"predicate": "id >= 0"}'))

    def commit() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            commits.append(ask(running, f"/v1/table/a$d{number}/declare"))

    threads = [threading.Thread(target=read) for _ in range(ASKERS)]
    threads.append(threading.Thread(target=commit))
    for thread in threads:
        thread.start()
    killed: set[int] = set()
    deadline = time.monotonic() + 200
    while len(killed) < ABORTS:
        assert time.monotonic() < deadline
        seen = len(answers), len(commits)
        for pid in row_processes(running)[:1]:
            os.kill(pid, signal.SIGABRT)
            killed.add(pid)
        while len(answers) < seen[0] + 20 or len(commits) < seen[1] + 2:
            assert time.monotonic() < deadline, "others go on"
            time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join(120)
    lost = [answer for answer in answers if answer != (200, 50)]
    assert len(lost) <= len(killed), lost[:3]
    # One that is hit as it starts has done nothing yet.
    assert {status for status, _ in lost} <= {500, 503}, lost
    assert all("SIGABRT" in body["error"] for status, body in lost if status == 500), lost
    assert [one for one in commits if one[0] != 200] == []
    assert ask(running, "/v1/table/a$t/count_rows") == (200, 50)


def test_a_large_answer_is_in_no_process_s_memory(running: Service) -> None:
    """96 MiB of rows, which four ask for at once: the server has pieces of them."""
    rows = pa.table({"id": range(96), "b": [os.urandom(1024) * 1024] * 96})
    made = ask(running, "/v1/table/a$large/create", arrow_stream(rows), ARROW_STREAM)
    assert made[0] == 200, made
    (server,) = (one for one in descendants(running.process.pid) if is_server(one))
    forget_peak(server)
    before, found = resident_mib(server), []

    def read(_: int) -> None:
        asked = json.dumps({"vector": {}, "k": 10**6}).encode()
        path = f"http://127.0.0.1:{running.port}/v1/table/a$large/query"
        request = urllib.request.Request(path, asked, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=240) as answer:
            table = pa.ipc.open_file(answer.read()).read_all()
            same = table["b"][95].as_py() == rows["b"][95].as_py()
            found.append((table.num_rows, same))

    at_once(read, range(4))
    assert found == [(96, True)] * 4
    assert resident_mib(server) < before + 128
