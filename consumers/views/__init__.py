"""What is made of the log for readers: the version index, and the questions to it."""
