"""The refusal of a check."""

from __future__ import annotations


class NotChecked(Exception):
    """A check that is not made; the message gives the reason. It proves nothing about the service."""
