"""Interfaces for operators: console, HTTP endpoints, tables, metrics, audit log, and the page."""
