"""Contexts: several brokers by name, each with its address and the user's credentials."""
