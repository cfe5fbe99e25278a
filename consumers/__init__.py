"""The processes that read the log, by role: see each package. `history` is for scripts, too."""
