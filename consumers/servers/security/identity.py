"""Who asks: credentials of a request, and the principal that they prove.

An API key is looked up by its sha256, so that it costs the same however many there are. The time
tells nothing about how much of a key was right: a dict compares two digests only if its own hash of
them is equal, which nobody can foretell.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from lance_namespace.errors import UnauthenticatedError

from commitlog.errors import NoSuchTable
from commitlog.model.names import label_problem
from commitlog.model.table import TableId
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.grants import Access, Principal, denied

API_KEY_HEADER = "x-api-key"
AUTHORIZATION_HEADER = "authorization"
_BEARER = "bearer"
_NO_BEARER = "?"
"""For a token of another scheme: credentials, but none that we know."""
_NO_TOKEN = "None"
"""What pyiceberg sends where it was given no token."""
CREDENTIAL_CHARACTERS_MAX = 16 * 1024
IDENTITY_THREADS = 4

PRINCIPAL = "principal"
"""Under which name who asks is left in a request's scope, by the limits or the guard."""

SEES = "commitlog.sees"
"""Under which name it leaves there what tells whether they may know of a namespace or table."""

CHECK_AGAIN = "commitlog.check_again"
"""Under which name it leaves there, for an answer that goes on, what raises once the credentials or
the grants end on which the request was admitted; awaited without arguments."""

ANYBODY = Principal("")
"""The principal where no proof is required."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request shows; never printed."""

    api_key: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        """Return True if it shows anything."""
        return bool(self.api_key or self.token)

    def is_like(self, other: Credentials) -> bool:
        """Return True if another part of the request shows nothing else than this."""
        return all(
            not theirs or hmac.compare_digest(mine.encode(), theirs.encode())
            for mine, theirs in ((self.api_key, other.api_key), (self.token, other.token))
        )


def credentials_of_headers(headers: Mapping[str, str]) -> Credentials:
    """Return what the headers show."""
    scheme, _, token = headers.get(AUTHORIZATION_HEADER, "").strip().partition(" ")
    if scheme and scheme.lower() != _BEARER:
        token = _NO_BEARER
    token = token.strip()
    shown = "" if token == _NO_TOKEN else token
    return Credentials(headers.get(API_KEY_HEADER, "").strip(), shown)


def credentials_of_body(identity: Any) -> Credentials:
    """Return what a body's `identity` shows."""
    if not isinstance(identity, Mapping):
        return Credentials()
    api_key, token = identity.get("api_key"), identity.get("auth_token")
    return Credentials(
        api_key if isinstance(api_key, str) else "", token if isinstance(token, str) else ""
    )


def may_take_long(shown: Credentials) -> bool:
    """Tell whether to identify these may have to wait: for the keys of tokens, from their issuer.

    An API key costs less than the way to another thread.
    """
    return bool(shown.token)


class Security:
    """Who may do what, for all APIs; without an access file anybody may do everything."""

    def __init__(self, access: AccessFile | None = None) -> None:
        """Take the access file, if there is one."""
        self._access = access
        self._threads = ThreadPoolExecutor(IDENTITY_THREADS, "identity")

    @property
    def is_on(self) -> bool:
        """Whether anybody has to prove anything."""
        return self._access is not None

    async def identified(self, shown: Credentials) -> Principal:
        """Identify in an event loop: on a thread if that may take long.

        Those threads do nothing else, so that nobody's requests keep others from being identified.
        """
        if not may_take_long(shown):
            return self.identify(shown)
        running = asyncio.get_running_loop()
        return await running.run_in_executor(self._threads, self.identify, shown)

    def identify(self, shown: Credentials) -> Principal:
        """Return who shows these credentials; UnauthenticatedError if they prove nothing."""
        if self._access is None:
            return ANYBODY
        if not shown:
            raise UnauthenticatedError(
                "the request has no credentials: send an API key as x-api-key, or a token "
                "as Authorization: Bearer"
            )
        if max(len(shown.api_key), len(shown.token)) > CREDENTIAL_CHARACTERS_MAX:
            raise UnauthenticatedError("the credentials are too long")
        rules = self._access.rules()
        if shown.token == _NO_BEARER:
            raise UnauthenticatedError(
                "the header Authorization has another scheme than Bearer: send a token as "
                "Authorization: Bearer, or an API key as x-api-key"
            )
        if shown.token:
            if rules.tokens is None:
                raise UnauthenticatedError("bearer tokens are not accepted here; send an API key")
            principal = rules.tokens.principal(shown.token)
            if label_problem(principal.name):
                raise UnauthenticatedError("the name of the token's principal cannot be recorded")
            if principal.name in rules.keys.values():
                # The issuer of tokens could hand out the key's grants, and sign its records.
                raise UnauthenticatedError(
                    f"the token is for {principal.name!r}, which is also the name of an API "
                    "key; rename the key, or send it too"
                )
            if shown.api_key and _owner(rules.keys, shown.api_key) != principal.name:
                raise UnauthenticatedError(
                    "the API key and the token belong to different principals; send one of them"
                )
            return principal
        name = _owner(rules.keys, shown.api_key)
        if name is None:
            raise UnauthenticatedError("the API key is not known")
        return Principal(name, "api-key")

    def may(self, principal: Principal, access: Access, what: TableId) -> bool:
        """Return True if a principal has this access to a namespace or table."""
        return self._access is None or self._access.rules().grants.may(principal, access, what)

    def check(self, principal: Principal, access: Access, what: TableId) -> None:
        """Refuse what no grant allows."""
        if not self.may(principal, access, what):
            raise denied(principal, access, what)

    def sees(self, principal: Principal, what: TableId) -> bool:
        """Return True if a principal may know that it is there."""
        return self._access is None or self._access.rules().grants.sees(principal, what)

    def shown(self, principal: Principal, refusal: NoSuchTable) -> str:
        """Return a refusal without other names, unless its reader may see all that there are."""
        may_see_all = self.may(principal, Access.READ, ())
        return str(refusal) if may_see_all else str(refusal).removesuffix(f" {refusal.hint}")


def _owner(keys: Mapping[bytes, str], key: str) -> str | None:
    return keys.get(hashlib.sha256(key.encode()).digest())
