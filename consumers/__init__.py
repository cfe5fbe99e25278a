"""The processes that read the log."""
