"""Refusals: a code for machines, a text for people, and the effect on the connection.

`Refusal` is the only exception that the core raises, and `Malformed` the only one that a codec raises. Any other
exception from either is a defect of the broker.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

MAX_NAME = 255
"""Characters of a name that a refusal shows: those of a service."""


class Reason(enum.Enum):
    """Reason of a refusal. The value is ``(code, fatal)``.

    ``code`` is stable; it names the counter and appears in the log. ``fatal``: the connection of the peer is closed.
    """

    SYNTAX = ("syntax", False)
    """Text that is not a message of the format."""
    ENCODING = ("encoding", True)
    """Bytes that are not UTF-8. The framing of the bytes after them is unreliable."""
    TOO_LARGE = ("too-large", True)
    """A line or block over its limit. The next message cannot be found without reading the whole of it."""
    PARAMETER = ("parameter", False)
    """A parameter that is missing, of the wrong type, or over its limit."""
    UNKNOWN_TARGET = ("unknown-target", False)
    """A message to an object that does not exist."""
    UNKNOWN_OP = ("unknown-op", False)
    """An operation that the addressed object does not have."""
    NOT_AUTHENTICATED = ("not-authenticated", True)
    """An operation before `auth`, or one of a role that was never authenticated."""
    WRONG_CREDENTIALS = ("wrong-credentials", True)
    """`auth` with the wrong mode, a wrong password, or for a role that the listener does not serve."""
    TOO_MANY_GUESSES = ("too-many-guesses", True)
    """A password from an address that sent wrong ones and is still in its back-off. It was not compared."""
    ALREADY_AUTHENTICATED = ("already-authenticated", True)
    """A second `auth` for the same role."""
    TOO_SLOW_TO_AUTHENTICATE = ("too-slow-to-authenticate", True)
    """No successful `auth` before the listener's deadline."""
    LIMIT = ("limit", False)
    """A table of the broker, or the peer's share of it, is full."""
    NO_SUCH_SERVICE = ("no-such-service", False)
    """A wait reached its deadline before the service was offered."""
    NOT_READING = ("not-reading", True)
    """A peer that does not read its output."""
    TOO_MANY_CONNECTIONS = ("too-many-connections", True)
    """More connections from one address than the listener's rate limit allows."""
    HANDSHAKE = ("handshake", True)
    """A handshake that failed."""
    KEY_NOT_ALLOWED = ("key-not-allowed", True)
    """A client key that is not allowed, or no longer allowed."""
    REVOKED = ("revoked", True)
    """Credentials that authenticated the peer, and are not valid any more."""
    IDENTITY_TAKEN = ("identity-taken", True)
    """An identity that another client key has used, or that a connection of another peer has."""
    REPLACED = ("replaced", True)
    """A connection whose identity another connection of the same peer took over."""
    TOO_SLOW = ("too-slow", True)
    """A message that was not completed before its deadline."""
    SILENT = ("silent", True)
    """A connection that does not even answer PINGs."""
    UNEXPECTED = ("unexpected", True)
    """A message that is invalid in the peer's present state, or that peers never send."""
    NOT_REGISTERED = ("not-registered", False)
    """A message from or about a service that is not registered."""
    NAME_TAKEN = ("name-taken", False)
    """A name that belongs to another peer."""
    WRONG_ADDRESS = ("wrong-address", False)
    """A message about a service from an address that did not register it."""
    ADDRESS_NOT_ALLOWED = ("address-not-allowed", False)
    """An address of a service to which the broker does not connect."""
    FORBIDDEN = ("forbidden", False)
    """An operation on a service, topic, queue or other resource to which this user has no right: see `no_right`."""
    DRAINING = ("draining", True)
    """A peer of a broker that sends its peers away: it is to be stopped, and another one serves them."""
    DISCONNECTED = ("disconnected", True)
    """A session that an operator closed."""
    UNAVAILABLE = ("unavailable", False)
    """A request that cannot be served now because a store or another broker cannot be reached."""
    FAILED = ("failed", False)
    """An action that was tried, and failed."""
    ELSEWHERE = ("elsewhere", False)
    """A resource that belongs to another broker of the cluster."""
    INTERNAL = ("internal", False)
    """A defect of the broker. The message is lost, and the defect is logged."""

    def __init__(self, code: str, fatal: bool) -> None:
        self.code = code
        self.fatal = fatal


class Refusal(Exception):
    """Refusal for ``reason``; ``text`` explains the error to a person.

    ``summary`` is the text for the log: it omits input of the peer, which may be a secret.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.summary = text


def no_right(operation: str, name: str = "", user: str = "") -> Refusal:
    """Return the refusal of an operation for lack of a right, in the words of all wires. ``name`` is that of the
    service, topic or queue; ``user`` is "" for a peer without one."""
    concerned = f" {name[:MAX_NAME]!r}" if name else ""
    return Refusal(Reason.FORBIDDEN, f"{user or 'a peer without a user'} has no right to {operation}{concerned} here")


PER_ADDRESS = "broker.memory_per_address"
"""Name of the limit of memory for the peers of one address, for `at_limit`."""


def at_limit(text: str, key: str, reason: Reason = Reason.LIMIT) -> Refusal:
    """Return the refusal of something beyond a limit of the configuration. ``key`` is the limit's name there, without
    the indices of tables; empty if the limit is a constant for this peer."""
    return Refusal(reason, f"{text} ({key})" if key else text)


class Elsewhere(Refusal):
    """Refusal ELSEWHERE: ``owner`` is the name of the broker that has the resource, ``endpoint`` where it serves peers
    of this wire."""

    def __init__(self, text: str, owner: str, endpoint: str) -> None:
        super().__init__(Reason.ELSEWHERE, text)
        self.owner = owner
        self.endpoint = endpoint


class Refusals(Refusal):
    """Several refusals of one call; the rest of the call was done. Reason and text are those of the first.

    ``each`` has all of them, in the order of the refused items.
    """

    def __init__(self, each: Sequence[Refusal]) -> None:
        super().__init__(each[0].reason, each[0].text)
        self.each = tuple(each)


class Malformed(Refusal):
    """Input that a codec could not decode.

    ``op`` is the requested operation if it is known; ``near`` is the input around the error; ``id`` is the message id
    of the peer, if its format has ids and it could be read.
    """

    def __init__(
        self, reason: Reason, text: str, op: str | None = None, near: str | None = None, id: bytes | None = None
    ) -> None:
        super().__init__(reason, text if near is None else f"{text}, near: {near}")
        self.op = op
        self.id = id
        self.summary = text
