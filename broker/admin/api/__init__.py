"""The operators' HTTP API, as lists of endpoints over views, counters, registry and control."""
