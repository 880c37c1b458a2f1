"""The load test: samples, and the two kinds of load."""
