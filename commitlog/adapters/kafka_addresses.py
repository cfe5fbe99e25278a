"""What can be the address of a cluster."""

from __future__ import annotations

import re

from commitlog.errors import InvalidSettings

_ADDRESS = re.compile(
    r"(?:(?:plaintext|ssl|sasl_plaintext|sasl_ssl)://)?"
    r"(?:\[[0-9a-f:.%]+\]|[^\s\x00-\x1f:/,;\[\]]+)(?::(?P<port>\d{1,5}))?",
    re.IGNORECASE,
)
_PORT_MAX = 65_535


def checked_address(servers: object) -> str:
    """Return a valid address of a cluster; librdkafka takes anything and waits for it."""
    if not isinstance(servers, str):
        raise InvalidSettings(
            f"bootstrap_servers cannot be {servers!r}: name the cluster as text, HOST:PORT,..."
        )
    named = [one.strip() for one in servers.split(",") if one.strip()]
    if not named:
        raise InvalidSettings(
            f"bootstrap_servers cannot be {servers!r}: it names no cluster. Give HOST:PORT,..."
        )
    for one in named:
        found = _ADDRESS.fullmatch(one)
        if not found or not 0 < int(found["port"] or 1) <= _PORT_MAX:
            raise InvalidSettings(
                f"bootstrap_servers cannot be {one!r}: give HOST:PORT, with a port from 1 to"
                f" {_PORT_MAX} and an IPv6 address in brackets"
            )
    return servers
