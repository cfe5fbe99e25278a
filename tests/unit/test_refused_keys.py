"""A store that refuses keys, as S3 does once they have expired: the error says what to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from commitlog.adapters import disk
from commitlog.adapters.storage import store_for
from consumers.commands.exit_codes import in_one_line
from tests.installed import need

need("obstore")

BODY = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


class _Refuses(BaseHTTPRequestHandler):
    status = 400

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(BODY)

    do_HEAD = do_GET = do_PUT = _refuse  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(params=[400, 403])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    handler = type("Refuses", (_Refuses,), {"status": request.param})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "key")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield "s3://lake/tables"
        server.shutdown()
        thread.join()


def test_a_request_whose_answer_has_a_code_is_explained_by_it(place: str) -> None:
    store = store_for(place)
    for call in (lambda: store.read("a"), lambda: store.write("a", b"1")):
        with pytest.raises(OSError, match="ExpiredToken") as caught:
            call()
        wanted = "ExpiredToken: give this process keys that are valid"
        assert wanted in disk.with_advice(caught.value)
        assert wanted in in_one_line(caught.value)


def test_a_head_request_has_no_code_so_its_causes_are_named(place: str) -> None:
    with pytest.raises(OSError, match="HEAD") as caught:
        store_for(place).size("a")
    assert "if keys have expired" in in_one_line(caught.value)
    assert "start this process again" in disk.with_advice(caught.value)


def test_a_file_of_this_machine_has_its_own_advice(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        (tmp_path / "performing HEAD 400 Bad Request").read_bytes()
    assert disk.advice(caught.value) == ""
