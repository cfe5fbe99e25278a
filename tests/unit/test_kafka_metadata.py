"""Does a process outlive a broker that knows of no broker, as a fenced one says of itself?"""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from commitlog.adapters.kafka import KafkaLog
from commitlog.errors import Unavailable

API_VERSIONS, METADATA = 18, 3
UNKNOWN_TOPIC, UNSUPPORTED_VERSION = 3, 35
SECONDS = 120.0
ASKING = """
import sys
from commitlog.adapters.kafka import KafkaLog
log = KafkaLog.connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.readline()
print(log.cluster_id())
log.close()
"""


def _text(value: str) -> bytes:
    return struct.pack(f">h{len(value)}s", len(value), value.encode())


class Broker:
    """The only broker of a cluster; it answers what its cluster is, and nothing else."""

    def __init__(self) -> None:
        self.is_fenced = False
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # Closed alone, it would leave the thread waiting in `accept`.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as asked:
                while len(size := asked.read(4)) == 4:
                    request = asked.read(struct.unpack(">i", size)[0])
                    answer = request[4:8] + self._answer(request)
                    connection.sendall(struct.pack(">i", len(answer)) + answer)
        except ConnectionError:
            pass

    def _answer(self, request: bytes) -> bytes:
        api, version = struct.unpack(">hh", request[:4])
        if api == API_VERSIONS:
            error = UNSUPPORTED_VERSION if version else 0
            return struct.pack(">hi6h", error, 2, METADATA, 0, 4, API_VERSIONS, 0, 0)
        assert api == METADATA
        at = 10 + struct.unpack(">h", request[8:10])[0]
        (count,) = struct.unpack(">i", request[at : at + 4])
        at, topics = at + 4, b""
        for _ in range(max(0, count)):
            (length,) = struct.unpack(">h", request[at : at + 2])
            name = request[at : at + 2 + length]
            at += len(name)
            topics += struct.pack(">h", UNKNOWN_TOPIC) + name + struct.pack(">bi", 0, 0)
        here = struct.pack(">i", 1) + _text("127.0.0.1") + struct.pack(">ih", self.port, -1)
        brokers = struct.pack(">i", 0) if self.is_fenced else struct.pack(">i", 1) + here
        controller, known = (-1 if self.is_fenced else 1), max(0, count)
        about = brokers + _text("made-up") + struct.pack(">ii", controller, known)
        return struct.pack(">i", 0) + about + topics


@pytest.fixture
def broker() -> Iterator[Broker]:
    running = Broker()
    yield running
    running.close()


@pytest.mark.slow
def test_a_process_that_asks_a_fenced_broker_lives_on(broker: Broker) -> None:
    # In a process of its own: the client's answer to this was to abort it.
    command = [sys.executable, "-c", ASKING, f"127.0.0.1:{broker.port}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) as asking:
        assert asking.stdin is not None
        assert asking.stdout is not None
        assert asking.stdout.readline() == "connected\n"
        broker.is_fenced = True
        said, _ = asking.communicate("\n", SECONDS)
    assert (asking.returncode, said) == (0, "made-up\n")


@pytest.mark.slow
def test_a_cluster_without_an_answer_is_unavailable_within_the_time_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"reading the cluster's id at {address}: no answ"):
            KafkaLog.connect(address, timeout_seconds=1)


@pytest.mark.slow
def test_the_address_of_the_http_server_is_told_from_the_brokers() -> None:
    """The ready line has both, and the other one answers in words that Kafka's client counts."""
    with socket.create_server(("127.0.0.1", 0)) as http:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = http.accept()
                    with connection:
                        connection.recv(1024)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        serving = threading.Thread(target=serve)
        serving.start()
        address = f"127.0.0.1:{http.getsockname()[1]}"
        try:
            with pytest.raises(Unavailable, match="an HTTP server answers there"):
                KafkaLog.connect(address, timeout_seconds=2)
        finally:
            http.shutdown(socket.SHUT_RDWR)
            serving.join(60)
