"""Faults of messages that are dropped without an answer.

RFC 11: an ill-formed message is not answered. So the reason is for counters and the log only; it never has anything of
what the peer wrote.
"""

from __future__ import annotations

import enum

from broker.core.errors import Malformed, Reason


class Fault(enum.Enum):
    """Why a message is dropped. The value names the counter; it is stable."""

    FRAMES = "frames"
    """Not as many frames as a message has."""
    DELIMITER = "delimiter"
    """A request without the empty frame before it."""
    ENVELOPE = "envelope"
    """More routing frames than are kept, or longer ones."""
    ENCODING = "encoding"
    """A request's body that is not UTF-8."""
    JSON = "json"
    """A request's body that is not JSON."""
    EMPTY = "empty-header"
    """A data command without a type."""
    TYPE = "type"
    """A type of data command that there is not."""
    TOO_LARGE = "too-large"
    """A header, or the table in it, over its limit."""
    CUT = "cut"
    """A header that ends before its last field does."""
    LEFT_OVER = "left-over"
    """Bytes behind the last field of a header."""
    STRING = "string"
    """A short string with what is not printable, or not UTF-8."""
    BOOLEAN = "boolean"
    """A Boolean that is neither 0 nor 1."""
    CODE = "code"
    """A Response whose body is not three digits."""
    TABLE_LENGTH = "table-length"
    """A table that does not say how long it is."""
    TABLE_CUT = "table-cut"
    """A part of a table that ends behind what it is in."""
    TABLE_TAG = "table-tag"
    """A value in a table of a type that there is not."""
    TABLE_BOOLEAN = "table-boolean"
    """A Boolean in a table that is neither 0 nor 1."""
    TABLE_KEY = "table-key"
    """A key that is empty, or comes twice."""
    TABLE_TEXT = "table-text"
    """A key or a text in a table that is not UTF-8."""
    TABLE_DEPTH = "table-depth"
    """Tables and lists in each other beyond the limit."""


class IllFormed(Malformed):
    """A message to drop without an answer."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(Reason.SYNTAX, text)
        self.fault = fault
