"""What the keeper of the version index and its readers agree on."""

SCHEMA_VERSION = 10
"""The format of the index's relations. An index of another one is rebuilt from the log."""
