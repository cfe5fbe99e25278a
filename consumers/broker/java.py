"""The Java that runs the broker: any that `commitlog.java` finds, and the broker's own error."""

from commitlog import java
from commitlog.java import MINIMUM_VERSION, Java
from consumers.broker.errors import BrokerHasNoJava


def find_java(minimum: int = MINIMUM_VERSION) -> Java:
    """Return the first Java that runs and is new enough.

    Raises:
        BrokerHasNoJava: none is; the message lists what was looked at and what to install.
    """
    try:
        return java.find_java(minimum)
    except java.NoJava as error:
        raise BrokerHasNoJava(f"the broker has no Java: {error}") from error
