"""The command line of operators, over the HTTP API. It imports nothing of the daemon."""
