"""A crowd of hostile clients, and a polite one beside it that is timed.

    python -m tests.hostile http://127.0.0.1:2333 --seconds 3600

The crowd holds hundreds of connections: half-sent heads and bodies, bodies that drip, JSON that is
fuzzed, nested or huge, Arrow that is mutated or unfolds into gigabytes. Nothing of it may end the
server, and the polite client is answered as long as it lasts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import hashlib
import http.client
import io
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from consumers.runtime.process import be_nice

CONNECTIONS = 500
WAITING = 440
"""Of the connections, those that send slowly, half, or nothing."""
AT_WORK = "at work"
"""The crowd's first line, once it has made what takes it long."""
ARROW_STREAM = "application/vnd.apache.arrow.stream"
POLITE = ["polite", "t"]
POLITE_KEY, HOSTILE_KEY = "polite-0123456789abcdef", "hostile-0123456789abcdef"
CROWD_NICENESS = 5
"""The crowd stands for other machines: it gets less of the processors than the service."""
HUGE_AT_ONCE = 2
"""So many of the largest bodies are on their way: networks are slower than a machine's memory."""
REQUEST_SECONDS = 60.0
ANSWERS_MIN, LONGER_MAX = 20, 12
"""The crowd goes on until it was answered so often, for so many times its seconds at most: on a
machine with little to spare, it takes long to make what it sends."""
MIB = 1024 * 1024
JSON_BYTES_MAX = 32 * MIB
_JSON_PATHS = (
    *("/v1/table/x$t/version/create", "/v1/table/x$t/query", "/v1/table/x$t/describe"),
    *("/v1/table/batch-commit", "/v1/table/x$t/count_rows", "/v1/table/x$t/create_index"),
    *("/v1/namespace/x/create", "/v1/log/transactions", "/v1/transactions/commit"),
    *("/v1/namespaces/x/tables", "/v1/table/x$t/update", "/v1/table/x$t/delete"),
)
_ITEMS = (b"{}", b"0", b'""', b"[]", b'{"create_table_version":{}}')
_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 2**63, 1e308, "", "\u0000", "..", "$", "é" * 200, [], {}, [[]], {"": {}}),
    *("x" * 10_000, [0] * 10_000, {"vector": {"single_vector": [0.0] * 10_000}}),
)
_NAMES = (
    *("id", "version", "manifest_path", "k", "vector", "filter", "columns", "predicate", "updates"),
    *("operations", "requirements", "table-changes", "limit", "page_token", "properties", "mode"),
)


def fuzzed(chance: random.Random, depth: int = 0) -> Any:
    """Return some JSON, most of it of the shape that requests have."""
    kind = chance.random()
    if depth < 4 and kind < 0.3:
        names = chance.sample(_NAMES, chance.randrange(len(_NAMES)))
        return {name: fuzzed(chance, depth + 1) for name in names}
    if depth < 4 and kind < 0.4:
        return [fuzzed(chance, depth + 1) for _ in range(chance.randrange(5))]
    return chance.choice(_VALUES)


def stream(rows: pa.Table, compression: str | None = None) -> bytes:
    """Return rows as an Arrow stream."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def mutated(chance: random.Random, data: bytes) -> bytes:
    """Return a stream with some bytes changed, cut off, or repeated."""
    found = bytearray(data)
    for _ in range(chance.randrange(1, 12)):
        found[chance.randrange(len(found))] = chance.randrange(256)
    if chance.random() < 0.2:
        del found[chance.randrange(len(found)) :]
    return bytes(found * 2 if chance.random() < 0.1 else found)


@cache
def huge_json(item: bytes) -> bytes:
    """Return as large a body as may be, of one thing again and again."""
    most = JSON_BYTES_MAX - 1000
    return b'{"operations":[' + b",".join([item] * (most // (len(item) + 1))) + b"]}"


@cache
def endless_text() -> bytes:
    """Return a text without an end, in each of whose quotes one might begin."""
    return b'{"filter":' + b"[" * 101 + b'"' + b'\\",' * 700_000


@cache
def unfolding_json() -> bytes:
    """Return little that becomes 256 MiB."""
    return gzip.compress(b'{"id":"' + b" " * (256 * MIB) + b'"}', 1)


@cache
def unfolding_rows() -> bytes:
    """Return little that becomes 1.6 GB."""
    batch = pa.record_batch({"id": pa.array([0] * 2_000_000, pa.int64())})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        for _ in range(100):
            writer.write_batch(batch)
    return sink.getvalue()


@dataclass(slots=True)
class Crowd:
    """Everybody who means harm."""

    host: str
    port: int
    seed: int
    key: str = ""
    answers: Counter[str] = field(default_factory=Counter)
    is_over: bool = False
    network: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(HUGE_AT_ONCE))

    async def run(self, seconds: float) -> Counter[str]:
        """Do harm for a while; return how it was answered."""
        active: list[Callable[[random.Random], Awaitable[None]]] = [
            *(self._json, self._json, self._nested, self._huge, self._arrow, self._arrow),
            *(self._unfolding_json, self._unfolding_rows, self._endless, self._costly),
        ]
        waiting = [self._half_head, self._half_body, self._drip, self._silent]
        tasks = [
            asyncio.create_task(self._again(waiting[n % len(waiting)], n)) for n in range(WAITING)
        ]
        tasks += [
            asyncio.create_task(self._again(active[n % len(active)], n))
            for n in range(WAITING, CONNECTIONS)
        ]
        until = time.monotonic() + LONGER_MAX * seconds
        await asyncio.sleep(seconds)
        while sum(self.answers.values()) < ANSWERS_MIN and time.monotonic() < until:
            await asyncio.sleep(0.5)
        self.is_over = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return self.answers

    async def _again(self, harm: Callable[[random.Random], Awaitable[None]], number: int) -> None:
        chance = random.Random(f"{self.seed}/{number}")
        while not self.is_over:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await harm(chance)
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                self.answers[type(error).__name__] += 1
            await asyncio.sleep(chance.random() * 0.2)

    async def _send(
        self, path: str, body: bytes, *, kind: str = "application/json", encoding: str = ""
    ) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            more = f"Content-Encoding: {encoding}\r\n" if encoding else ""
            more += f"x-api-key: {self.key}\r\n" if self.key else ""
            head = (
                f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n{more}"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode())
            writer.write(body)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            line = await reader.readline()
            self.answers[line.split()[1].decode() if line else "closed"] += 1
        finally:
            writer.close()

    async def _json(self, chance: random.Random) -> None:
        body = json.dumps(fuzzed(chance)).encode()
        await self._send(chance.choice(_JSON_PATHS), body)

    async def _nested(self, chance: random.Random) -> None:
        deep = chance.choice((b"[", b'{"a":', b'{"operations":[')) * chance.randrange(1, 200_000)
        await self._send(chance.choice(_JSON_PATHS), deep)

    async def _huge(self, chance: random.Random) -> None:
        async with self.network:
            await self._send(chance.choice(_JSON_PATHS), huge_json(chance.choice(_ITEMS)))

    async def _endless(self, chance: random.Random) -> None:
        await self._send(chance.choice(_JSON_PATHS), endless_text())

    async def _costly(self, chance: random.Random) -> None:
        asked = {"predicate": f"repeat(s, {chance.randrange(10**8)}) = s"}
        await self._send("/v1/table/hostile$rows/count_rows", json.dumps(asked).encode())

    async def _arrow(self, chance: random.Random) -> None:
        rows = pa.table({"id": list(range(50)), "x": [[0.5] * 4] * 50, "s": ["é"] * 50})
        data = mutated(chance, stream(rows, chance.choice((None, "zstd", "lz4"))))
        await self._send("/v1/table/hostile$rows/insert", data, kind=ARROW_STREAM)

    async def _unfolding_json(self, chance: random.Random) -> None:
        await self._send(chance.choice(_JSON_PATHS), unfolding_json(), encoding="gzip")

    async def _unfolding_rows(self, chance: random.Random) -> None:
        path = f"/v1/table/hostile$t{chance.randrange(4)}/create?mode=overwrite"
        await self._send(path, unfolding_rows(), kind=ARROW_STREAM)

    async def _begin(self, data: bytes) -> None:
        """Send something, and wait until the server has had enough."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(data)
            await writer.drain()
            line = await reader.readline()
            self.answers[line.split()[1].decode() if line else "closed"] += 1
        finally:
            writer.close()

    async def _half_head(self, chance: random.Random) -> None:
        await self._begin(b"POST /v1/table/a/describe HTTP/1.1\r\nHost: x\r\nX-Long: ")

    async def _half_body(self, chance: random.Random) -> None:
        head = b"POST /v1/table/a/describe HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n\r\n"
        await self._begin(head + b"[" * chance.randrange(100_000))

    async def _silent(self, chance: random.Random) -> None:
        await self._begin(b"")

    async def _drip(self, chance: random.Random) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            head = b"POST /v1/table/a/describe HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n"
            writer.write(head)
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        line = await reader.readline()
                        self.answers[line.split()[1].decode() if line else "closed"] += 1
                        return
        finally:
            writer.close()


@dataclass(slots=True)
class Polite:
    """A client that asks for little, one thing after another."""

    host: str
    port: int
    key: str = ""
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """How long each answer took, by what was asked."""
    refused: Counter[int] = field(default_factory=Counter)
    inserted: int = 0

    def make_table(self) -> None:
        """Make the table that it works on, and one for the crowd."""
        for table in ("$".join(POLITE), "hostile$rows"):
            status = self._send(f"/v1/table/{table}/create", self._row(0), ARROW_STREAM)
            assert status == 200, status
        self.inserted = 1

    def run(self, seconds: float, beside: subprocess.Popen[str] | None = None) -> None:
        """Ask for a while, and note how long each answer took.

        It goes on as long as the crowd `beside` it does.
        """
        table, until = "$".join(POLITE), time.monotonic() + seconds
        number = 0
        while time.monotonic() < until or (beside is not None and beside.poll() is None):
            number += 1
            asked = "insert" if number % 10 == 0 else "describe" if number % 2 else "count_rows"
            path, began = f"/v1/table/{table}/{asked}", time.monotonic()
            if asked == "insert":
                status = self._send(path, self._row(number), ARROW_STREAM)
                self.inserted += status == 200
            else:
                status = self._send(path, b"{}")
            self.seconds[asked].append(time.monotonic() - began)
            if status != 200:
                self.refused[status] += 1
            time.sleep(0.02)

    def count(self) -> int:
        """Return how many rows its table has."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=REQUEST_SECONDS)
        path = f"/v1/table/{'$'.join(POLITE)}/count_rows"
        connection.request("POST", path, b"{}", {"x-api-key": self.key})
        with connection.getresponse() as response:
            found = json.loads(response.read())
        connection.close()
        return int(found)

    @property
    def p99(self) -> float:
        """The time within which nearly all answers came."""
        return p99([one for times in self.seconds.values() for one in times])

    def _row(self, number: int) -> bytes:
        x = pa.array([[0.5] * 4], pa.list_(pa.float64()))
        return stream(pa.table({"id": [number], "x": x, "s": ["a"]}))

    def _send(self, path: str, body: bytes, kind: str = "application/json") -> int:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=REQUEST_SECONDS)
        try:
            connection.request("POST", path, body, {"Content-Type": kind, "x-api-key": self.key})
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()


def p99(times: list[float]) -> float:
    """Return the time within which nearly all were."""
    return statistics.quantiles(times, n=100)[-1] if len(times) > 1 else max(times)


def access_file(folder: Path) -> Path:
    """Write what lets the two be told apart; return where."""
    keys = (("polite", POLITE_KEY), ("hostile", HOSTILE_KEY))
    hashes = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in keys}
    lines = ["[keys]", *(f'{name} = "sha256:{one}"' for name, one in hashes.items())]
    lines += ["[[grants]]", 'to = "hostile"', 'on = "hostile"', 'can = "admin"']
    lines += ["[[grants]]", 'to = "polite"', 'on = "$"', 'can = "admin"']
    written = folder / "access.toml"
    written.write_text("\n".join(lines))
    return written


def resident_mib(pid: int) -> float:
    """Return the memory that a process has had at most since `forget_peak`, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} tells no peak")


def forget_peak(pid: int) -> None:
    """Have a process's peak counted from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def crowd(uri: str, seconds: float, seed: int, key: str = "") -> subprocess.Popen[str]:
    """Start a crowd in a process of its own; return once it is at work."""
    command = [sys.executable, "-m", "tests.hostile", uri, "--seconds", str(seconds)]
    command += ["--seed", str(seed), "--key", key]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert started.stdout is not None
    assert started.stdout.readline() == f"{AT_WORK}\n"
    return started


def main() -> None:
    """Be the crowd for a while, and print how it was answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uri")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--key", default="", help="what it shows as its API key")
    given = parser.parse_args()
    host, _, port = given.uri.removeprefix("http://").partition(":")
    # What takes long to make is made before.
    unfolding_json(), unfolding_rows(), endless_text(), *map(huge_json, _ITEMS)
    be_nice(CROWD_NICENESS)
    print(AT_WORK, flush=True)
    answers = asyncio.run(Crowd(host, int(port), given.seed, given.key).run(given.seconds))
    print(json.dumps({"seed": given.seed, "answers": dict(answers)}))


if __name__ == "__main__":
    main()
