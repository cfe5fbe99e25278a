"""Row writers: accepted writes of rows are applied, and expire."""
