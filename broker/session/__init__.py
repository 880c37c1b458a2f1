"""One state machine for each peer and format: a message in, replies out, calls on the core's interfaces. No sockets."""
