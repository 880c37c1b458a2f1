"""The opening of a connection to a text protocol: text, or a request that a web page made a browser send.

A page can make the browser of its reader connect to any port of the reader's machine, and choose parts of what it
sends: the method and the path of an HTTP request and its body, or names in a TLS or STUN handshake. A line protocol
that skips what it does not understand would execute the lines among them.

Rules:
- Blank lines and spaces before the first line do not count: a server of HTTP skips the former too (RFC 9112, 2.2).
- The first line is a request of HTTP if it ends in the protocol's version, in capitals or not, whatever its method is
  (a page may choose that, too); or if it begins with a method of the standard, with or without a version (HTTP/0.9).
- A control character other than tab, CR and LF is no text. All binary handshakes of browsers have some in their first
  bytes.
- A first byte that begins no method decides for text at once: that of a JSON object does.
"""

from __future__ import annotations

import enum
import re


class Opening(enum.Enum):
    """A verdict on the first bytes of a connection."""

    UNDECIDED = "undecided"
    """Text so far, of which the first line is not complete: nothing of it may be executed yet."""
    TEXT = "text"
    """No request of HTTP."""
    HTTP = "a request of HTTP"
    BINARY = "bytes that are no text"


_BLANK = b" \t\r\n"

_BEGUN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]|[^\0-\x7f]")
"""The first byte of a method (a token of RFC 9110, 5.6.2), or of a byte order mark before one. No JSON object begins
with one of them."""

_VERSION = re.compile(rb"(?:^|\s)HTTP\s*/\s*[0-9]+(?:\s*\.\s*[0-9]*)?\s*\Z", re.IGNORECASE)

_METHOD = re.compile(rb"[^\0-\x7f]*(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|CONNECT|TRACE|PRI)\s+\S")

_CONTROL = bytes(set(range(32)) - set(b"\t\r\n")) + b"\x7f"


def opening(data: bytes) -> Opening:
    """The verdict on ``data``, all that came since the connection began, without telnet's own bytes.

    It is final unless it is UNDECIDED; then the caller keeps the bytes, up to a limit of its own, and asks again with
    more. TEXT says nothing of what follows the place where it was decided: `is_text` does.
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
    return Opening.HTTP if is_request(first) else Opening.TEXT


def is_request(line: bytes) -> bool:
    """True if a line, without its end, is the request line of HTTP."""
    return _METHOD.match(line.lstrip()) is not None or _VERSION.search(line) is not None


def is_text(data: bytes) -> bool:
    """True if there are no control characters in it, but for tab, CR and LF. UTF-8 is not looked at."""
    return len(data.translate(None, _CONTROL)) == len(data)


def _first_line(data: bytes) -> tuple[bytes, bool]:
    """The bytes up to the first CR or LF, and whether there was one."""
    line = data.partition(b"\n")[0]
    first = line.partition(b"\r")[0]
    return first, len(first) < len(data)
