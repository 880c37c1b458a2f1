"""Every refusal: a code for machines, a text for people, and whether the connection survives it.

A `Refusal` is the only exception that the core raises, and `Malformed` the only one that a codec raises.
Anything else that comes out of either is a defect of ours.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


class Reason(enum.Enum):
    """Reason of a refusal. The value is ``(code, fatal)``.

    ``code`` names the counter and the log line; it is stable. ``fatal`` says that the peer's connection is closed.
    """

    SYNTAX = ("syntax", False)
    """Text that is no message of the format."""
    ENCODING = ("encoding", True)
    """Bytes that are no UTF-8: what follows cannot be trusted to be framed as it looks."""
    TOO_LARGE = ("too-large", True)
    """A line or a block over its limit: there is no way to find the next message without reading it all."""
    PARAMETER = ("parameter", False)
    """A parameter that is missing, of the wrong type, or over its limit."""
    UNKNOWN_TARGET = ("unknown-target", False)
    """A message to an object that does not exist."""
    UNKNOWN_OP = ("unknown-op", False)
    """An operation that the object addressed does not have."""
    NOT_AUTHENTICATED = ("not-authenticated", True)
    """An operation before `auth`, or one of a role that was never authenticated."""
    WRONG_CREDENTIALS = ("wrong-credentials", True)
    """`auth` with the wrong mode, a wrong password, or for a role that the listener does not serve."""
    TOO_MANY_GUESSES = ("too-many-guesses", True)
    """A password from an address that sent wrong ones, before its back-off was over. It was not compared."""
    ALREADY_AUTHENTICATED = ("already-authenticated", True)
    """A second `auth` for the same role."""
    TOO_SLOW_TO_AUTHENTICATE = ("too-slow-to-authenticate", True)
    """No successful `auth` within the listener's time."""
    NAME_NOT_ALLOWED = ("name-not-allowed", False)
    """A service name that this peer may not offer."""
    LIMIT = ("limit", False)
    """A table of the broker, or the peer's share of it, is full."""
    NO_SUCH_SERVICE = ("no-such-service", False)
    """A wait ended without the service having come."""
    NOT_READING = ("not-reading", True)
    """A peer that does not read what it is sent."""
    TOO_MANY_CONNECTIONS = ("too-many-connections", True)
    """One address connects more often than the listener allows."""
    HANDSHAKE = ("handshake", True)
    """A connection on which the two sides could not agree."""
    TOPIC_NOT_ALLOWED = ("topic-not-allowed", False)
    """A topic that this peer may not publish on, or not subscribe to."""
    KEY_NOT_ALLOWED = ("key-not-allowed", True)
    """A client key that is not allowed here, or not any more."""
    IDENTITY_TAKEN = ("identity-taken", True)
    """An identity that another client key has used, or that a connection of another peer has."""
    REPLACED = ("replaced", True)
    """A connection whose identity another connection of the same peer took over."""
    TOO_SLOW = ("too-slow", True)
    """A message that was begun, and not continued in time."""
    SILENT = ("silent", True)
    """A connection on which not even a PING is answered."""
    UNEXPECTED = ("unexpected", True)
    """A message that is none for the peer's present state, or none that a peer sends."""
    NOT_REGISTERED = ("not-registered", False)
    """A message of, or about, a service that is not registered."""
    NAME_TAKEN = ("name-taken", False)
    """A name that belongs to somebody else."""
    WRONG_ADDRESS = ("wrong-address", False)
    """A message about a service from an address that did not register it."""
    FORBIDDEN = ("forbidden", False)
    """Something that this user may not have, or a lease that is none."""
    INTERNAL = ("internal", False)
    """A defect of the broker: it cost this message, and was logged."""

    def __init__(self, code: str, fatal: bool) -> None:
        self.code = code
        self.fatal = fatal


class Refusal(Exception):
    """Something was refused for ``reason``; ``text`` says to a person what was wrong, and where.

    ``summary`` is the same without what the peer wrote, which may be a secret: for the log.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.summary = text


class Refusals(Refusal):
    """Several refusals of one call; the rest of the call was done. Reason and text are those of the first.

    ``each`` are all of them, in the order of what was refused.
    """

    def __init__(self, each: Sequence[Refusal]) -> None:
        super().__init__(each[0].reason, each[0].text)
        self.each = tuple(each)


class Malformed(Refusal):
    """Input that a codec could not turn into a message.

    ``op`` is the operation that it asked for, where that is known; ``near`` what stands around the place of the error;
    ``id`` the peer's own number of the message, where its format has them and it could be read.
    """

    def __init__(
        self, reason: Reason, text: str, op: str | None = None, near: str | None = None, id: bytes | None = None
    ) -> None:
        super().__init__(reason, text if near is None else f"{text}, near: {near}")
        self.op = op
        self.id = id
        self.summary = text
