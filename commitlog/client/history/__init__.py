"""What a log says of the past: its feed, positions, snapshots, and what is undone by them."""
