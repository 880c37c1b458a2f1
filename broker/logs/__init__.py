"""The log of the daemon: its lines, its levels, and its destination."""
