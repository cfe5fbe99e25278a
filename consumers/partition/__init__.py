"""One partition: its log is followed, led and decided, and its tables' files written."""
