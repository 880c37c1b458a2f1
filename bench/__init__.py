"""Benchmarks of the broker beside peers that do the same work: ``python -m bench`` at the root of the project."""
