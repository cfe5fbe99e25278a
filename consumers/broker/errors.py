"""What can go wrong with the embedded broker, one class per thing the caller does about it.

Every message says what was found and what to do next.
"""


class BrokerError(Exception):
    """Any failure of the embedded broker."""


class BrokerHasNoJava(BrokerError):
    """No Java of the needed version was found: install one, or name it in COMMITLOG_JAVA."""


class JarsUnavailable(BrokerError):
    """Kafka's jars could not be fetched into the cache: check the network, then start again."""


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
