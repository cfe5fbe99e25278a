"""One partition's log: its chain of outcomes, its clock, what it remembers."""
