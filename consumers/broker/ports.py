"""Choosing loopback ports that stay free for as long as possible."""

import random
import socket

from consumers.broker.configuration import HOST

# Below the range from which systems take the ports of outgoing connections: a port kept over
# restarts would otherwise be taken, sooner or later, by somebody's client.
FIRST, LAST = 20_000, 32_000
TRIES_MAX = 200


def is_free(port: int) -> bool:
    """Whether a server could listen on the loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        # As the broker does: connections that are only lingering do not count.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen(1)
        except OSError:
            return False
        return True


def pick(*, but_not: int = 0) -> int:
    """Return a free port, another than `but_not`."""
    # Not the seeded generator: tests that seed alike would all pick the same ports.
    chooser = random.SystemRandom()
    for _ in range(TRIES_MAX):
        port = chooser.randint(FIRST, LAST)
        if port != but_not and is_free(port):
            return port
    raise OSError(f"no free port among {TRIES_MAX} tried from {FIRST} to {LAST} on {HOST}")
