"""Nouns: frozen values of the log, without I/O."""
