"""The metrics journal: registrations, loads and heartbeats in files for other programs (docs/export.md)."""
