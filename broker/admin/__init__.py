"""Interfaces for operators: the console."""
