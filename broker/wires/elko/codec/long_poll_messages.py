"""Codec of sessions over HTTP: paths to requests, bodies to messages, replies to bytes.

    ROOT/connect[/ANYTHING]        begin a session
    ROOT/xmit/SESSION/NUMBER       the body is messages to the broker
    ROOT/select/SESSION/NUMBER     wait for messages from it
    ROOT/disconnect/SESSION        end the session

Rules:
- Paths are case-insensitive, and a query is ignored, as in the original.
- A body is messages, or a form whose values are messages.
- Replies have the original's spelling, including the spaces.

The sessions are in `broker.wires.elko.transports.long_poll`; see docs/protocols/elko-transports.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl

import attrs

from broker.core.errors import Malformed, Reason
from broker.wires.elko.codec.blocks import END

MAX_FIELDS = 100
"""Fields of a form: clients send one."""


@attrs.frozen
class Connect:
    """Begin a session."""


@attrs.frozen
class Xmit:
    """Messages to the broker: body ``number`` of ``session``."""

    session: str
    number: int


@attrs.frozen
class Select:
    """Wait for messages: answer ``number`` of ``session``."""

    session: str
    number: int


@attrs.frozen
class Disconnect:
    """End a session."""

    session: str


Request = Connect | Xmit | Select | Disconnect

SESSION_ID, SEQUENCE = "sessionIDError", "sequenceError"
"""The errors in replies."""

LAST = -1
"""The sequence number that ends a session: no further select is answered."""

_NUMBERED = re.compile(r"(xmit|select)/([0-9]{1,64})/([0-9]{1,18})")
_DISCONNECT = re.compile(r"disconnect/([0-9]{1,64})")


def request(uri: str, root: str) -> Request | None:
    """Return the request that a URI stands for, or None. ``root`` begins with a slash."""
    path = uri.partition("?")[0].lower()
    root = root.lower().rstrip("/") + "/"
    if not path.startswith(root):
        return None
    rest = path[len(root) :]
    if rest == "connect" or rest.startswith("connect/"):
        return Connect()
    numbered = _NUMBERED.fullmatch(rest)
    if numbered is not None:
        kind = Xmit if numbered[1] == "xmit" else Select
        return kind(numbered[2], int(numbered[3]))
    disconnect = _DISCONNECT.fullmatch(rest)
    return None if disconnect is None else Disconnect(disconnect[1])


def messages(body: bytes, content_type: str) -> bytes:
    """Return the blocks of messages in a body. Raises `Malformed` SYNTAX."""
    if content_type.partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        # The end of a body ends its last block.
        return body + END
    try:
        fields = parse_qsl(body.decode("ascii"), max_num_fields=MAX_FIELDS, errors="surrogateescape")
    except ValueError:
        raise Malformed(Reason.SYNTAX, "the body is no form, or one with too many fields") from None
    return b"".join(value.encode(errors="surrogateescape") + END for _, value in fields)


def connected(session: str) -> bytes:
    """Encode the reply to `Connect`."""
    return f'{{ "sessionid": "{session}" }}\n'.encode()


def received(following: int) -> bytes:
    """Encode the reply to `Xmit`, with the number of the next one."""
    return f'{{ "seqnum": "{following}" }}\n'.encode()


def selected(encoded: Sequence[bytes], following: int) -> bytes:
    """Encode the reply to `Select`: encoded messages with terminators, and the number of the next one, or `LAST`."""
    listed = b", ".join(message for data in encoded for message in data.split(END) if message)
    return b'{ "msgs": [%b], "seqnum": "%d" }\n' % (listed, following)


def disconnected() -> bytes:
    """Encode the reply to `Disconnect`."""
    return b"{ }\n"


def error(name: str) -> bytes:
    """Encode the reply to a refused request."""
    return f'{{ "error": "{name}" }}\n'.encode()
