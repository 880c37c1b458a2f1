"""The report: one HTML page with its charts, and CSV."""
