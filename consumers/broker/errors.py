"""What can go wrong with the embedded broker, one class per thing the caller does about it.

Every message says what was found and what to do next.
"""

from pathlib import Path


class BrokerError(Exception):
    """Any failure of the embedded broker."""


class BrokerHasNoJava(BrokerError):
    """No Java of the needed version was found: install one, or name it in COMMITLOG_JAVA."""


class JarsUnavailable(BrokerError):
    """Kafka's jars could not be fetched into the cache: check the network, then start again."""


class JarMismatch(BrokerError):
    """A fetched jar is not the pinned one: do not run it; find out who served it.

    Attributes:
        jars: file names that differ from the pins, are missing, or were never pinned.
    """

    def __init__(self, message: str, jars: tuple[str, ...]) -> None:
        """Keep the names beside the message."""
        super().__init__(message)
        self.jars = jars


class RootUnsuitable(BrokerError):
    """Kafka cannot keep its data at a path like this one: choose another root."""


class BrokerRunning(BrokerError):
    """Another broker runs on this root: use that one, stop it, or choose another root.

    Attributes:
        root: the root both wanted.
        pid: the running broker's process id, None if it wrote none yet.
    """

    def __init__(self, message: str, root: Path, pid: int | None) -> None:
        """Keep root and process id beside the message."""
        super().__init__(message)
        self.root = root
        self.pid = pid


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
    """The broker's disk has no room: free some and start again; nothing acknowledged is lost.

    Attributes:
        root: the root that is on the full disk.
    """

    def __init__(self, message: str, root: Path) -> None:
        """Keep the root beside the message."""
        super().__init__(message)
        self.root = root


class TooFewFiles(BrokerError):
    """The broker may not have enough files open: raise the limit; nothing acknowledged is lost."""


class BrokerFailed(BrokerError):
    """The broker ended, or did not become ready, for a reason only its log tells.

    Attributes:
        exit_code: the process's exit code (128 + signal if one killed it), None if it still ran.
        log_lines: the last lines of its log.
    """

    def __init__(self, message: str, exit_code: int | None, log_lines: tuple[str, ...]) -> None:
        """Show the log's last lines below the message."""
        tail = "".join(f"\n  {line}" for line in log_lines)
        super().__init__(f"{message}{tail}")
        self.exit_code = exit_code
        self.log_lines = log_lines
