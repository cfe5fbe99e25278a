"""Two versions of the program at one log: leaders, writers and readers of both."""
