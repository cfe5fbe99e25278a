"""The access file: API keys, the issuer of tokens, and grants, in TOML.

    [keys]
    alice = "sha256:5e88…"                  # printf %s "$KEY" | sha256sum
    ci = { env = "CI_API_KEY" }             # or { file = "/run/secrets/ci" }

    [oidc]
    issuer = "https://login.example.com"
    audience = "commitlog"

    [[grants]]
    to = "alice"                            # a principal, "group:analysts", or "*"
    on = "shop"                             # a namespace with all in it, a table, or "$"
    can = "write"                           # read, write or admin

It is read again when it changes, or a file with a key that it names. A change that is invalid is
reported, and what was read before holds on; at the start it is refused.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from commitlog.errors import CommitLogError
from commitlog.model.table import parse_table_id
from consumers.runtime.config import ConfigurationError
from consumers.servers.security.grants import Access, Grant, Grants
from consumers.servers.security.tokens import ALGORITHMS, Issuer, Tokens

LOOK_SECONDS = 0.5
"""How often a change is looked for."""
KEY_CHARACTERS_MIN = 16
_HASH = re.compile(r"sha256:([0-9a-f]{64})")

_FileState = tuple[int, int, int]
_GONE: _FileState = (0, 0, 0)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What one reading of the file says."""

    keys: Mapping[bytes, str]
    """By the sha256 of each API key, whose it is."""
    tokens: Tokens | None
    grants: Grants
    files: Mapping[Path, _FileState] = field(default_factory=dict)
    """The files that hold keys, as they were when they were read, or older."""


class AccessFile:
    """The rules in force. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Read the file; ConfigurationError if it is invalid."""
        self._path = path
        self._lock = threading.Lock()
        self._seen = {path: _state(path)}
        self._rules = self._read()
        self._looked_at = time.monotonic()
        self._problem = ""
        """What the last look at the file ended with, as it was logged."""

    def rules(self) -> AccessRules:
        """Return the rules, as of at most half a second ago."""
        now = time.monotonic()
        if now - self._looked_at > LOOK_SECONDS:
            with self._lock:
                self._looked_at = now
                self._look()
        return self._rules

    def _look(self) -> None:
        before, self._problem = self._problem, ""
        try:
            known = {**self._seen, **self._rules.files}
            if {path: _state(path) for path in known} != known:
                seen = {self._path: _state(self._path)}
                read, before_it = self._read(), self._rules.tokens
                if read.tokens is not None and before_it is not None:
                    read.tokens.begin_with_keys_of(before_it)
                self._seen, self._rules = seen, read
                logger.info("%s was read again", self._path)
        except ConfigurationError as error:
            self._problem = str(error)
            if self._problem != before:
                logger.error("the previous grants stay in force: %s", error)

    def _read(self) -> AccessRules:
        try:
            return read_rules(tomllib.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, CommitLogError) as error:
            raise ConfigurationError(f"access_file {self._path}: {error}") from error


def _state(path: Path) -> _FileState:
    try:
        stat = os.stat(path)
    except OSError:
        return _GONE  # who needs it says so when it is read
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def read_rules(table: Mapping[str, Any]) -> AccessRules:
    """Read the file's content; ConfigurationError names what is wrong, and never a key."""
    _only(table, "it", {"keys", "oidc", "grants"})
    keys = table.get("keys", {})
    if not isinstance(keys, dict):
        raise ConfigurationError("`keys` is a table: [keys]")
    issuer = table.get("oidc")
    named = [one.get("file") for one in keys.values() if isinstance(one, Mapping)]
    named.append(issuer.get("key_file") if isinstance(issuer, Mapping) else None)
    files = {
        path: _state(path)
        for name in named
        if isinstance(name, str) and name
        for path in (Path(name),)
    }
    hashes = {_key_hash(name, value): name for name, value in keys.items()}
    if len(hashes) < len(keys):
        raise ConfigurationError("[keys]: two principals have the same key")
    if not hashes and issuer is None:
        raise ConfigurationError(
            "it has neither [keys] nor [oidc], so no client could authenticate"
        )
    grants = table.get("grants", [])
    if not isinstance(grants, list):
        raise ConfigurationError("`grants` must be a list of tables: [[grants]]")
    return AccessRules(
        hashes,
        Tokens(_issuer(issuer)) if issuer is not None else None,
        Grants(_grant(number, one) for number, one in enumerate(grants, 1)),
        files,
    )


def _key_hash(name: str, value: Any) -> bytes:
    where = f"[keys] {name}"
    if isinstance(value, str):
        found = _HASH.fullmatch(value)
        if found is None:
            raise ConfigurationError(
                f"{where}: give the key's hash, sha256:HEX, or where the key is: {{ env = "
                '"NAME" }, { file = "PATH" }; never the key itself'
            )
        return bytes.fromhex(found[1])
    _only(value, where, {"env", "file"})
    if len(value) != 1:
        raise ConfigurationError(f"{where}: give one of env and file")
    if "env" in value:
        key = os.environ.get(str(value["env"]), "")
    else:
        key = Path(str(value["file"])).read_text(encoding="utf-8").strip()
    if len(key) < KEY_CHARACTERS_MIN:
        raise ConfigurationError(
            f"{where}: the key is missing or has under {KEY_CHARACTERS_MIN} characters"
        )
    return hashlib.sha256(key.encode()).digest()


def _issuer(value: Any) -> Issuer:
    known = {one.name for one in fields(Issuer)}
    _only(value, "[oidc]", known)
    for name in ("issuer", "audience"):
        if not isinstance(value.get(name), str) or not value[name]:
            raise ConfigurationError(f"[oidc]: {name} is required, as a string")
    given = dict(value)
    algorithms = given.get("algorithms", list(ALGORITHMS))
    if not isinstance(algorithms, list) or not all(one in ALGORITHMS for one in algorithms):
        raise ConfigurationError(f"[oidc]: algorithms must be some of {', '.join(ALGORITHMS)}")
    given["algorithms"] = tuple(algorithms)
    for name, one in value.items():
        if name == "leeway_seconds":
            if type(one) is not int or one < 0:
                raise ConfigurationError(f"[oidc]: {name} must be a whole number, from 0")
        elif name != "algorithms" and not isinstance(one, str):
            raise ConfigurationError(f"[oidc]: {name} must be a string")
    return Issuer(**given)


def _grant(number: int, value: Any) -> Grant:
    where = f"[[grants]] {number}"
    _only(value, where, {"to", "on", "can"})
    to, on, can = (value.get(name) for name in ("to", "on", "can"))
    if not isinstance(to, str) or not to or not isinstance(on, str) or not on:
        raise ConfigurationError(f"{where}: `to` and `on` are required, as strings")
    if can not in [access.name.lower() for access in Access]:
        raise ConfigurationError(f"{where}: `can` must be read, write or admin, not {can!r}")
    return Grant(to, () if on == "$" else parse_table_id(on), Access[str(can).upper()])


def _only(value: Any, where: str, known: set[str]) -> None:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{where} is a table")
    unknown = sorted(set(value) - known)
    if unknown:
        raise ConfigurationError(
            f"{where} has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}"
        )
