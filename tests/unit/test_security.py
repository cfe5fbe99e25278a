"""Do credentials prove who asks, and do grants say what they may do?"""

import asyncio
import hashlib
import json
import logging
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from lance_namespace.errors import ServiceUnavailableError, UnauthenticatedError

from consumers.runtime.config import ConfigurationError
from consumers.servers.security import access_file as access_file_module
from consumers.servers.security import tokens as tokens_module
from consumers.servers.security.access_file import AccessFile, read_rules
from consumers.servers.security.grants import Access, Grant, Grants, Principal
from consumers.servers.security.identity import Credentials, Security, credentials_of_headers
from consumers.servers.security.tokens import Issuer, Tokens, read_keys
from tests.waiting import wait_until

KEY = "a-long-key-of-alice"
ISSUER, AUDIENCE = "https://login.example.com", "commitlog"
READ, WRITE, ADMIN = Access.READ, Access.WRITE, Access.ADMIN


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


private = cache(new_key)
"""Returns the issuer's key: to make one takes a tenth of a second, which collecting need not."""


def hashed(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def token(key: Any = None, algorithm: str = "RS256", kid: str = "one", **claims: Any) -> str:
    given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "bob", "exp": time.time() + 600, **claims}
    return jwt.encode(
        {name: value for name, value in given.items() if value is not None},
        private() if key is None else key,
        algorithm,
        headers={"kid": kid},
    )


def test_a_grant_holds_for_what_is_below_it_and_for_nothing_beside() -> None:
    grants = Grants(
        [
            Grant("alice", ("shop",), WRITE),
            Grant("group:eyes", (), READ),
            Grant("*", ("pub",), READ),
        ]
    )
    alice, eye, bob = (
        Principal("alice"),
        Principal("eve", groups=frozenset({"eyes"})),
        Principal("bob"),
    )
    assert grants.may(alice, WRITE, ("shop", "orders"))
    assert grants.may(alice, READ, ("shop",))
    assert not grants.may(alice, ADMIN, ("shop", "orders"))
    assert not grants.may(alice, READ, ("shopping",))
    assert not grants.may(alice, READ, ())
    assert grants.may(eye, READ, ("shop", "orders"))
    assert not grants.may(eye, WRITE, ("shop", "orders"))
    assert grants.may(bob, READ, ("pub", "t"))
    assert not grants.may(bob, READ, ("shop", "orders"))
    assert grants.sees(alice, ())
    assert not grants.sees(bob, ("shop",))


def rules(**more: Any) -> dict[str, Any]:
    return {"keys": {"alice": hashed(KEY)}, **more}


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({}, "no client could authenticate"),
        ({"keys": {"alice": KEY}}, "never the key itself"),
        ({"keys": {"alice": {"env": "NO_SUCH_VARIABLE"}}}, "missing"),
        ({"keys": {"alice": hashed(KEY), "bob": hashed(KEY)}}, "same key"),
        (rules(grants=[{"to": "alice", "on": "shop", "can": "fly"}]), "'fly'"),
        (rules(grants=[{"to": "alice", "can": "read"}]), "`on`"),
        (rules(grant=[]), "'grant'"),
        (rules(oidc={"issuer": ISSUER}), "audience"),
        (rules(oidc={"issuer": ISSUER, "audience": ["a"]}), "audience is required, as a string"),
        (rules(oidc={"issuer": ISSUER, "audience": "a", "algorithms": ["HS256"]}), "algorithms"),
        (rules(oidc={"issuer": ISSUER, "audience": "a", "algorithms": [["RS256"]]}), "algorithms"),
        (rules(oidc={"issuer": ISSUER, "audience": "a", "leeway_seconds": "30"}), "leeway_seconds"),
        (rules(oidc={"issuer": ISSUER, "audience": "a", "principal_claim": 5}), "principal_claim"),
        (rules(grants=[{"to": "alice", "on": "shop", "can": ["read"]}]), "['read']"),
    ],
)
def test_a_wrong_access_file_is_refused_and_names_no_key(table: Any, word: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_rules(table)
    assert word in str(caught.value)
    assert KEY not in str(caught.value)


def test_keys_come_from_the_file_as_hashes_or_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI_KEY", "the-key-of-the-ci-job")
    (tmp_path / "key").write_text("the-key-in-the-file\n")
    access = tmp_path / "access.toml"
    access.write_text(
        f'[keys]\nalice = "{hashed(KEY)}"\nci = {{ env = "CI_KEY" }}\n'
        f'job = {{ file = "{tmp_path / "key"}" }}\n'
    )
    security = Security(AccessFile(access))
    for key, name in (
        (KEY, "alice"),
        ("the-key-of-the-ci-job", "ci"),
        ("the-key-in-the-file", "job"),
    ):
        assert security.identify(Credentials(key)).name == name
    for wrong in (Credentials(), Credentials("x"), Credentials(KEY + "x"), Credentials(token="x")):
        with pytest.raises(UnauthenticatedError):
            security.identify(wrong)
    monkeypatch.setattr(access_file_module, "LOOK_SECONDS", -1.0)
    (tmp_path / "key").write_text("the-new-key-in-the-file\n")
    assert security.identify(Credentials("the-new-key-in-the-file")).name == "job"
    with pytest.raises(UnauthenticatedError):
        security.identify(Credentials("the-key-in-the-file"))
    (tmp_path / "key").unlink()  # until it is written anew, what held before holds on
    assert security.identify(Credentials("the-new-key-in-the-file")).name == "job"
    (tmp_path / "key").write_text("the-newest-key-in-the-file\n")
    assert security.identify(Credentials("the-newest-key-in-the-file")).name == "job"


def test_only_tokens_are_identified_on_another_thread(tmp_path: Path) -> None:
    """For an API key the way there and back cost a request more CPU than the identification."""
    access = tmp_path / "access.toml"
    access.write_text(f'[keys]\nalice = "{hashed(KEY)}"\n')
    security, asked_on = Security(AccessFile(access)), list[threading.Thread]()
    identify = security.identify

    def noted(shown: Credentials) -> Principal:
        asked_on.append(threading.current_thread())
        return identify(shown)

    security.identify = noted  # type: ignore[method-assign]
    assert asyncio.run(security.identified(Credentials(KEY))).name == "alice"
    for shown in (Credentials(token="x"), Credentials(KEY, token="x")):
        with pytest.raises(UnauthenticatedError):
            asyncio.run(security.identified(shown))
    here = threading.current_thread()
    assert [one is here for one in asked_on] == [True, False, False]


def test_a_key_costs_the_same_however_many_there_are(tmp_path: Path) -> None:
    """It was compared with each of them, on the event loop: 190 us for 1,000 keys."""

    def seconds(keys: int) -> float:
        names = "".join(f'u{number} = "{hashed(f"{KEY}{number}")}"\n' for number in range(keys))
        (tmp_path / "access.toml").write_text(f"[keys]\n{names}")
        security, shown = Security(AccessFile(tmp_path / "access.toml")), Credentials(f"{KEY}0")
        assert security.identify(shown) == Principal("u0", "api-key")
        return min(timeit.repeat(lambda: security.identify(shown), number=20, repeat=10))

    assert seconds(1_000) < 10 * seconds(1)


def test_a_principal_whose_key_file_is_gone_can_be_taken_out_of_the_access_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The access file was read no more once a file was gone that it had named: grants stayed."""
    monkeypatch.setattr(access_file_module, "LOOK_SECONDS", -1.0)
    access, keys = tmp_path / "access.toml", tmp_path / "key"
    keys.write_text("the-key-in-the-file")
    grant = '[[grants]]\nto = "{}"\non = "$"\ncan = "admin"\n'
    alice = f'[keys]\nalice = "{hashed(KEY)}"\n'
    access.write_text(f'{alice}job = {{ file = "{keys}" }}\n' + grant.format("job"))
    security = Security(AccessFile(access))
    job = security.identify(Credentials("the-key-in-the-file"))
    assert security.may(job, ADMIN, ())
    keys.unlink()
    assert security.identify(Credentials("the-key-in-the-file")) == job, "it may come back"
    access.write_text(alice + grant.format("alice"))
    assert not security.may(job, READ, ())
    assert security.may(security.identify(Credentials(KEY)), ADMIN, ())
    with pytest.raises(UnauthenticatedError):
        security.identify(Credentials("the-key-in-the-file"))


@pytest.mark.slow
def test_what_changes_in_the_file_holds_at_once_and_a_mistake_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = tmp_path / "access.toml"
    text = f'[keys]\nalice = "{hashed(KEY)}"\n'
    access.write_text(text)
    security = Security(AccessFile(access))
    alice = security.identify(Credentials(KEY))
    assert not security.may(alice, READ, ("shop",))
    access.write_text(text + '[[grants]]\nto = "alice"\non = "shop"\ncan = "admin"\n')
    wait_until(lambda: security.may(alice, ADMIN, ("shop", "orders")), "the new grants")
    with caplog.at_level(logging.ERROR):
        access.write_text("[keys]\nalice = 'oh'\n")
        wait_until(
            lambda: (security.may(alice, READ, ()), bool(caplog.records))[1], "an error in the log"
        )
    assert security.may(alice, ADMIN, ("shop",)), "what held before holds on"
    access.unlink()
    wait_until(
        lambda: (security.may(alice, READ, ()), len(caplog.records) > 1)[1], "a second error"
    )
    assert security.identify(Credentials(KEY)).name == "alice"
    end = time.monotonic() + 0.3
    monkeypatch.setattr("consumers.servers.security.access_file.LOOK_SECONDS", 0.01)
    while time.monotonic() < end:
        security.may(alice, READ, ())
    assert len(caplog.records) == 2, "it is said once, however often it is looked for"


@pytest.fixture
def checker(tmp_path: Path) -> Tokens:
    (tmp_path / "key.pem").write_bytes(pem(private()))
    return Tokens(Issuer(ISSUER, AUDIENCE, key_file=str(tmp_path / "key.pem")))


def test_a_token_of_the_issuer_says_who_it_is(checker: Tokens) -> None:
    found = checker.principal(token(groups=["eyes", "hands"]))
    assert (found.name, found.method) == ("bob", "bearer")
    assert found.groups == {"eyes", "hands"}
    assert checker.principal(token(groups="a b")).groups == {"a", "b"}


def test_a_token_from_a_clock_that_is_ahead_says_what_to_look_at(checker: Tokens) -> None:
    """Another one of that issuer's would be refused as well."""
    assert checker.principal(token(iat=time.time() + 20)).name == "bob"
    with pytest.raises(
        UnauthenticatedError, match=r"compare this server's clock with that of http"
    ):
        checker.principal(token(iat=time.time() + 60))
    with pytest.raises(UnauthenticatedError, match=r"a new one from http.*\. If .* this server's"):
        checker.principal(token(exp=time.time() - 60))


@pytest.mark.parametrize(
    "make",
    [
        lambda: token(exp=time.time() - 3600),
        lambda: token(exp=None),
        lambda: token(iss="https://other.example.com"),
        lambda: token(aud="another"),
        lambda: token(aud=None),
        lambda: token(nbf=time.time() + 3600),
        lambda: token(sub=None),
        lambda: token(key=new_key()),
        lambda: token(key=ec.generate_private_key(ec.SECP256R1()), algorithm="ES256"),
        lambda: token(key="a shared secret of thirty-two bytes or more", algorithm="HS256"),
        lambda: jwt.encode({"sub": "bob"}, "", "none"),
        lambda: token()[:-4] + "AAAA",
        lambda: "no.token.at-all",
        lambda: "",
    ],
)
def test_any_other_token_is_refused_without_repeating_it(
    checker: Tokens, make: Callable[[], str]
) -> None:
    wrong = make()
    with pytest.raises(UnauthenticatedError) as caught:
        checker.principal(wrong)
    assert not wrong or wrong not in str(caught.value)


def test_a_public_key_is_not_taken_for_a_shared_secret(checker: Tokens) -> None:
    header, payload = token().split(".")[:2]
    import base64
    import hmac

    forged = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT","kid":"one"}').rstrip(b"=")
    signed = forged + b"." + payload.encode()
    signature = hmac.new(pem(private()), signed, "sha256").digest()
    wrong = signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
    with pytest.raises(UnauthenticatedError):
        checker.principal(wrong.decode())


def jwks(*names: str) -> str:
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private().public_key()))
    return json.dumps({"keys": [{**public, "kid": name, "use": "sig"} for name in names]})


def test_private_keys_and_shared_secrets_are_no_keys_to_check_with() -> None:
    with pytest.raises(ValueError, match="private key"):
        read_keys("-----BEGIN PRIVATE KEY-----")
    secret = '{"keys": [{"kty": "oct", "kid": "s", "k": "c2VjcmV0"}]}'
    assert read_keys(secret) == {}
    assert set(read_keys(jwks("one", "two"))) == {"one", "two"}


@pytest.fixture
def issuer_server() -> Iterator[tuple[str, dict[str, str]]]:
    """A server of documents, on loopback."""
    documents: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802
            found = documents.get(self.path)
            if found is not None and found.startswith("to "):
                self.send_response(302)
                self.send_header("Location", found.removeprefix("to "))
            else:
                self.send_response(200 if found is not None else 503)
            self.end_headers()
            self.wfile.write((found or "").encode())

        def log_message(self, *args: Any) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=partial(server.serve_forever, 0.02), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", documents
    server.shutdown()
    server.server_close()
    thread.join(120)


def test_keys_are_discovered_and_fetched_again_when_they_change(
    issuer_server: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, documents = issuer_server
    documents["/.well-known/openid-configuration"] = json.dumps({"jwks_uri": f"{uri}/keys"})
    checker = Tokens(Issuer(uri, AUDIENCE))
    mine = token(iss=uri)
    monkeypatch.setattr(tokens_module, "REFETCH_SECONDS", 0.0)
    with pytest.raises(ServiceUnavailableError):
        checker.principal(mine)
    documents["/keys"] = jwks("another", "third")
    with pytest.raises(UnauthenticatedError):
        checker.principal(mine)
    documents["/keys"] = jwks("another", "one")
    assert checker.principal(mine).name == "bob"
    documents.clear()
    assert checker.principal(mine).name == "bob", "known keys hold while the issuer is away"


def test_keys_come_from_the_network_only_over_tls_or_from_this_machine() -> None:
    for url in (
        *("http://example.com/keys", "file:///etc/passwd", "ftp://example.com"),
        *("http://localhost.example.com/keys", "http://127.0.0.1@example.com/keys"),
    ):
        with pytest.raises(ServiceUnavailableError) as refused:
            Tokens(Issuer(ISSUER, AUDIENCE, jwks_url=url)).principal(token())
        assert "only fetched from https" in str(refused.value.__cause__)


def test_an_issuer_leads_to_no_place_that_keys_may_not_come_from(
    issuer_server: tuple[str, dict[str, str]],
) -> None:
    uri, documents = issuer_server
    documents["/keys"] = "to http://example.com/keys"
    with pytest.raises(ServiceUnavailableError) as refused:
        Tokens(Issuer(ISSUER, AUDIENCE, jwks_url=f"{uri}/keys")).principal(token())
    assert "only fetched from https" in str(refused.value.__cause__)


@pytest.mark.parametrize("document", ["[]", "null", "{}", "no JSON"])
def test_what_is_no_key_set_is_told_to_the_client(
    issuer_server: tuple[str, dict[str, str]], document: str
) -> None:
    uri, documents = issuer_server
    documents["/keys"] = document
    checker = Tokens(Issuer(ISSUER, AUDIENCE, jwks_url=f"{uri}/keys"))
    for _ in range(2):  # the second time, the keys aren't asked for again yet
        with pytest.raises(ServiceUnavailableError):
            checker.principal(token())


@pytest.fixture
def slow_issuer(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Event, Event]]:
    """An issuer that is asked for its keys, and sends them once it may."""
    asked, goes_on = Event(), Event()

    def slow(url: str) -> str:
        asked.set()
        assert goes_on.wait(60)
        return jwks("one", "two")

    monkeypatch.setattr(tokens_module, "_fetch", slow)
    yield asked, goes_on
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "issuer-keys":
            thread.join(60)


def test_known_keys_do_not_wait_for_a_slow_issuer(
    slow_issuer: tuple[Event, Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can make up a key's id, and the few threads that identify are all clients'."""
    asked, goes_on = slow_issuer
    checker = Tokens(Issuer(ISSUER, AUDIENCE, jwks_url="https://login.example.com/keys"))
    goes_on.set()
    assert checker.principal(token()).name == "bob"
    goes_on.clear()
    asked.clear()
    monkeypatch.setattr(tokens_module, "REFETCH_SECONDS", 0.0)
    monkeypatch.setattr(tokens_module, "WAIT_SECONDS", 60.0)
    made_up = token(kid="made up")
    refused: list[Exception] = []

    def ask() -> None:
        with pytest.raises(UnauthenticatedError) as found:
            checker.principal(made_up)
        refused.append(found.value)

    first = Thread(target=ask)
    first.start()
    assert asked.wait(60)
    began = time.monotonic()
    with pytest.raises(ServiceUnavailableError, match="being fetched"):
        checker.principal(made_up)  # one waits for the issuer, and no more
    assert checker.principal(token()).name == "bob"
    assert time.monotonic() - began < 20
    goes_on.set()
    first.join(60)
    assert len(refused) == 1


def test_without_any_keys_all_requests_together_wait_for_the_issuer_only_once(
    slow_issuer: tuple[Event, Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads on which they would wait identify those with API keys as well."""
    asked, goes_on = slow_issuer
    monkeypatch.setattr(tokens_module, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(tokens_module, "REFETCH_SECONDS", 3600.0)
    checker = Tokens(Issuer(ISSUER, AUDIENCE, jwks_url="https://login.example.com/keys"))
    waits, wait = list[float](), checker._is_read.wait

    def noted(seconds: float) -> bool:
        waits.append(seconds)
        return wait(seconds)

    monkeypatch.setattr(checker._is_read, "wait", noted)
    for _ in range(50):
        with pytest.raises(ServiceUnavailableError, match="being fetched"):
            checker.principal(token())
    assert asked.is_set()
    assert len(waits) == 50
    assert sum(waits) < 0.6  # each for itself would be 25
    monkeypatch.setattr(tokens_module, "WAIT_SECONDS", 60.0)
    goes_on.set()
    assert checker.principal(token()).name == "bob"


def test_a_change_of_the_grants_keeps_the_keys_of_an_issuer_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_file_module, "LOOK_SECONDS", -1.0)
    monkeypatch.setattr(tokens_module, "_fetch", lambda url: jwks("one", "two"))
    path = tmp_path / "access.toml"
    oidc = f'[oidc]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\njwks_url = "https://k.test"\n'
    path.write_text(oidc)
    security = Security(AccessFile(path))
    assert security.identify(Credentials("", token())).name == "bob"

    def away(url: str) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(tokens_module, "_fetch", away)
    path.write_text(f'{oidc}[[grants]]\nto = "bob"\non = "shop"\ncan = "read"\n')
    bob = security.identify(Credentials("", token()))
    assert security.may(bob, Access.READ, ("shop", "orders"))
    path.write_text(oidc.replace(AUDIENCE, "others"))
    with pytest.raises(ServiceUnavailableError):
        security.identify(Credentials("", token()))


@pytest.mark.slow
def test_a_key_file_is_read_again_when_it_may_have_changed(
    checker: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checker.principal(token()).name == "bob"
    renewed = new_key()
    (tmp_path / "key.pem").write_bytes(pem(renewed))
    with pytest.raises(UnauthenticatedError):
        checker.principal(token(key=renewed))
    monkeypatch.setattr(tokens_module, "REFETCH_SECONDS", 0.0)
    assert checker.principal(token(key=renewed)).name == "bob"


def test_credentials_are_read_from_headers_and_never_printed() -> None:
    shown = credentials_of_headers({"x-api-key": KEY, "authorization": "bearer T"})
    assert (shown.api_key, shown.token) == (KEY, "T")
    assert KEY not in repr(shown)
    assert credentials_of_headers({"authorization": "Basic abc"}).token == "?"
    assert not credentials_of_headers({})
    assert not credentials_of_headers({"authorization": "Bearer"}), "some send it without a token"


def test_names_of_keys_and_of_tokens_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(pem(private()))
    lines = ["[keys]", f'alice = "{hashed(KEY)}"', "[oidc]", f'issuer = "{ISSUER}"']
    lines += [f'audience = "{AUDIENCE}"', f'key_file = "{tmp_path / "key.pem"}"']
    (tmp_path / "access.toml").write_text("\n".join(lines))
    security = Security(AccessFile(tmp_path / "access.toml"))
    assert security.identify(Credentials(KEY)) == Principal("alice", "api-key")
    assert security.identify(Credentials("", token())).name == "bob"
    with pytest.raises(UnauthenticatedError, match="the name of an API key"):
        security.identify(Credentials("", token(sub="alice")))
    with pytest.raises(UnauthenticatedError):
        security.identify(Credentials(KEY, token(sub="alice")))
    with pytest.raises(UnauthenticatedError, match="cannot be recorded"):
        security.identify(Credentials("", token(sub="bob\n")))
