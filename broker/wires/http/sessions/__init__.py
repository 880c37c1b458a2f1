"""Requests of the HTTP wire: instances with their owners and leases, and finds."""
