"""Cross-protocol guard for text protocols: classifies the first bytes of a connection as text, HTTP or binary.

A web page can make the browser of its visitor connect to any port of the visitor's machine, and control parts of the
traffic: the method, path and body of an HTTP request, or names in a TLS or STUN handshake. A line protocol that skips
unknown input would execute the lines among them.

Rules:
- Blank lines and spaces before the first line are ignored: an HTTP server skips the former too (RFC 9112, 2.2).
- The first line is an HTTP request if it ends in the protocol version, in any letter case and with any method (a page
  may choose that, too); or if it begins with a standard method, with or without a version (HTTP/0.9).
- A first line that begins with ``PROXY`` is a header of that protocol: it would make its sender appear as another
  client.
- A control character other than tab, CR and LF means binary. All binary handshakes of browsers have some in their first
  bytes.
- A first byte that cannot begin a method decides for text at once: that of a JSON object does.
"""

from __future__ import annotations

import enum
import re


class Opening(enum.Enum):
    """The classification of the first bytes of a connection."""

    UNDECIDED = "undecided"
    """Text so far, with an unterminated first line: no part of it may be executed yet."""
    TEXT = "text"
    """Not an HTTP request."""
    HTTP = "a request of HTTP"
    PROXY = "a header of the PROXY protocol, from an address that is no trusted proxy"
    BINARY = "bytes that are no text"


_BLANK = b" \t\r\n"

_BEGUN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]|[^\0-\x7f]")
"""The first byte of a method (a token of RFC 9110, 5.6.2), or of a byte order mark before one. A JSON object begins
with none of them."""

_VERSION = re.compile(rb"(?:^|\s)HTTP\s*/\s*[0-9]+(?:\s*\.\s*[0-9]*)?\s*\Z", re.IGNORECASE)

_METHOD = re.compile(rb"[^\0-\x7f]*(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|CONNECT|TRACE|PRI)\s+\S")

_CONTROL = bytes(set(range(32)) - set(b"\t\r\n")) + b"\x7f"


def opening(data: bytes) -> Opening:
    """Classify ``data``, all input since the connection began, without telnet's own bytes.

    The result is final unless it is UNDECIDED; then the caller keeps the bytes, up to its own limit, and calls again
    with more. TEXT does not cover the bytes after the deciding position: `is_text` does.
    """
    start = data.lstrip(_BLANK)
    if not start:
        return Opening.UNDECIDED
    if not is_text(start[:1]):
        return Opening.BINARY
    if not _BEGUN.match(start):
        return Opening.TEXT
    first, ended = _first_line(start)
    if not is_text(first):
        return Opening.BINARY
    if not ended:
        return Opening.UNDECIDED
    if first.startswith(b"PROXY "):
        return Opening.PROXY
    return Opening.HTTP if is_request(first) else Opening.TEXT


def is_request(line: bytes) -> bool:
    """Return True if a line, without its end, is an HTTP request line."""
    return _METHOD.match(line.lstrip()) is not None or _VERSION.search(line) is not None


def is_text(data: bytes) -> bool:
    """Return True if ``data`` has no control characters except tab, CR and LF. UTF-8 is not validated."""
    return len(data.translate(None, _CONTROL)) == len(data)


def _first_line(data: bytes) -> tuple[bytes, bool]:
    """Return the bytes up to the first CR or LF, and True if there is one."""
    line = data.partition(b"\n")[0]
    first = line.partition(b"\r")[0]
    return first, len(first) < len(data)
