"""The core's side of a cluster: interfaces of a member, the mirroring registry, and topics of other brokers."""
