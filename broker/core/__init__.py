"""Registry, topics, work queues, leases and their stores, independent of wires and sockets."""
