"""A committer's state on disk, and how a session begins and goes on from it."""
