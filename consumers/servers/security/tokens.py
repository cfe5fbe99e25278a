"""Bearer tokens: JSON Web Tokens of an OAuth2 or OpenID Connect issuer, checked offline.

The issuer's public keys come from a file (PEM, or a JWKS), from an environment variable, from a
JWKS address, or from the address that the issuer's own discovery document names. Keys from an
address are kept for a while; an unknown key id has them fetched again, at most once in a while.
Requests don't wait for an issuer that hangs: they get 503 until its keys are there.
"""

from __future__ import annotations

import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import urlsplit

import jwt
from lance_namespace.errors import ServiceUnavailableError, UnauthenticatedError

from consumers.servers.security.grants import Principal

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Only signatures by a private key: a shared secret would be anybody's who checks it."""
KEYS_SECONDS = 3600.0
REFETCH_SECONDS = 30.0
FETCH_TIMEOUT_SECONDS = 5.0
WAIT_SECONDS = 1.0
"""How long requests wait for keys, counted from when these were asked for."""
FETCH_BYTES_MAX = 1024 * 1024
LEEWAY_SECONDS = 30

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
        self._keys: Mapping[str, Any] = {}
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
            self._keys = other._keys

    def principal(self, token: str) -> Principal:
        """Return who a token is for; UnauthenticatedError if it isn't valid."""
        issuer = self._issuer
        try:
            header = jwt.get_unverified_header(token)
            claims = jwt.decode(
                token,
                self._key(str(header.get("kid", ""))),
                algorithms=list(issuer.algorithms),
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=issuer.leeway_seconds,
                options={"require": ["exp", "iss", "aud"]},
            )
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
        found = frozenset(str(group) for group in groups) if isinstance(groups, list) else ()
        return Principal(name, "bearer", frozenset(found))

    def _key(self, key_id: str) -> Any:
        keys = self._current(key_id)
        if key_id in keys:
            return keys[key_id]
        if len(keys) == 1 and (not key_id or "" in keys):
            return next(iter(keys.values()))
        raise jwt.InvalidKeyError(f"no key {key_id!r}")

    def _current(self, key_id: str) -> Mapping[str, Any]:
        is_known = key_id in self._keys or "" in self._keys
        # A file may change at any time, and has no ids that would tell.
        is_kept = is_known and not self._issuer.key_file and self._failure is None
        began_here = self._begin_reading(KEYS_SECONDS if is_kept else REFETCH_SECONDS)
        # An id that nobody knows can be made up by anybody, so one request waits for its key. Where
        # there is no key yet, all do. But they share the seconds that an issuer may keep them.
        if not is_known and (began_here or not self._keys):
            left = self._began_at + WAIT_SECONDS - time.monotonic()
            self._is_read.wait(max(0.0, left))
            is_known = key_id in self._keys or "" in self._keys
        if not is_known and not self._is_read.is_set():
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
            self._keys, self._failure = self._read(), None
        except Exception as error:  # an issuer may send anything
            self._failure = error
            logger.warning("the keys of %s cannot be read: %s", self._issuer.issuer, error)
        finally:
            self._is_read.set()

    def _read(self) -> Mapping[str, Any]:
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


def read_keys(text: str) -> Mapping[str, Any]:
    """Return public keys by their ids, from a JWKS or a PEM; a PEM's id is ""."""
    if "-----BEGIN" in text:
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        if "PRIVATE KEY" in text:
            raise ValueError(
                "tokens are checked with a public key: name it instead of the private key"
            )
        return {"": load_pem_public_key(text.encode())}
    keys = jwt.PyJWKSet.from_json(text).keys
    return {key.key_id or "": key.key for key in keys if key.key_type != "oct"}


def _fetch(url: str) -> str:
    _check(url)
    try:
        with _OPENER.open(url, timeout=FETCH_TIMEOUT_SECONDS) as response:
            data: bytes = response.read(FETCH_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        error.close()  # it still holds the connection
        raise
    if len(data) > FETCH_BYTES_MAX:
        raise ValueError("the key set is too large")
    return data.decode()


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
