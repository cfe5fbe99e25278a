"""Are the HTTP server's settings what they say, and are wrong ones named before it starts?"""

import contextlib
import hashlib
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commitlog.adapters.storage_options import Scoped
from consumers.commands.http_options import check_http, namespace_settings, server_settings
from consumers.runtime.config import ConfigurationError, load
from consumers.servers.namespace.settings import Settings
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Security
from consumers.servers.server import ServerSettings
from tests.certificates import make_certificate
from tests.namespace_world import World

HEALTH: Any = SimpleNamespace(leaders=dict, index_lags=dict, index_steps=dict)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"base_path": "lance"}, "base_path"),
        ({"tls_certificate": "a.pem"}, "tls_key"),
        ({"tls_client_ca": "a.pem"}, "tls_client_ca"),
        ({"http_requests_max": 0}, "http_requests_max"),
        ({"access_file": "/no/such/file"}, "access_file"),
    ],
)
def test_a_wrong_setting_is_named(flags: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        server_settings(load(flags, environment={}), HEALTH)


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "other").mkdir()
    _, other = make_certificate(tmp_path / "other")
    empty = tmp_path / "empty.pem"
    empty.touch()
    tls = {"tls_certificate": certificate, "tls_key": key}
    for wrong in ({"tls_certificate": empty}, {"tls_key": other}, {"tls_client_ca": empty}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))} .* cannot be used"):
            check_http(load(tls | wrong, environment={}))


def test_settings_reach_the_server(tmp_path: Path) -> None:
    access = tmp_path / "access.toml"
    access.write_text(f'[keys]\na = "sha256:{hashlib.sha256(b"k").hexdigest()}"\n')
    certificate, key = make_certificate(tmp_path)
    config = load(
        {
            "access_file": access,
            "base_path": "/lance/",
            "tls_certificate": certificate,
            "tls_key": key,
            "http_requests_max": 7,
            "http_hosts": "Log.example.com, two.example.com,",
            "allowed_locations": " /one, /two ,",
            "batch_operations_max": 5,
        },
        environment={},
    )
    settings = server_settings(config, HEALTH)
    assert settings.base_path == "/lance"
    assert settings.security.is_on
    assert settings.limits.requests_max == 7
    assert settings.limits.hosts == {"log.example.com", "two.example.com"}
    assert settings.tls is not None
    assert config.http_scheme == "https"
    ours = namespace_settings(config)
    assert ours.locations == ("/one", "/two")
    assert ours.operations_max == 5
    with pytest.raises(ConfigurationError, match="batch_operations_max"):
        namespace_settings(load({"batch_operations_max": 0}, environment={}))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    access = tmp_path / "access.toml"
    access.write_text(
        f'[keys]\na = "sha256:{hashlib.sha256(b"k").hexdigest()}"\n'
        '[[grants]]\nto = "a"\non = "$"\ncan = "admin"\n'
    )
    server = ServerSettings(base_path="/lance", security=Security(AccessFile(access)))
    ours = Settings(
        locations=(str(tmp_path / "elsewhere"),),
        storage_options=Scoped({"": {"region": "eu"}}),
        credentials=Scoped({"": {"secret": "vended"}}),
    )
    running = World(tmp_path / "root", settings=ours, server=server)
    yield running
    running.close()


@pytest.mark.slow
def test_everything_is_below_the_base_path_and_guarded_there(world: World, tmp_path: Path) -> None:
    key = {"x-api-key": "k"}
    assert world.send("GET", "/lance/v1/table")[0] == 401
    assert world.send("GET", "/lance/v1/config")[0] == 401
    assert world.send("GET", "/lance/v1/table", b"", key)[0] == 200
    assert world.send("GET", "/lance/v1/config", b"", key)[0] == 200
    assert world.send("GET", "/v1/table", b"", key)[0] == 404
    assert world.send("GET", "/healthz")[0] == 200
    assert world.send("GET", "/openapi.json")[1]["servers"] == [{"url": "/lance"}]
    counted = world.send("GET", "/metrics", b"", key)[1].decode()
    assert 'operation="iceberg",status="200"} 1.0' in counted, "the base is no part of a place"
    for path in ("/lance//v1/table", "/lance//v1/config", "//lance///v1/config"):
        # A client whose address of the server ends with a slash.
        assert [world.send("GET", path, b"", given)[0] for given in ({}, key)] == [401, 200], path

    # The last slash leads on by a relative address: a proxy may have another name and path.
    for path, to in {
        "/lance/v1/namespaces/": "../namespaces",
        "/lance/v1/namespaces//?pageSize=3": "../../namespaces?pageSize=3",
        "/lance/v1/namespaces/a%20b/": "../a%20b",
        "/healthz/": "../healthz",
    }.items():
        connection = HTTPConnection(world.uri.removeprefix("http://"), timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=key)
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Location"]) == (307, to), path
    for path in ("/lance/v1/namespaces/a%2F", "/lance/v1/", "/lance/", "/v1/namespaces/", "//"):
        assert world.send("GET", path, b"", key)[0] in (200, 404), path

    long = {**key, "x-long": "x" * 40_000}
    for path in ("config", "namespaces/a/tables", "at-5/namespaces", "views/rename"):
        status, body = world.send("GET", f"/lance/v1/{path}", b"", long)
        assert (status, body["error"]["code"]) == (431, 431), path
        assert body["error"]["type"] == "RequestHeaderFieldsTooLargeException"
    status, body = world.send("GET", "/lance/v1/table", b"", long)
    assert (status, body["code"], body["instance"]) == (431, 13, "/lance/v1/table")

    def post(path: str, body: Any) -> tuple[int, Any]:
        return world.post(f"/lance/v1/table/{path}", body, headers=key)

    location = str(tmp_path / "elsewhere" / "a.lance")
    status, body = post("a$t/declare", {"location": location})
    assert (status, body["location"]) == (200, location)
    assert body["storage_options"] == {"region": "eu"}
    assert post("a$u/declare", {"location": str(tmp_path / "third" / "a.lance")})[0] == 400
    for vends in (None, False):
        assert post("a$t/describe", {"vend_credentials": vends})[1]["storage_options"] == {
            "region": "eu"
        }
    vended = {"region": "eu", "secret": "vended"}
    assert post("a$t/describe", {"vend_credentials": True})[1]["storage_options"] == vended
    assert post("a$v/declare", {"vend_credentials": True})[1]["storage_options"] == vended
    operations = [{"declare_table": {"id": ["a", "w"], "vend_credentials": True}}]
    status, body = post("batch-commit", {"operations": operations})
    assert body["results"][0]["declare_table"]["storage_options"] == vended
