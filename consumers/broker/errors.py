"""What can go wrong with the embedded broker, one class per thing the caller does about it.

Every message says what was found and what to do next.
"""

import re
import resource
from collections.abc import Sequence
from pathlib import Path

from consumers.runtime.process import ending

NO_ROOM = ("No space left on device", "Disk quota exceeded", "not enough space")
LINES_SHOWN = 15
KILLED = 128
"""From here on, exit codes are of a process that a signal ended."""
# On a full disk the log cannot tell of it: it is there too.
FREE_BYTES_MIN = 4 * 1024 * 1024


class BrokerError(Exception):
    """Any failure of the embedded broker."""


class BrokerHasNoJava(BrokerError):
    """No Java of the needed version was found: install one, or name it in COMMITLOG_JAVA."""


class JarsUnavailable(BrokerError):
    """Kafka's jars could not be fetched into the cache: check the network, then start again."""


class CacheUnwritable(JarsUnavailable):
    """Nothing can be kept in the cache's folder: name another one by COMMITLOG_CACHE."""


class JarMismatch(BrokerError):
    """A fetched jar is not the pinned one: do not run it; find out who served it."""


class RootUnsuitable(BrokerError):
    """Kafka cannot keep its data at a path like this one: choose another root."""


class BrokerRunning(BrokerError):
    """Another broker runs on this root: use that one, stop it, or choose another root."""


class PortInUse(BrokerError):
    """Another process listens on the port: stop it, or ask for another port.

    Attributes:
        port: the port that was asked for.
    """

    def __init__(self, message: str, port: int) -> None:
        """Keep the port beside the message."""
        super().__init__(message)
        self.port = port


class DiskFull(BrokerError):
    """The broker's disk has no room: free some and start again; nothing acknowledged is lost."""


class TooFewFiles(BrokerError):
    """The broker may not have enough files open: raise the limit; nothing acknowledged is lost."""


class BrokerFailed(BrokerError):
    """The broker ended, or did not become ready, for a reason only its log tells."""


def failure(
    lines: Sequence[str], *, root: Path, exit_code: int | None, doing: str, free_bytes: int
) -> BrokerError:
    """Name why a broker ended by its log's last lines; `doing` is what it was to do ("run")."""
    text = "\n".join(lines)
    if found := re.search(r"failed to bind to \S*?:(\d+)", text):
        return port_in_use(int(found[1]))
    if free_bytes < FREE_BYTES_MIN or any(sign in text for sign in NO_ROOM):
        return disk_full(root)
    if "Too many open files" in text and (exit_code or 0) < KILLED:
        return too_few_files()
    if "OutOfMemoryError" in text or "Could not reserve enough space" in text:
        reason = "the broker had too little memory (about 1 GiB is needed)"
    elif exit_code is None:
        reason = f"the broker did not {doing} in time"
    else:
        code = KILLED - exit_code if exit_code > KILLED else exit_code
        reason = f"the broker ended with {ending(code)}"
    shown = [line for line in lines if line.strip()][-LINES_SHOWN:]
    place = f"its log is {root / 'kafka' / 'broker.log'}:"
    return BrokerFailed("\n  ".join([f"{reason}; {place}", *shown]))


def port_in_use(port: int) -> PortInUse:
    """The error for a port on which something else listens."""
    return PortInUse(
        f"port {port} is in use by another process: stop it, or choose another port with"
        " --kafka-port (0 picks a free one on a new root)",
        port,
    )


def too_few_files() -> TooFewFiles:
    """The error for a process that may not open what Kafka has to."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return TooFewFiles(
        f"the broker ran out of open files (it may have {most:,}): Kafka needs some hundred, and"
        " more for each partition and client; raise the limit (ulimit -n) and start again; what was"
        " acknowledged is kept"
    )


def disk_full(root: Path) -> DiskFull:
    """The error for a root without room."""
    return DiskFull(
        f"no space left on the disk of {root}: free some, then start again on the same root;"
        " what was acknowledged is kept"
    )
