"""An S3 server in this process, with one bucket, and tables in it."""

from __future__ import annotations

import http.client
import http.server
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from tests.service import on_memory

BUCKET = "bucket"
ROOT = f"s3://{BUCKET}/tables"
KEY, SECRET, REGION = "someone", "something", "us-east-1"
SETTING_UP = "x-setting-up"
"""A header of the requests that make the bucket: nobody has to sign them."""

_Start = Callable[..., Any]
_Application = Callable[[dict[str, Any], _Start], Iterable[bytes]]


class Conditions(Enum):
    """What the server makes of `If-None-Match`."""

    HELD = "held"
    REFUSED = "refused"
    """501, as stores answer that don't have it."""
    IGNORED = "ignored"


@contextmanager
def s3_server(
    conditions: Conditions = Conditions.HELD,
    *,
    is_in_environment: bool = True,
    guarding: Callable[[_Application], _Application] = lambda application: application,
) -> Iterator[str]:
    """Run a server and make the bucket; yield its address.

    The environment names the server, as for the cloud's own tools, unless told otherwise.
    `guarding` is put before the server.
    """
    from moto import backends
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = DomainDispatcherApplication(create_backend_app)
    served = guarding(_treating(moto, conditions))
    server = make_server("127.0.0.1", 0, served, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    # What an earlier server of this process held is still there.
    for method, path in (("POST", "/moto-api/reset"), ("PUT", f"/{BUCKET}")):
        connection.request(method, path, headers={SETTING_UP: "yes"})
        response = connection.getresponse()
        response.read()
        assert response.status == 200
    connection.close()
    endpoint = f"http://127.0.0.1:{server.port}"
    environment = {
        "AWS_ENDPOINT": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_ALLOW_HTTP": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items() if is_in_environment else ():
            patch.setenv(name, value)
        # moto looks through its package's folder twice for each request: two fifths of its CPU.
        names = frozenset(backends.list_of_moto_modules())
        patch.setattr(backends, "list_of_moto_modules", lambda: names)
        yield endpoint
    server.shutdown()
    thread.join(120)
    server.server_close()


@contextmanager
def keys_of_the_machine() -> Iterator[list[str]]:
    """Have clients ask the machine for the store's keys, as in a cloud; yield what they ask for.

    Whoever makes a client of the store asks again, and a cloud limits how often.
    """
    asked: list[str] = []
    ends = (datetime.now(UTC) + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ")
    keys = {"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": ends, "Expiration": ends}
    keys |= {"AccessKeyId": KEY, "SecretAccessKey": SECRET, "Token": "session"}

    class Machine(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            is_list = self.path.rstrip("/").endswith("security-credentials")
            body = b"role" if is_list else json.dumps(keys).encode()
            self.send_response(200)
            self.send_header("x-aws-ec2-metadata-token-ttl-seconds", "21600")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Machine) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        for name in ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_METADATA_ENDPOINT"):
            patch.setenv(name, f"http://127.0.0.1:{server.server_port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.delenv(name, raising=False)
        yield asked
        server.shutdown()
        thread.join(120)


def _treating(moto: _Application, conditions: Conditions) -> _Application:
    def application(request: dict[str, Any], start: _Start) -> Iterable[bytes]:
        is_conditional = request["REQUEST_METHOD"] == "PUT" and "HTTP_IF_NONE_MATCH" in request
        if is_conditional and conditions is Conditions.REFUSED:
            request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
            start("501 Not Implemented", [("Content-Type", "application/xml")])
            return [b"<Error><Code>NotImplemented</Code></Error>"]
        if is_conditional and conditions is Conditions.IGNORED:
            del request["HTTP_IF_NONE_MATCH"]
        return moto(request, start)

    return application


@contextmanager
def log_over_objects(folder: Path, root: str = ROOT) -> Iterator[tuple[MemoryCluster, CommitLog]]:
    """Run a log whose tables lie at `root`, its checkpoints in `folder`; yield it and a client."""
    cluster = MemoryCluster()
    MemoryLog(cluster).create(tables_root=root)
    running = on_memory(cluster, folder).await_leading()
    with CommitLog(lambda: MemoryLog(cluster)) as client:
        yield cluster, client
    running.stop()
