"""Principals: authenticated users, and the operations that rights are granted for."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred


class Method(Enum):
    """The means by which a user is known."""

    NONE = "none"
    PASSWORD = "password"
    TOKEN = "token"
    CERTIFICATE = "certificate"
    CURVE = "curve"


@attrs.frozen
class Principal:
    """A user. The anonymous one has the empty name. ``address`` is the peer's host, for the audit log."""

    name: str = ""
    method: Method = Method.NONE
    address: str = ""


OPERATIONS = {
    "find": "find services, and watch the registry",
    "offer": "offer services, renew and withdraw own ones, and report loads",
    "publish": "publish to topics, and write to queues",
    "subscribe": "subscribe to topics, and read queues",
    "view": "read the state of the daemon: views, metrics, events, plans",
    "admin.withdraw": "withdraw services and disconnect providers of others",
    "admin.disconnect": "disconnect sessions",
    "admin.reload": "reload the configuration",
    "admin.log": "change log levels, and trace peers",
    "admin.say": "send a text to users or contexts",
    "admin.launch": "start programs",
    "admin.drain": "drain the daemon, and undo that",
    "admin.shutdown": "end the process",
}
"""The operations that rights name, with their meaning. A pattern of a right may end with ``*``: ``admin.*``."""


class Access(Protocol):
    """Authentication and rights of all listeners. Methods raise, or fail with, `broker.core.errors.Refusal` FORBIDDEN.

    Without a users file every principal on an open listener has every right, as the console on loopback.
    """

    @property
    def users(self) -> bool:
        """True if a users file is configured: then the anonymous principal has only the rights that are given to it."""

    def by_password(self, user: str, password: str, address: str) -> Deferred[Principal]:
        """Authenticate by a password, in a thread, within the limits on guesses of the address."""

    def by_token(self, token: str, address: str) -> Principal:
        """Authenticate by a bearer token that has not expired."""

    def by_certificate(self, names: tuple[str, ...], address: str) -> Principal | None:
        """Return the user of a client certificate that the listener has verified, by the first name that has one."""

    def by_key(self, key: str, address: str) -> Principal | None:
        """Return the user of a CURVE public key in Z85."""

    def allows(self, principal: Principal, listener: str, operation: str, name: str = "") -> bool:
        """Return True if the user may do that at the listener of that title.

        ``name`` is that of a service, topic or queue.
        """
