"""Links between brokers: one ZMTP connection for each pair of members, for messages of named channels.

Read on in `broker.cluster.links.links` (channels and messages), `broker.cluster.links.mesh` (from members to open
links), `broker.cluster.links.link_wire` (the two sides of a connection) and `broker.cluster.links.link_messages` (the
protocol).
"""
