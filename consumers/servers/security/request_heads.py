"""What a request's head means: the host that it asks for, and `+` in its path.

The name of a page may lead to this machine (DNS rebinding). Its browser then takes the server for
the page's own site, which may read and change everything. Only the name that it sends tells."""

from __future__ import annotations

import re
import socket
from functools import lru_cache
from ipaddress import ip_address

from consumers.runtime.roots import is_loopback

ANY = "*"
_NOT_PUBLIC = ("internal", "lan", "local", "localdomain", "localhost", "test", "home.arpa")
"""How names end that nobody can register: those of containers and clusters, among others."""
_MAPPED = "::ffff:"
"""Before an IPv4 address, where a socket takes both kinds."""
_REMEMBERED_MAX = 1024


@lru_cache(_REMEMBERED_MAX)
def is_foreign(server: tuple[str, int | None] | None, host: str, known: frozenset[str]) -> bool:
    """Return True if a request to a loopback address asks for a name that somebody may own.

    `server` is the address that was reached, `host` the name with its port, and `known` has names
    that are the server's own.
    """
    reached = server[0].removeprefix(_MAPPED) if server else ""
    if not is_loopback(reached) or ANY in known or host.startswith("["):
        return False
    name = host.partition(":")[0].rstrip(".").lower()
    is_private = "." not in name or name.endswith(tuple(f".{end}" for end in _NOT_PUBLIC))
    return not (
        is_private or _is_address(name) or name in known or name == socket.gethostname().lower()
    )


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


_NAMED = re.compile(rb"/v1/(?:at-[^/]*/)?(?:table|namespaces?)/")
"""Paths with names. Lance's Rust client and Iceberg's Java client write a space as `+` in them,
and `+` as `%2B`.
"""
_PLUS_IS_PLUS = ("GoIceberg/", "Go-http-client/", "iceberg-rs/")
"""How others name themselves: Go and Iceberg's Rust client leave `+` as it is."""


def meant_target(target: bytes, agent: str, base_path: str = "") -> bytes:
    """Return a path as its client means it, who names itself by its `User-Agent`.

    `+` may stand for spaces. A client whose address of this server, or of its base path, ends with
    a slash sends two.
    """
    for base in (b"", base_path.encode()):
        if target.startswith(base + b"//"):
            target = base + b"/" + target[len(base) :].lstrip(b"/")
    if b"+" in target and not agent.startswith(_PLUS_IS_PLUS) and _NAMED.search(target):
        return target.replace(b"+", b"%20")
    return target
