"""What the broker hears of load and life, written to files for others to read: the metrics journal (docs/export.md)."""
