"""Does every route ask who it is, and let each do what their grants say and no more?"""

import contextlib
import hashlib
import http.client
import json
import shutil
import socket
import ssl
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import lance_namespace
import pytest
from lance_namespace import DescribeTableRequest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import ForbiddenError, OAuthError, RESTError, UnauthorizedError

from commitlog.model.operations import RenameTable
from consumers.runtime.certificate import Tls
from consumers.servers import server
from consumers.servers.namespace import versions
from consumers.servers.namespace.operations import OPERATIONS
from consumers.servers.security import certificates
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.grants import Access
from consumers.servers.security.identity import Security
from consumers.servers.security.limits import LimitSettings
from consumers.servers.server import ServerSettings, serve
from consumers.servers.server_heads import HEAD_BYTES_MAX
from tests.namespace_world import ARROW_STREAM, World, arrow_stream, numbers
from tests.waiting import meanwhile, wait_until

KEYS = {name: f"the-secret-key-of-{name}" for name in ("owner", "writer", "reader", "stranger")}
CAN = {"owner": Access.ADMIN, "writer": Access.WRITE, "reader": Access.READ}
HOME = "home"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("security")
    lines = ["[keys]"]
    lines += [
        f'{name} = "sha256:{hashlib.sha256(key.encode()).hexdigest()}"'
        for name, key in KEYS.items()
    ]
    for name, access in CAN.items():
        lines.append(f'[[grants]]\nto = "{name}"\non = "{HOME}"\ncan = "{access.name.lower()}"')
    lines.append('[[grants]]\nto = "stranger"\non = "elsewhere"\ncan = "admin"')
    (root / "access.toml").write_text("\n".join(lines))
    security = Security(AccessFile(root / "access.toml"))
    running = World(root, server=ServerSettings(security=security))
    made = running.rows(f"/v1/table/{HOME}$t/create", numbers(0, 5), headers=key("owner"))
    assert made[0] == 200, made
    made = running.post("/v1/namespace/elsewhere/create", {}, headers=key("stranger"))
    assert made[0] == 200, made
    yield running
    running.close()


def key(name: str) -> dict[str, str]:
    return {"x-api-key": KEYS[name]}


def denied(status: int, body: Any) -> bool:
    return (status, body["code"] if isinstance(body, dict) else None) == (403, 15)


@pytest.mark.slow
@pytest.mark.parametrize("entry", OPERATIONS, ids=lambda entry: str(entry.name))
def test_every_operation_asks_who_it_is(world: World, entry: Any) -> None:
    path = entry.path.replace("{id}", f"{HOME}$t").replace("{index_name}", "i")
    for headers in ({}, {"x-api-key": "wrong"}, {"Authorization": "Bearer x"}):
        given = {"Content-Type": ARROW_STREAM if entry.takes_arrow else "application/json"}
        status, body = world.send(entry.method, path, b"", {**given, **headers})
        assert (status, body["code"]) == (401, 16), body
        assert not any(secret in json.dumps(body) for secret in KEYS.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry", [e for e in OPERATIONS if e.access is not None], ids=lambda entry: str(entry.name)
)
def test_every_operation_on_an_object_takes_its_grant(world: World, entry: Any) -> None:
    """One who has the grant gets past it, whatever comes then; who has less doesn't."""
    # Nothing is there: what passes the grants changes nothing.
    path = entry.path.replace("{id}", f"{HOME}$nobody").replace("{index_name}", "i")
    given = {"Content-Type": ARROW_STREAM if entry.takes_arrow else "application/json"}
    for name in KEYS:
        answer = world.send(entry.method, path, b"{", {**given, **key(name)})
        assert denied(*answer) is not (CAN.get(name, 0) >= entry.access), (name, answer)


def test_a_batch_takes_the_grants_of_each_of_its_operations(world: World) -> None:
    declare = {"declare_table": {"id": [HOME, "d"]}}
    beside = {"declare_table": {"id": ["elsewhere", "d"]}}
    for name, operations, index in (
        ("reader", [declare], 0),
        ("writer", [declare, beside], 1),
        ("writer", [{"deregister_table": {"id": [HOME, "t"]}}], 0),
        ("writer", [{"delete_table_versions": {"id": [HOME, "t"], "ranges": []}}], 0),
    ):
        answer = world.post("/v1/table/batch-commit", {"operations": operations}, headers=key(name))
        assert denied(*answer), answer
        assert f"operations[{index}]" in answer[1]["error"]
    entries = [{"id": ["elsewhere", "t"], "version": 2, "manifest_path": "x"}]
    answer = world.post(
        "/v1/table/version/batch-create", {"entries": entries}, headers=key("owner")
    )
    assert denied(*answer), answer
    there = world.send("GET", f"/v1/namespace/{HOME}/table/list", b"", key("owner"))[1]["tables"]
    assert "t" in there
    assert "d" not in there


def test_lists_show_what_may_be_seen(world: World) -> None:
    there = sorted(info.name for info in world.log.tables())
    of_home = [name for name in there if name.startswith(f"{HOME}$")]
    assert f"{HOME}$t" in of_home
    for name, spaces, tables in (("reader", [HOME], of_home), ("stranger", ["elsewhere"], [])):
        listed = world.send("GET", "/v1/namespace/$/list", b"", key(name))
        assert listed == (200, {"namespaces": spaces})
        assert world.send("GET", "/v1/table", b"", key(name)) == (200, {"tables": tables})
    assert denied(*world.send("GET", f"/v1/namespace/{HOME}/table/list", b"", key("stranger")))


def test_pages_of_lists_name_nothing_that_may_not_be_seen(world: World) -> None:
    """A page's token is the last name on it, and what may not be seen was left out after that."""

    def listed(path: str, name: str) -> tuple[int, Any]:
        return world.send("GET", f"/v1/namespaces{path}", b"", key(name))

    made = json.dumps({"namespace": [HOME, "inner"]}).encode()
    world.send("POST", "/v1/namespaces", made, key("owner"))
    page = "pageToken=&pageSize=1"
    for name, space in (("stranger", "elsewhere"), ("reader", HOME)):
        first = {"namespaces": [[space]], "next-page-token": None}
        assert listed(f"?{page}", name) == (200, first)
    for path in ("/{}/tables", "/{}/views", "?parent={}", "?parent={}%1Finner"):
        answers = [listed(path.format(name), "stranger") for name in (HOME, "nothing")]
        assert [status for status, _ in answers] == [403, 403], answers
    assert [HOME, "inner"] in listed(f"?parent={HOME}", "reader")[1]["namespaces"]
    assert listed(f"?parent={HOME}%1Fnothing", "reader")[0] == 404


def test_a_refusal_names_no_tables_that_its_reader_may_not_see(world: World) -> None:
    made = world.post(f"/v1/table/{HOME}$payroll/declare", {}, headers=key("owner"))
    assert made[0] == 200, made
    gone = {"deregister_table": {"id": ["elsewhere", "payroll"]}}
    beside = {"namespace": ["elsewhere"], "name": "i"}
    change = {"identifier": beside, "requirements": [], "updates": []}
    for path, body in (
        ("/v1/table/elsewhere$payroll/describe", {}),
        ("/v1/table/elsewhere$payroll/count_rows", {"predicate": "id = 1"}),
        ("/v1/table/batch-commit", {"operations": [gone]}),
        ("/v1/transactions/commit", {"table-changes": [change], "lance-operations": [gone]}),
    ):
        status, answer = world.post(path, body, headers=key("stranger"))
        assert status == 404, answer
        assert "elsewhere$payroll" in str(answer)
        assert HOME not in str(answer)
    then = {"x-commitlog-sequence": "3", **key("stranger")}
    status, answer = world.post("/v1/table/elsewhere$payroll/describe", {}, headers=then)
    assert (status, HOME in str(answer)) == (404, False), answer
    dropped = world.post(f"/v1/table/{HOME}$payroll/deregister", {}, headers=key("owner"))
    assert dropped[0] == 200, dropped
    asked = {"table": "elsewhere$payroll"}
    status, answer = world.post("/v1/log/undrop", asked, headers=key("stranger"))
    assert (status, HOME in str(answer)) == (404, False), answer


def test_a_rename_takes_admin_at_both_ends(world: World) -> None:
    body = {"new_table_name": "t", "new_namespace_id": ["elsewhere"]}
    assert denied(*world.post(f"/v1/table/{HOME}$t/rename", body, headers=key("owner")))


def test_a_transaction_is_shown_to_who_may_read_its_tables(world: World) -> None:
    answer = world.post(f"/v1/table/{HOME}$x/declare", {}, headers=key("writer"))
    path = f"/v1/transaction/{answer[1]['transaction_id']}/describe"
    status, body = world.post(path, headers=key("reader"))
    assert status == 200
    assert not any(secret in json.dumps(body) for secret in KEYS.values())
    assert denied(*world.post(path, headers=key("stranger")))
    assert world.post(f"/v1/table/{HOME}$x/drop", headers=key("owner"))[0] == 200


def test_what_is_kept_with_a_renamed_table_takes_a_grant_on_that(world: World) -> None:
    """The properties of a transaction are kept with its table, whatever that is called now."""
    answer = world.post(f"/v1/table/{HOME}$gone/declare", {}, headers=key("writer"))
    path = f"/v1/transaction/{answer[1]['transaction_id']}"
    sets = {"set_property_action": {"key": "k", "value": "kept", "mode": "Overwrite"}}
    assert world.post(f"{path}/alter", {"actions": [sets]}, headers=key("writer"))[0] == 200
    away = RenameTable((HOME, "gone"), ("elsewhere", "there"))
    world.log.submit(None, away).result(60).raise_for_conflict()
    assert denied(*world.post(f"{path}/alter", {"actions": [sets]}, headers=key("writer")))
    status, body = world.post(f"{path}/describe", headers=key("reader"))
    assert (status, "kept" in json.dumps(body)) == (200, False)
    assert world.post("/v1/table/elsewhere$there/drop", headers=key("stranger"))[0] == 200


def test_who_asks_is_shown_by_header_or_body_or_operation_and_is_one(world: World) -> None:
    path, batch = f"/v1/table/{HOME}$t/describe", "/v1/table/batch-commit"
    owner = {"identity": {"api_key": KEYS["owner"]}}
    assert world.post(path, owner)[0] == 200
    assert world.post(path, owner, headers=key("reader"))[0] == 200
    assert denied(*world.post(path, owner, headers=key("stranger"))), "the header counts"
    nested = {"declare_table": {"id": [HOME, "one"], **owner}}
    assert world.post(batch, {"operations": [nested]})[0] == 200
    status, body = world.post(batch, {"operations": [nested]}, headers=key("writer"))
    assert (status, body["code"]) == (400, 13)
    assert "identity" in body["error"]
    assert world.post(f"/v1/table/{HOME}$one/drop", owner)[0] == 200


def test_principal_and_context_are_on_every_record_and_secrets_on_none(world: World) -> None:
    context = {"context": {"team": "blue", "header.x-api-key": KEYS["writer"], "trace": "body"}}
    headers = {**key("writer"), "x-lance-ctx-trace": "header"}
    stream = {"Content-Type": ARROW_STREAM}
    made = [
        world.post(f"/v1/table/{HOME}$r/declare", context, headers=headers),
        world.post(
            f"/v1/table/{HOME}$t/update",
            {"updates": [["x", "x + 1"]], **context},
            headers=headers,
        ),
        world.post(
            f"/v1/table/{HOME}$t/add_columns",
            {"new_columns": [{"name": "y", "expression": "x"}], **context},
            headers=headers,
        ),
        world.send(
            "POST", f"/v1/table/{HOME}$new/create", arrow_stream(numbers(0, 2)), headers | stream
        ),
    ]
    for status, body in made:
        assert status == 200, body
        record = world.record(body["transaction_id"])
        properties = dict(record.properties)
        assert record.principal == "writer"
        assert properties["context.trace"] == "header"
        assert properties["identity.method"] == "api-key"
        assert properties.get("context.team", "blue") == "blue"
        assert KEYS["writer"] not in repr(record)
    world.post(f"/v1/table/{HOME}$r/drop", headers=key("owner"))


ICEBERG: tuple[tuple[str, str, Any, Access | None], ...] = (
    ("GET", "/v1/config", None, None),
    ("GET", f"/v1/namespaces/{HOME}", None, Access.READ),
    ("HEAD", f"/v1/namespaces/{HOME}", None, Access.READ),
    ("POST", "/v1/namespaces", {"namespace": [HOME, "deep"]}, Access.ADMIN),
    ("DELETE", f"/v1/namespaces/{HOME}%1Fnobody", None, Access.ADMIN),
    ("POST", f"/v1/namespaces/{HOME}/properties", {}, Access.ADMIN),
    ("POST", f"/v1/namespaces/{HOME}/tables", {"name": "i"}, Access.WRITE),
    ("POST", f"/v1/namespaces/{HOME}/register", {"name": "i"}, Access.ADMIN),
    ("POST", f"/v1/namespaces/{HOME}/views", {"name": "v"}, Access.WRITE),
    ("GET", f"/v1/namespaces/{HOME}/views/v", None, Access.READ),
    ("POST", f"/v1/namespaces/{HOME}/views/v", {}, Access.WRITE),
    ("DELETE", f"/v1/namespaces/{HOME}/views/v", None, Access.ADMIN),
    ("POST", "/v1/log/undrop", {"table": f"{HOME}$gone"}, Access.ADMIN),
    ("POST", "/v1/log/properties", {"table": f"{HOME}$t", "values": {"a": "b"}}, Access.ADMIN),
    ("POST", "/v1/log/restore", {"tables": [f"{HOME}$gone"], "position": 1}, Access.WRITE),
    ("GET", f"/v1/namespaces/{HOME}/tables/i", None, Access.READ),
    ("HEAD", f"/v1/namespaces/{HOME}/tables/i", None, Access.READ),
    ("GET", f"/v1/at-0/namespaces/{HOME}/tables/i", None, Access.READ),
    ("GET", f"/v1/at-0/namespaces/{HOME}", None, Access.READ),
    ("POST", f"/v1/namespaces/{HOME}/tables/i", {}, Access.WRITE),
    ("DELETE", f"/v1/namespaces/{HOME}/tables/i", None, Access.ADMIN),
    ("POST", f"/v1/namespaces/{HOME}/tables/i/metrics", {}, Access.READ),
    (
        "POST",
        "/v1/tables/rename",
        {
            "source": {"namespace": [HOME], "name": "i"},
            "destination": {"namespace": [HOME], "name": "j"},
        },
        Access.ADMIN,
    ),
    (
        "POST",
        "/v1/transactions/commit",
        {"table-changes": [{"identifier": {"namespace": [HOME], "name": "i"}}]},
        Access.WRITE,
    ),
    (
        "POST",
        "/v1/transactions/commit",
        {"table-changes": [], "lance-operations": [{"deregister_table": {"id": [HOME, "t"]}}]},
        Access.ADMIN,
    ),
    ("GET", "/v1/nothing/of/the/kind", None, Access.ADMIN),
    ("GET", "/api/tables", None, Access.READ),
    ("GET", "/metrics", None, Access.READ),
    ("GET", "/v1/feed", None, Access.READ),
    ("POST", "/v1/sql", {}, Access.READ),
)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path", "body", "access"), ICEBERG)
def test_the_other_apis_ask_the_same(
    world: World, method: str, path: str, body: Any, access: Access | None
) -> None:
    data = json.dumps(body).encode() if body is not None else b""
    given = {"Content-Type": "application/json"}
    status, answer = world.send(method, path, data, given)
    assert status == 401
    if method != "HEAD" and path.startswith("/v1/names"):
        assert answer["error"]["type"] == "NotAuthorizedException"
    of_all = ("/v1/feed", "/v1/sql", "/v1/nothing/of/the/kind")
    is_of_all = not path.startswith("/v1/") or path in of_all
    for name in KEYS:
        status, answer = world.send(method, path, data, {**given, **key(name)})
        can = 0 if is_of_all else CAN.get(name, 0)
        assert (status != 403) is (access is None or can >= access), (name, status, answer)
        if status == 403 and method != "HEAD" and path.startswith("/v1/names"):
            assert answer["error"]["type"] == "ForbiddenException"


def test_health_and_documents_are_for_everybody(world: World) -> None:
    assert world.send("GET", "/healthz")[0] == 200
    assert world.send("GET", "/readyz")[0] == 503, "this one has no checks"


def test_clients_show_their_keys_as_they_always_do(world: World) -> None:
    def connect(name: str) -> Any:
        return lance_namespace.connect("rest", {"uri": world.uri, "headers.x-api-key": KEYS[name]})

    rows, each = numbers(0, 3), uuid.uuid4().hex  # a second try finds what the first one made
    writer, table = connect("writer"), [HOME, f"native-{each}"]
    dataset = lance.write_dataset(rows, namespace_client=writer, table_id=table, mode="create")
    dataset.insert(rows)
    found = lance.dataset(namespace_client=connect("reader"), table_id=table)
    assert found.count_rows() == 6
    with pytest.raises(Exception, match="may not read"):
        connect("stranger").describe_table(DescribeTableRequest(id=table))

    def catalog(name: str) -> Any:
        return load_catalog(name, type="rest", uri=world.uri, **{"header.x-api-key": KEYS[name]})

    # Where a client asks that is told no other place.
    here = {"oauth2-server-uri": f"{world.uri}/v1/oauth/tokens"}
    with pytest.raises(OAuthError, match="issues no tokens.*oauth2-server-uri"):
        load_catalog("oauth", type="rest", uri=world.uri, credential="who:secret", **here)
    basic: Any = {"type": "basic", "basic": {"username": "who", "password": "secret"}}
    with pytest.raises(UnauthorizedError, match="another scheme than Bearer"):
        load_catalog("basic", type="rest", uri=world.uri, auth=basic)

    name = f"facts-{each}"
    facts = f"{HOME}.{name}"
    catalog("owner").create_table(facts, rows.schema)
    assert catalog("reader").load_table(facts).name() == (HOME, name)
    assert catalog("reader").list_namespaces() == [(HOME,)]
    assert (HOME,) not in catalog("stranger").list_namespaces()
    with pytest.raises(ForbiddenError):
        catalog("reader").drop_table(facts)
    with pytest.raises(RESTError):
        load_catalog("nobody", type="rest", uri=world.uri).list_namespaces()
    catalog("owner").drop_table(facts)


def test_a_writer_is_led_to_its_commit_with_its_key(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is of no use to who may not write there."""
    names = lance_namespace.connect("rest", {"uri": world.uri, "headers.x-api-key": KEYS["writer"]})
    rows, name = numbers(0, 3), f"led-{uuid.uuid4().hex}"
    table = [HOME, name]
    dataset = lance.write_dataset(rows, namespace_client=names, table_id=table, mode="create")
    create = versions._create_version

    def behind(*given: Any) -> Any:
        world.log.append("$".join(table), rows)
        return create(*given)

    monkeypatch.setattr(versions, "_create_version", behind)
    dataset.insert(rows)
    assert (dataset.version, dataset.count_rows()) == (3, 9)
    where = f"/v1/table/{HOME}${name}/version/landed?token=a"
    answers = {name: world.send("GET", where, headers=key(name))[0] for name in KEYS}
    assert answers == {"owner": 400, "writer": 400, "reader": 403, "stranger": 403}
    assert world.send("GET", where)[0] == 401


def limited(root: Path, **limits: Any) -> World:
    return World(root, server=ServerSettings(limits=LimitSettings(**limits)))


def begin(world: World) -> socket.socket:
    """Send a request but for its last byte."""
    host, port = world.uri.removeprefix("http://").split(":")
    slow = socket.create_connection((host, int(port)), timeout=60)
    slow.sendall(b"POST /v1/table/a/exists HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
    return slow


def test_what_is_over_the_limits_is_told_so(tmp_path: Path) -> None:
    world = limited(tmp_path, header_bytes_max=1000)
    try:
        status, body = world.send("GET", "/v1/table", b"", {"x-lance-ctx-long": "x" * 1000})
        assert (status, body["code"]) == (431, 13)
    finally:
        world.close()


def test_bodies_that_are_on_their_way_keep_nobody_out(tmp_path: Path) -> None:
    world = limited(tmp_path, requests_max=2)
    try:
        slow = [begin(world) for _ in range(40)]
        for _ in range(10):
            assert world.send("GET", "/v1/table")[0] == 200
        slow[0].sendall(b"}")
        assert slow[0].makefile("rb").readline().split()[1] == b"404"
        for one in slow:
            one.close()
    finally:
        world.close()


def test_more_bodies_than_there_is_room_for_are_told_so(tmp_path: Path) -> None:
    world = limited(tmp_path, arriving_max=1, arriving_bytes_max=100_000)
    try:
        assert world.post("/v1/table/a/exists", b"[" * 100_001)[0] == 503
        with begin(world):
            wait_until(
                lambda: world.post("/v1/table/a/exists", {"id": ["a"]})[0] == 503, "no room left"
            )
            assert world.send("GET", "/v1/table")[0] == 200
            assert world.send("GET", "/healthz")[0] == 200
    finally:
        world.close()


@pytest.mark.slow
def test_a_body_that_drips_is_given_up_as_a_whole(tmp_path: Path) -> None:
    world = limited(tmp_path, pause_seconds_max=30.0, body_seconds_max=1.0)
    host, port = world.uri.removeprefix("http://").split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=60) as slow:
            head = b"POST /v1/table/a/exists HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n"
            slow.sendall(head)
            slow.settimeout(0.1)
            answer = b""
            deadline = time.monotonic() + 60
            while b"too slowly" not in answer:
                assert time.monotonic() < deadline
                with contextlib.suppress(OSError):
                    slow.sendall(b" ")
                with contextlib.suppress(TimeoutError):
                    answer += slow.recv(1000)
            assert answer.split()[1] == b"408"
    finally:
        world.close()


def test_a_body_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    world = limited(tmp_path, pause_seconds_max=0.2)
    try:
        with begin(world) as slow:
            assert slow.makefile("rb").readline().split()[1] == b"408"
    finally:
        world.close()


def test_a_server_with_tls_speaks_tls(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from tests.certificates import make_certificate

    certificate, private = make_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    with _served(ServerSettings(tls=Tls(str(certificate), str(private)))) as port:
        url = f"https://127.0.0.1:{port}/healthz"
        with urllib.request.urlopen(url, context=context, timeout=120) as response:
            assert response.status == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=120)


def test_a_certificate_that_is_renewed_is_shown_to_who_connects_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An issuer's are valid for weeks: the server showed the one of its start until a restart."""
    pytest.importorskip("cryptography")
    from tests.certificates import make_certificate

    monkeypatch.setattr(certificates, "LOOK_SECONDS", -1.0)
    made = []
    for name in ("first", "second", "clients", "others"):
        (tmp_path / name).mkdir()
        made.append(make_certificate(tmp_path / name))
    (first, key), (second, its_key), client, other = made
    authority = tmp_path / "authority.pem"
    shutil.copy(client[0], authority)

    def is_served(shown: Path, as_client: tuple[Path, Path]) -> bool:
        context = ssl.create_default_context(cafile=str(shown))
        context.load_cert_chain(*as_client)
        url = f"https://127.0.0.1:{port}/healthz"
        try:
            with urllib.request.urlopen(url, context=context, timeout=120) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    with _served(ServerSettings(tls=Tls(*map(str, (first, key, authority))))) as port:
        assert is_served(first, client)
        assert not is_served(first, other)
        shutil.copy(first, tmp_path / "old.pem")
        shutil.copy(second, first)  # its key isn't there yet
        assert is_served(tmp_path / "old.pem", client)
        assert "the previous TLS files stay in use" in caplog.text
        shutil.copy(its_key, key)
        assert is_served(second, client)
        assert not is_served(tmp_path / "old.pem", client)
        shutil.copy(other[0], authority)
        assert is_served(second, other)
        assert not is_served(second, client)


def test_a_connection_that_never_speaks_tls_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no list of connections yet, and takes a file all the same."""
    pytest.importorskip("cryptography")
    from tests.certificates import make_certificate

    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.1)
    certificate, private = make_certificate(tmp_path)
    with (
        _served(ServerSettings(tls=Tls(str(certificate), str(private)))) as port,
        socket.create_connection(("127.0.0.1", port), timeout=60) as silent,
    ):
        assert silent.recv(1) == b""


@pytest.mark.slow
def test_a_connection_that_was_idle_for_a_while_takes_the_next_request() -> None:
    with _served(ServerSettings()) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for pause in (0, 6):  # a client that comes back; many servers close after 5 s
            time.sleep(pause)
            connection.request("GET", "/healthz")
            with connection.getresponse() as answer:
                assert (answer.status, answer.read() != b"") == (200, True)
        connection.close()


@contextlib.contextmanager
def _served(settings: ServerSettings) -> Iterator[int]:
    """Serve nothing but health on a port of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    ready = threading.Event()
    health: Any = _NoHealth()

    def work(stop: threading.Event) -> None:
        serve(health, listener, settings=settings, stop=stop, on_ready=lambda _: ready.set())

    with meanwhile(work):
        assert ready.wait(120)
        yield listener.getsockname()[1]


class _NoHealth:
    def start(self) -> None:
        return

    def close(self) -> None:
        return

    async def fresh(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize("endless", [b"x-a: " + b"a" * 4096, b"x-a: a\r\n" * 512])
def test_headers_without_an_end_end_the_connection(world: World, endless: bytes) -> None:
    host, port = world.uri.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as opened:
        # A long body is no long head.
        opened.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n")
        opened.sendall(b" " * 99_999)
        answer = http.client.HTTPResponse(opened)
        answer.begin()
        assert answer.status == 401, answer.read()
        answer.read()
        opened.sendall(b"GET /healthz HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(2 * HEAD_BYTES_MAX // 4096):
                opened.sendall(endless)
        with contextlib.suppress(ConnectionError):
            while piece := opened.recv(4096):
                assert piece.startswith(b"HTTP/1.1 431")
    assert world.send("GET", "/healthz")[0] == 200
