"""A ROUTER (ZeroMQ's socket type for servers) over accepted connections that speak ZMTP. Read on in `router`."""
