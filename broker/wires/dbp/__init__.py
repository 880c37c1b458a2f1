"""DBP (Core Catalog Service): a catalogue of services over ZeroMQ, with heartbeats by UDP."""
