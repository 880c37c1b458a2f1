"""The wiring: the parts of the daemon and their connections. Only this package joins sockets and the core."""
