"""A client's way to the leaders of a log: sockets, the topics where those fail, and tickets.

Arguments of public methods are checked here too, since tickets check how long callers wait.
"""
