"""What a log makes, made again from it."""
