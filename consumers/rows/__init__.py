"""The row writer, and what a leader says of writes of rows."""
