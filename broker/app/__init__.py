"""The wiring: which parts the daemon has, and who is given what. Nothing else knows both sockets and the core."""
