"""The embedded broker: one Kafka node as a child process, from pinned jars, on any Java 17+.

Start it with `EmbeddedBroker.start(root)`. Every error is a `BrokerError` that says what to do.
"""

from consumers.broker.embedded import EmbeddedBroker
from consumers.broker.errors import (
    BrokerError,
    BrokerFailed,
    BrokerHasNoJava,
    BrokerRunning,
    DiskFull,
    JarMismatch,
    JarsUnavailable,
    PortInUse,
    TooFewFiles,
)
from consumers.broker.java import Java, find_java

__all__ = [
    "BrokerError",
    "BrokerFailed",
    "BrokerRunning",
    "DiskFull",
    "EmbeddedBroker",
    "JarMismatch",
    "JarsUnavailable",
    "Java",
    "BrokerHasNoJava",
    "PortInUse",
    "TooFewFiles",
    "find_java",
]
