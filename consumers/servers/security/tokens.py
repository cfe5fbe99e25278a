"""Bearer tokens: JSON Web Tokens of an OAuth2 or OpenID Connect issuer, checked offline.

The issuer's public keys come from a file (PEM, or a JWKS), from an environment variable, from a
JWKS address, or from the address that the issuer's own discovery document names. Keys from an
address are kept for a while; an unknown key id has them fetched again, at most once in a while, and
so has a signature that no key fits, since an issuer may replace a key without another id.
Requests don't wait for an issuer that hangs: they get 503 until its keys are there.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import urlsplit

import jwt
from lance_namespace.errors import ServiceUnavailableError, UnauthenticatedError

from consumers.servers.security.grants import Principal

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Only signatures by a private key: a shared secret would be anybody's who checks it."""
KEYS_SECONDS = 300.0
"""After how long the keys are fetched again; those known are used meanwhile."""
KEYS_SECONDS_MAX = 600.0
"""After how long requests wait for them first, as far as they wait at all: the issuer may have
taken a key back while nobody asked."""
REFETCH_SECONDS = 30.0
FETCH_TIMEOUT_SECONDS = 5.0
FETCH_SECONDS_MAX = 30.0
"""How long a document may take as a whole: until it is there, no other is fetched."""
KEYS_TRIED_MAX = 10
"""How many keys without an id are tried, or all of them with a token that names none."""
WAIT_SECONDS = 1.0
"""How long requests wait for keys, counted from when these were asked for."""
FETCH_BYTES_MAX = 1024 * 1024
LEEWAY_SECONDS = 30

_PEM = "-----BEGIN"

Keys = Mapping[str, Sequence[Any]]
"""Public keys by their ids: of several with one id, or without any, each may fit."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Issuer:
    """Whose tokens are taken, and what in them says who it is."""

    issuer: str
    audience: str
    key_file: str = ""
    key_env: str = ""
    jwks_url: str = ""
    algorithms: tuple[str, ...] = ALGORITHMS
    principal_claim: str = "sub"
    groups_claim: str = "groups"
    leeway_seconds: int = LEEWAY_SECONDS


class Tokens:
    """Checks tokens of one issuer. Thread-safe."""

    def __init__(self, issuer: Issuer) -> None:
        """Take the issuer; its keys are read with the first token."""
        self._issuer = issuer
        self._lock = Lock()
        self._keys: Keys = {}
        self._read_at = float("-inf")
        """When these were read."""
        self._began_at = float("-inf")
        """When the keys were last asked for."""
        self._is_read = Event()
        """Set while they aren't being asked for."""
        self._is_read.set()
        self._failure: Exception | None = None
        """Why the keys couldn't be read at the last try."""

    def begin_with_keys_of(self, other: Tokens) -> None:
        """Take what another knows of the same issuer, until that sends its keys: it may be away."""
        if self._issuer == other._issuer:
            self._keys, self._read_at = other._keys, other._read_at

    def principal(self, token: str) -> Principal:
        """Return who a token is for; UnauthenticatedError if it isn't valid."""
        issuer = self._issuer
        try:
            claims = self._claims(token)
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            # A token's contents are private: only the kind of its fault is told.
            todo = f"get a new one from {issuer.issuer}"
            if isinstance(error, jwt.ImmatureSignatureError):
                todo = f"compare this server's clock with that of {issuer.issuer}"
            elif isinstance(error, jwt.ExpiredSignatureError):
                todo += ". If that is refused as well, compare this server's clock with its"
            raise UnauthenticatedError(
                f"the bearer token is not valid ({type(error).__name__}); {todo}"
            ) from error
        name = claims.get(issuer.principal_claim)
        if not isinstance(name, str) or not name:
            raise UnauthenticatedError(f"the bearer token has no claim {issuer.principal_claim!r}")
        groups = claims.get(issuer.groups_claim, ())
        if isinstance(groups, str):
            groups = groups.split()
        known = [one for one in groups if isinstance(one, str)] if isinstance(groups, list) else ()
        return Principal(name, "bearer", frozenset(known))

    def _claims(self, token: str) -> Mapping[str, Any]:
        key_id = str(jwt.get_unverified_header(token).get("kid", ""))
        keys = self._current(key_id)
        try:
            return self._checked(token, _fitting(keys, key_id))
        except (jwt.InvalidSignatureError, jwt.InvalidKeyError):
            renewed = self._current(key_id, is_wrong=True)
            if renewed is keys:
                raise
        return self._checked(token, _fitting(renewed, key_id))

    def _checked(self, token: str, keys: Sequence[Any]) -> Mapping[str, Any]:
        issuer = self._issuer
        problem: Exception = jwt.InvalidKeyError("no such key")
        for key in keys:
            try:
                claims: Mapping[str, Any] = jwt.decode(
                    token,
                    key,
                    algorithms=list(issuer.algorithms),
                    audience=issuer.audience,
                    issuer=issuer.issuer,
                    leeway=issuer.leeway_seconds,
                    options={"require": ["exp", "iss", "aud"]},
                )
            except (jwt.InvalidSignatureError, jwt.InvalidKeyError, TypeError) as error:
                problem = error  # another key may fit: the signature is checked before the claims
            else:
                return claims
        raise problem

    def _current(self, key_id: str, *, is_wrong: bool = False) -> Keys:
        """Return the keys, read again where that is due; `is_wrong` if none of them fitted."""
        is_known = bool(_fitting(self._keys, key_id))
        # A file may change at any time, and has no ids that would tell.
        is_kept = is_known and not is_wrong and not self._issuer.key_file and self._failure is None
        began_here = self._begin_reading(KEYS_SECONDS if is_kept else REFETCH_SECONDS)
        is_old = time.monotonic() - self._read_at > KEYS_SECONDS_MAX
        # An id that nobody knows can be made up by anybody, and so can a signature: one request
        # waits for the keys. Where there is none yet, or they are old, all do. But they share the
        # seconds that an issuer may keep them.
        if is_old or ((is_wrong or not is_known) and began_here):
            left = self._began_at + WAIT_SECONDS - time.monotonic()
            self._is_read.wait(max(0.0, left))
            is_known = bool(_fitting(self._keys, key_id))
        if (is_wrong or not is_known) and not self._is_read.is_set():
            raise ServiceUnavailableError(
                f"the keys of {self._issuer.issuer} are being fetched; try again"
            )
        failure = self._failure
        if failure is not None and not is_known:
            # Nobody can say that the token is wrong, until the keys are read again either.
            raise ServiceUnavailableError(
                f"the keys of {self._issuer.issuer} cannot be read "
                f"({type(failure).__name__}); try again"
            ) from failure
        return self._keys

    def _begin_reading(self, seconds: float) -> bool:
        """Begin to read the keys if they are older than this; return True if so.

        An issuer may take its time: it is asked on a thread of its own.
        """
        with self._lock:
            is_due = time.monotonic() - self._began_at > seconds
            if not is_due or not self._is_read.is_set():
                return False
            self._began_at = time.monotonic()
            self._is_read.clear()
        if self._issuer.key_file or self._issuer.key_env:
            self._read_keys()
        else:
            Thread(target=self._read_keys, name="issuer-keys", daemon=True).start()
        return True

    def _read_keys(self) -> None:
        try:
            began = time.monotonic()
            self._keys, self._failure = self._read(), None
            self._read_at = began
        except Exception as error:  # an issuer may send anything
            self._failure = error
            logger.warning("the keys of %s cannot be read: %s", self._issuer.issuer, error)
        finally:
            self._is_read.set()

    def _read(self) -> Keys:
        issuer = self._issuer
        if issuer.key_file:
            return read_keys(Path(issuer.key_file).read_text())
        if issuer.key_env:
            return read_keys(os.environ.get(issuer.key_env, ""))
        url = issuer.jwks_url
        if not url:
            base = issuer.issuer.rstrip("/")
            found = json.loads(_fetch(f"{base}/.well-known/openid-configuration"))
            url = str(found["jwks_uri"]) if isinstance(found, dict) and "jwks_uri" in found else ""
        return read_keys(_fetch(url))


def read_keys(text: str) -> Keys:
    """Return public keys by their ids, from a JWKS or from PEMs; a PEM's id is ""."""
    found: dict[str, list[Any]] = {}
    if _PEM in text:
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        if "PRIVATE KEY" in text:
            raise ValueError(
                "tokens are checked with a public key: name it instead of the private key"
            )
        pems = text.split(_PEM)[1:]
        found[""] = [load_pem_public_key((_PEM + one).encode()) for one in pems]
    else:
        for key in jwt.PyJWKSet.from_json(text).keys:
            if key.key_type != "oct" and key.public_key_use in (None, "sig"):
                found.setdefault(key.key_id or "", []).append(key.key)
    return {key_id: tuple(keys[:KEYS_TRIED_MAX]) for key_id, keys in found.items()}


def _fitting(keys: Keys, key_id: str) -> Sequence[Any]:
    """Return those with which a token may be signed that names this id, or "" for none."""
    if key_id:
        return keys.get(key_id) or keys.get("", ())
    return list(chain.from_iterable(keys.values()))[:KEYS_TRIED_MAX]


def _fetch(url: str) -> str:
    _check(url)
    try:
        with _OPENER.open(url, timeout=FETCH_TIMEOUT_SECONDS) as response:
            data = _body(response)
    except urllib.error.HTTPError as error:
        error.close()  # it still holds the connection
        raise
    return data.decode()


def _body(response: http.client.HTTPResponse) -> bytes:
    pieces, size = [], 0
    deadline = time.monotonic() + FETCH_SECONDS_MAX
    while piece := response.read1(FETCH_BYTES_MAX):
        pieces.append(piece)
        size += len(piece)
        if size > FETCH_BYTES_MAX:
            raise ValueError("the key set is too large")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the key set took more than {FETCH_SECONDS_MAX:g} seconds")
    return b"".join(pieces)


def _check(url: str) -> None:
    # A document may not send us to a file of this machine.
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
    if parts.scheme != "https" and not is_local:
        raise ValueError("keys are only fetched from https://")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Goes on only where keys may be fetched from."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        try:
            _check(newurl)
        except ValueError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_Redirects)
