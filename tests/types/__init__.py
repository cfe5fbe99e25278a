"""Every type that Lance stores, by every path that writes, read back by every reader."""
