"""Interfaces between transports and sessions."""
