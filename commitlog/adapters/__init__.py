"""The ports, implemented: one file per outside library."""
