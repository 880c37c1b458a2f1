"""Accuracy measurements: recorded series, and generated journals of known truth."""
