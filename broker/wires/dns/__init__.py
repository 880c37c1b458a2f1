"""DNS: services found by any program, without a client library."""
