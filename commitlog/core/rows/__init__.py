"""Small writes: which rows the log accepts, and in which ranges they are applied."""
