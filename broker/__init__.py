"""elkobroker: a daemon in which servers register services and clients find them, by several wire protocols."""
