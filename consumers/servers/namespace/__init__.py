"""The Lance Namespace: every operation of the protocol, answered from the log."""
