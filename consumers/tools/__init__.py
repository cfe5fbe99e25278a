"""Jobs with an end: to verify, to replay, to look after, to measure, to show."""
