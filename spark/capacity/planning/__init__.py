"""Forecasts, capacity plans and their evaluation."""
