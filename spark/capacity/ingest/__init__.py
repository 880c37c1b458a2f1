"""Ingest: segments of the journal become bronze records, each once."""
