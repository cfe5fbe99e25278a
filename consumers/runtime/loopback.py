"""Is an address of this machine only?"""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return True if only programs of this machine can reach what listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
