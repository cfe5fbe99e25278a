"""Does `commitlog up` with keys, TLS and a base path let in whom it should, to both APIs?"""

from __future__ import annotations

import hashlib
import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.certificates import make_certificate
from tests.integration.test_up import Service, log_on, service
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker]

BASE = "/lance"
KEYS = {name: f"a-long-secret-key-of-{name}" for name in ("admin", "writer", "reader", "nobody")}
GRANTS = {"admin": ("$", "admin"), "writer": ("shop", "write"), "reader": ("$", "read")}
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}


class Up:
    """A running `commitlog up`, asked over TLS."""

    def __init__(self, running: Service, certificate: Path) -> None:
        self.running = running
        self.root = running.root
        self._trust = ssl.create_default_context(cafile=str(certificate))

    def ask(
        self, who: str, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """Return the status and the body, decoded if it is JSON; `who` "" shows no key."""
        opened = http.client.HTTPSConnection(
            "127.0.0.1", self.running.port, timeout=60, context=self._trust
        )
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        shown = {"x-api-key": KEYS[who]} if who else {}
        sent = {"Content-Type": "application/json", **shown, **headers}
        try:
            opened.request(method, path, data if method == "POST" else None, sent)
            answer = opened.getresponse()
            found = answer.read()
        finally:
            opened.close()
        try:
            return answer.status, json.loads(found)
        except ValueError:
            return answer.status, found.decode()


@pytest.fixture(scope="module")
def up(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("secured")
    certificate, key = make_certificate(folder)
    lines = ["[keys]"]
    for name, secret in KEYS.items():
        lines.append(f'{name} = "sha256:{hashlib.sha256(secret.encode()).hexdigest()}"')
    for name, (what, access) in GRANTS.items():
        lines.append(f'[[grants]]\nto = "{name}"\non = "{what}"\ncan = "{access}"')
    (folder / "access.toml").write_text("\n".join(lines))
    options = {
        "--access-file": folder / "access.toml",
        "--base-path": BASE,
        "--tls-certificate": certificate,
        "--tls-key": key,
    }
    arguments = ["--sql", *(str(part) for pair in options.items() for part in pair)]
    with service(folder / "root", *log_on(broker), *arguments) as running:
        assert running.line.split()[1].startswith("https://")
        yield Up(running, certificate)


def rows() -> bytes:
    table = pa.table({"id": [1, 2, 3]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def principals(up: Up) -> set[str]:
    question = {"sql": "SELECT DISTINCT principal FROM transactions WHERE kind = 'transaction'"}
    status, found = up.ask("reader", "POST", f"{BASE}/v1/sql", question)
    assert status == 200, found
    return {row[0] for row in found["rows"]}


def test_both_apis_let_in_whom_they_should_and_say_who_it_was(up: Up) -> None:
    made = up.ask("admin", "POST", f"{BASE}/v1/namespaces", {"namespace": ["shop"]})
    assert made[0] == 200, made

    create = f"{BASE}/v1/table/shop$t/create"
    for who, status in (("", 401), ("nobody", 403), ("reader", 403), ("writer", 200)):
        assert up.ask(who, "POST", create, rows(), **ARROW)[0] == status, who
    count = f"{BASE}/v1/table/shop$t/count_rows"
    for who, status in (("", 401), ("nobody", 403), ("reader", 200), ("writer", 200)):
        assert up.ask(who, "POST", count)[0] == status, who
    assert up.ask("reader", "POST", count) == (200, 3)

    tables = f"{BASE}/v1/namespaces/shop/tables"
    field = {"id": 1, "name": "id", "required": False, "type": "long"}
    body = {"name": "ice", "schema": {"type": "struct", "schema-id": 0, "fields": [field]}}
    for who, status in (("", 401), ("nobody", 403), ("reader", 403), ("writer", 200)):
        assert up.ask(who, "POST", tables, body)[0] == status, who
    assert up.ask("reader", "GET", f"{tables}/ice")[0] == 200

    assert up.ask("admin", "POST", "/v1/table/shop$t/count_rows")[0] == 404, "past the base path"
    wait_until(
        lambda: principals(up) == {"admin", "writer"},
        "both principals",
        state=lambda: principals(up),
    )


def test_the_page_is_for_anybody_and_its_data_for_who_may_read_all(up: Up) -> None:
    status, page = up.ask("", "GET", f"{BASE}/")
    assert status == 200
    assert 'src="page/main.js"' in page
    assert up.ask("", "GET", f"{BASE}/page/key.js")[0] == 200
    for who, status in (("", 401), ("writer", 403), ("reader", 200)):
        assert up.ask(who, "GET", f"{BASE}/api/status")[0] == status, who
    assert up.ask("", "GET", "/readyz")[0] == 200
    assert up.ask("", "GET", "/metrics")[0] == 401
    assert up.ask("reader", "GET", "/metrics")[0] == 200
