"""Who may do what over HTTP: credentials, grants and limits, for all APIs on the port."""
