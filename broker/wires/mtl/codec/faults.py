"""Faults of messages that are dropped without an answer.

RFC 11: an ill-formed message is not answered. So the fault is for counters and the log only. Its text never has input
of the peer.
"""

from __future__ import annotations

import enum

from broker.core.errors import Malformed, Reason


class Fault(enum.Enum):
    """Reason for dropping a message. The value names the counter; it is stable."""

    FRAMES = "frames"
    """Wrong number of frames."""
    DELIMITER = "delimiter"
    """A request without the empty frame before it."""
    ENVELOPE = "envelope"
    """Too many routing frames, or too long ones."""
    ENCODING = "encoding"
    """A request's body that is not UTF-8."""
    JSON = "json"
    """A request's body that is not JSON."""
    EMPTY = "empty-header"
    """A data command without a type."""
    TYPE = "type"
    """An unknown type of data command."""
    TOO_LARGE = "too-large"
    """A header, or the table in it, over its limit."""
    CUT = "cut"
    """A header that ends before its last field does."""
    LEFT_OVER = "left-over"
    """Bytes after the last field of a header."""
    STRING = "string"
    """A short string that is not printable, or not UTF-8."""
    BOOLEAN = "boolean"
    """A Boolean that is neither 0 nor 1."""
    CODE = "code"
    """A Response whose body is not three digits."""
    TABLE_LENGTH = "table-length"
    """A table whose length field is wrong."""
    TABLE_CUT = "table-cut"
    """A part of a table that exceeds its container."""
    TABLE_TAG = "table-tag"
    """A value of an unknown type in a table."""
    TABLE_BOOLEAN = "table-boolean"
    """A Boolean in a table that is neither 0 nor 1."""
    TABLE_KEY = "table-key"
    """An empty or repeated key."""
    TABLE_TEXT = "table-text"
    """A key or a text in a table that is not UTF-8."""
    TABLE_DEPTH = "table-depth"
    """Tables and lists nested beyond the limit."""


class IllFormed(Malformed):
    """A message to be dropped without an answer."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(Reason.SYNTAX, text)
        self.fault = fault
