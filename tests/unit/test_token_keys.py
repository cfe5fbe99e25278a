"""Do an issuer's keys come and go in time, however it replaces them?"""

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from lance_namespace.errors import ServiceUnavailableError, UnauthenticatedError

from consumers.servers.security import access_file as access_file_module
from consumers.servers.security import tokens as tokens_module
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Credentials, Security
from consumers.servers.security.tokens import Issuer, Tokens, read_keys
from tests.unit.test_security import AUDIENCE, ISSUER, new_key, pem, private, token
from tests.waiting import wait_until

URL = "https://login.example.com/keys"
next_key = cache(new_key)
"""Returns the key that comes after the first."""


def key_set(*keys: tuple[rsa.RSAPrivateKey, dict[str, Any]]) -> str:
    made = jwt.algorithms.RSAAlgorithm.to_jwk
    shown = [{**json.loads(made(key.public_key())), **more} for key, more in keys]
    return json.dumps({"keys": shown})


class Clock:
    """A clock that a test moves."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(tokens_module, "time", made)
    return made


@pytest.fixture
def documents(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the issuer sends: the last of these."""
    found: list[str] = []
    monkeypatch.setattr(tokens_module, "_fetch", lambda url: found[-1])
    return found


def checker() -> Tokens:
    return Tokens(Issuer(ISSUER, AUDIENCE, jwks_url=URL))


@pytest.mark.parametrize("named", [{"kid": "one"}, {}])
def test_a_key_that_is_replaced_under_its_id_counts_after_half_a_minute(
    clock: Clock, documents: list[str], named: dict[str, Any]
) -> None:
    documents.append(key_set((private(), named)))
    tokens = checker()
    assert tokens.principal(token()).name == "bob"
    documents.append(key_set((next_key(), named)))
    with pytest.raises(UnauthenticatedError):
        tokens.principal(token(next_key()))
    clock.now += tokens_module.REFETCH_SECONDS + 1
    assert tokens.principal(token(next_key())).name == "bob"
    with pytest.raises(UnauthenticatedError):
        tokens.principal(token())


def test_a_signature_of_nobody_is_refused_whether_the_issuer_answers_or_not(
    clock: Clock, documents: list[str]
) -> None:
    documents.append(key_set((private(), {"kid": "one"})))
    tokens = checker()
    for document in (documents[0], "no JSON"):
        documents.append(document)
        clock.now += tokens_module.REFETCH_SECONDS + 1
        with pytest.raises(UnauthenticatedError):
            tokens.principal(token(next_key()))
        assert tokens.principal(token()).name == "bob"


def test_a_key_that_was_taken_back_while_nobody_asked_opens_nothing(
    clock: Clock, documents: list[str]
) -> None:
    both = ((private(), {"kid": "one"}), (next_key(), {"kid": "two"}))
    documents.append(key_set(*both))
    tokens = checker()
    assert tokens.principal(token()).name == "bob"
    documents.append(key_set(both[1]))
    clock.now += tokens_module.KEYS_SECONDS_MAX + 1
    with pytest.raises(UnauthenticatedError):
        tokens.principal(token())
    assert tokens.principal(token(next_key(), kid="two")).name == "bob"


def test_keys_are_fetched_again_behind_the_requests(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load, nobody waits; an issuer that sends its keys by drops is asked once."""
    asked, goes_on = [0], Event()

    def slow(url: str) -> str:
        asked[0] += 1
        assert asked[0] == 1 or goes_on.wait(60)
        keys = [(private(), {"kid": "one"}), (next_key(), {"kid": "two"})]
        return key_set(*(keys if asked[0] == 1 else keys[1:]))

    monkeypatch.setattr(tokens_module, "_fetch", slow)
    tokens = checker()
    assert tokens.principal(token()).name == "bob"
    clock.now += tokens_module.KEYS_SECONDS + 1
    for _ in range(20):
        assert tokens.principal(token()).name == "bob"
    assert asked == [2]
    goes_on.set()

    def is_refused() -> bool:
        try:
            tokens.principal(token())
        except UnauthenticatedError:
            return True
        return False

    wait_until(is_refused, "the key that was taken back to count no more")
    assert tokens.principal(token(next_key(), kid="two")).name == "bob"


def two_pems() -> str:
    return (pem(private()) + pem(next_key())).decode()


@pytest.mark.parametrize(
    "text", [two_pems, lambda: key_set((private(), {}), (next_key(), {"kid": ""}))]
)
def test_of_several_keys_without_an_id_each_may_fit(
    tmp_path: Path, text: Callable[[], str]
) -> None:
    (tmp_path / "keys").write_text(text())
    tokens = Tokens(Issuer(ISSUER, AUDIENCE, key_file=str(tmp_path / "keys")))
    for key in (private(), next_key()):
        for kid in ("one", ""):
            assert tokens.principal(token(key, kid=kid)).name == "bob"
    with pytest.raises(UnauthenticatedError, match="ExpiredSignature"):
        tokens.principal(token(exp=1))
    with pytest.raises(UnauthenticatedError):
        tokens.principal(token(new_key()))


def test_a_key_that_encrypts_signs_nothing() -> None:
    keys = read_keys(key_set((private(), {"kid": "e", "use": "enc"}), (next_key(), {"kid": "s"})))
    assert list(keys) == ["s"]


def test_only_texts_are_groups(clock: Clock, documents: list[str]) -> None:
    documents.append(key_set((private(), {"kid": "one"})))
    found = checker().principal(token(groups=["eyes", None, True, 5, {"name": "x"}]))
    assert found.groups == {"eyes"}


def test_a_document_that_comes_by_drops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each drop comes in time, and the next fetch would wait for the last one."""
    monkeypatch.setattr(tokens_module, "FETCH_SECONDS_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ends = Event()

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):  # who gives up hangs up
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                while not ends.wait(0.02):
                    connection.sendall(b" ")

        thread = Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(TimeoutError, match=r"more than 0\.2 seconds"):
                tokens_module._fetch(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        finally:
            ends.set()
            thread.join(60)


def test_a_changed_file_of_the_issuers_keys_is_noticed_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_file_module, "LOOK_SECONDS", -1.0)
    keys, access = tmp_path / "keys.pem", tmp_path / "access.toml"
    keys.write_bytes(pem(private()))
    access.write_text(
        f'[oidc]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\nkey_file = "{keys}"\n'
    )
    security = Security(AccessFile(access))
    assert security.identify(Credentials("", token())).name == "bob"
    keys.write_bytes(pem(next_key()) + b"\n")
    assert security.identify(Credentials("", token(next_key()))).name == "bob"
    with pytest.raises(UnauthenticatedError):
        security.identify(Credentials("", token()))


def test_without_keys_a_token_is_neither_right_nor_wrong(
    clock: Clock, documents: list[str]
) -> None:
    documents.append("no JSON")
    with pytest.raises(ServiceUnavailableError, match="cannot be read"):
        checker().principal(token())
