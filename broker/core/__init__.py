"""Domain model, independent of wires and sockets: registry, topics, work queues, leases and the store behind them."""
