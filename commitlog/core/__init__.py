"""Verbs: pure functions and machines, without I/O, clock or randomness."""
