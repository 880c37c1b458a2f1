"""Output: tables for people, JSON and CSV for programs."""
