"""Iceberg tables as values: requirements, updates, and what a transaction over them decides.

Pure: no clock, no randomness, no I/O. Times come from the log's record, ids from the transaction,
so every process that reads the log builds the same metadata, byte for byte.
"""
