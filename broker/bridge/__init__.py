"""Bridges: services and topics exchanged with brokers outside of this one's cluster, over links of `broker.cluster`."""
