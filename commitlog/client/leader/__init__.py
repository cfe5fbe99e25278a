"""A client's way to the leaders of a log: sockets, the topics where those fail, and tickets."""
