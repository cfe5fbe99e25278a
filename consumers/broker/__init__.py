"""The embedded broker: one Kafka node as a child process, from pinned jars, on any Java 17+.

`EmbeddedBroker.start(root)` in `embedded.py` starts it. Every error is a `BrokerError` that says
what to do.
"""
