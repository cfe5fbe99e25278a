"""Row writers apply accepted writes of rows, whose rows leave the archive in the end."""
