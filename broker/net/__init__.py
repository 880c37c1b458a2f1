"""The only folder that touches sockets and processes."""
