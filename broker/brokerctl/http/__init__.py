"""The client of the HTTP API: contexts become connections, answers become values or failures."""
