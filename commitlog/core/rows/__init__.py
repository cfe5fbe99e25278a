"""Small writes: rows that the log accepts, and which of them a row writer has applied."""
