"""Domain names: labels in wire format (RFC 1035) and as text.

A name is a tuple of labels without the empty one of the root. Labels are bytes and may contain dots. DNS compares
names without the case of ASCII letters (RFC 4343); `fold` returns the form that is compared.
"""

from __future__ import annotations

from broker.core.errors import Malformed, Reason
from broker.wires.dns.codec.hosts import MAX_LABEL, MAX_NAME, Labels

_POINTER = 0xC0
"""The bits that mark a compression pointer; a label has none of them."""


def read(data: bytes, at: int) -> tuple[Labels, int]:
    """Return the name at an offset, and the offset behind it. Raises `Malformed`.

    A compression pointer is refused: in a question there is no name that it could point to.
    """
    labels: list[bytes] = []
    start = at
    while True:
        length = _byte(data, at)
        at += 1
        if not length:
            return tuple(labels), at
        if length > MAX_LABEL:
            raise Malformed(Reason.SYNTAX, "the name in the question has a compressed or unknown label")
        if at + length - start >= MAX_NAME:
            raise Malformed(Reason.SYNTAX, f"the name in the question has more than {MAX_NAME} bytes")
        label = data[at : at + length]
        if len(label) < length:
            raise Malformed(Reason.SYNTAX, "the message ends within a name")
        labels.append(label)
        at += length


def skip(data: bytes, at: int) -> int:
    """Return the offset behind the name at an offset. Raises `Malformed`. Pointers are not followed: that costs time,
    and nothing is done with the name."""
    while True:
        length = _byte(data, at)
        at += 1
        if not length:
            return at
        if length & _POINTER == _POINTER:
            _byte(data, at)
            return at + 1
        if length > MAX_LABEL:
            raise Malformed(Reason.SYNTAX, "a name has an unknown kind of label")
        at += length


def fold(labels: Labels) -> Labels:
    """Return the labels in lower case, of ASCII letters only."""
    return tuple(label.lower() for label in labels)


def dotted(labels: Labels) -> bytes:
    """Return the labels with dots between them."""
    return b".".join(labels)


def _byte(data: bytes, at: int) -> int:
    try:
        return data[at]
    except IndexError:
        raise Malformed(Reason.SYNTAX, "the message ends within a name") from None
