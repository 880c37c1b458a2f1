"""The meaning: providers, services, waits, watches. Knows no wire and no socket."""
