"""The tables of a partition, and where they are."""
