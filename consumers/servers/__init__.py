"""The processes that answer: the committer, and the HTTP server with all its APIs."""
