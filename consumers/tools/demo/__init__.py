"""The demo: a year of New York flights through the log, while eight desks edit two more tables."""
