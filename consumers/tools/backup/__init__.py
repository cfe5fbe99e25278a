"""Copies of a log with its tables, made while it runs, and put back into an empty root."""
