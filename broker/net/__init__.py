"""Transports: the only folder that opens sockets and starts processes."""
