"""Host names: text to labels. It imports nothing, so that the configuration is checked by it, too."""

from __future__ import annotations

import re

Labels = tuple[bytes, ...]
"""The labels of a name, without the empty one of the root."""

MAX_LABEL = 63
"""Bytes of a label (RFC 1035)."""

MAX_NAME = 255
"""Bytes of a name in wire format, the lengths of its labels and the root included (RFC 1035)."""

_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
"""A label of a host name. By RFC 952 it has no underscore, but names of containers do."""


def host_labels(text: str) -> Labels | None:
    """Return the labels of a host name in lower case, or None if the text is none. A dot at its end is ignored."""
    parts = text.removesuffix(".").split(".")
    if not all(_HOST.fullmatch(part) for part in parts):
        return None
    labels = tuple(part.lower().encode("ascii") for part in parts)
    return labels if wire_length(labels) <= MAX_NAME else None


def wire_length(labels: Labels) -> int:
    """Return the bytes of a name in wire format, without compression."""
    return sum(len(label) + 1 for label in labels) + 1
