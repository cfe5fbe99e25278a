"""What `+` in a path means: a space or itself, as its client writes names."""

from __future__ import annotations

import re

_NAMED = re.compile(rb"/v1/(?:at-[^/]*/)?(?:table|namespaces?)/")
"""Paths with names. Lance's Rust client and Iceberg's Java client write a space as `+` in them,
and `+` as `%2B`.
"""
_PLUS_IS_PLUS = ("GoIceberg/", "Go-http-client/", "iceberg-rs/")
"""How others name themselves: Go and Iceberg's Rust client leave `+` as it is."""


def has_spaces(target: bytes, agent: str) -> bool:
    """Return True if `+` stands for spaces in a path, by its client's `User-Agent`."""
    if b"+" not in target or agent.startswith(_PLUS_IS_PLUS):
        return False
    return _NAMED.search(target) is not None
