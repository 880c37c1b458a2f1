"""DBP sessions: registered services, their conversations over ZeroMQ and UDP, listings, and expiry."""
