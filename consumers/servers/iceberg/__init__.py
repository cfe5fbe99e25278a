"""The Iceberg REST catalogue, and its commit of many tables at once, over the log."""
