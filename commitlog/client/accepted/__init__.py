"""Writes of rows that the log accepts as they are, and row writers apply."""
