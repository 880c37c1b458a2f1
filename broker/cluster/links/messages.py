"""Codec of links: control messages, as values.

A message of a link has the name of its channel in the first frame. An empty name is that of control messages, whose
second frame is one of the words below::

    HELLO    VERSION NAME INSTANCE PEER-NAME PEER-INSTANCE    the connecting side introduces itself
    WELCOME  VERSION NAME INSTANCE PEER-NAME PEER-INSTANCE    the accepting side agrees: the link is open
    REFUSED  REASON                                           the accepting side does not agree, and closes
    PING     STAMP                                            both sides, each second
    PONG     STAMP                                            the answer

VERSION is that of the protocol in decimal digits. The names and instances are those of
`broker.core.cluster.interfaces.Member`, in UTF-8; PEER-NAME and PEER-INSTANCE are those of the receiver, as its sender
knows them. Unknown words and additional frames are ignored: a newer broker may send some.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from broker.core.errors import Malformed, Reason

CONTROL = b""
"""The channel of control messages."""

VERSION = 1
"""Version of the protocol."""

HELLO, WELCOME, REFUSED, PING, PONG = b"HELLO", b"WELCOME", b"REFUSED", b"PING", b"PONG"

MAX_WORD = 256
"""Bytes of a name, of an instance and of a reason. Names have at most 64 characters, instances fewer."""

STAMP = 8
"""Bytes of a stamp."""


@attrs.frozen
class Introduction:
    """Introduction of a side, by HELLO or WELCOME: ``name`` and ``instance`` of the sender, ``peer`` and
    ``peer_instance`` of the receiver as the sender knows it."""

    name: str
    instance: str
    peer: str
    peer_instance: str
    version: int = VERSION


def introduction(word: bytes, values: Introduction) -> list[bytes]:
    """Return the frames of HELLO or WELCOME."""
    texts = (values.name, values.instance, values.peer, values.peer_instance)
    return [CONTROL, word, b"%d" % values.version, *(text.encode() for text in texts)]


def read_introduction(frames: Sequence[bytes]) -> Introduction:
    """Decode HELLO or WELCOME. Raises `Malformed`."""
    if len(frames) < 7 or max(map(len, frames[:7])) > MAX_WORD:
        raise Malformed(Reason.SYNTAX, "an introduction has version, name, instance, and name and instance of its peer")
    version = frames[2]
    if not (version.isdigit() and len(version) < 10):
        raise Malformed(Reason.SYNTAX, "the version of the protocol is no number")
    try:
        name, instance, peer, peer_instance = (bytes(frame).decode() for frame in frames[3:7])
    except UnicodeDecodeError:
        raise Malformed(Reason.SYNTAX, "a name that is not UTF-8") from None
    return Introduction(name, instance, peer, peer_instance, int(version))


def refused(reason: str) -> list[bytes]:
    """Return the frames of REFUSED."""
    return [CONTROL, REFUSED, reason.encode()[:MAX_WORD]]


def read_refused(frames: Sequence[bytes]) -> str:
    """Return the reason of REFUSED, of any bytes."""
    return bytes(frames[2][:MAX_WORD]).decode("utf-8", "replace") if len(frames) > 2 else ""


def stamped(word: bytes, stamp: bytes) -> list[bytes]:
    """Return the frames of PING or PONG."""
    return [CONTROL, word, stamp]


def read_stamp(frames: Sequence[bytes]) -> bytes:
    """Return the stamp of PING or PONG. Raises `Malformed`."""
    if len(frames) < 3 or len(frames[2]) != STAMP:
        raise Malformed(Reason.SYNTAX, f"a stamp has {STAMP} bytes")
    return bytes(frames[2])
