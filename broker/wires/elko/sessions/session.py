"""Base of all Elko sessions: authentication, the ops common to all objects, and refusals.

Rules (both documents; where real peers differ, both are supported):
- A message is for an object (``to``). Each object that can be authenticated to is a role; some have two names.
- Before `auth`, any other message closes the connection, unless the listener has ``allow_before_auth``: then operations
  without a role are served, unknown ones are answered, and only an operation that needs a role closes. An `auth` with
  an ill-typed parameter is answered, and may be repeated.
- A role is authenticated once; a connection may have several roles.
- Peers that authenticated by password, or from the local machine, are trusted.
- The broker pings servers (`ElkoSession.ping`). Only the answer to the latest ping counts: one with its tag, or without
  any. All others are ignored.

`broker` and `director` add the operations of their protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain, combinations
from typing import Any

import attrs
import msgspec

from broker.core.errors import Malformed, Reason, Refusal
from broker.core.model import ANONYMOUS, MAX_TEXT
from broker.net.interfaces.peer import Peer
from broker.wires.elko.codec import common as wire
from broker.wires.elko.codec.blocks import encode
from broker.wires.elko.codec.vocabulary import Message
from broker.wires.elko.sessions.authentication import AccessControl, Role

ALL = "all"
"""The name in an administrator's order that selects every server."""

Operation = Callable[[Any, Any], None]
"""A method of a session, which takes the session and a message."""

Operations = dict[type[Message], Operation]

OperationRoles = Mapping[type[Message], tuple[Operation, Collection[str]]]
"""The operations of an object, each with the roles of which it requires one; an empty collection requires none."""


@attrs.frozen(init=False)
class ObjectTables:
    """Dispatch tables of a protocol: the operations of its objects, for each combination of roles.

    ``roles`` has the role of each object that can be authenticated to; ``answers_as`` the name in the answers of an
    object, if it differs from the one that the message used. ``of`` has the permitted operations for each set of roles,
    ``strict`` those before `auth`, ``all`` those with all roles.
    """

    roles: Mapping[str, Role]
    answers_as: Mapping[str, str]
    of: Mapping[frozenset[Role], dict[str, Operations]]
    strict: dict[str, Operations]
    all: dict[str, Operations]

    def __init__(
        self,
        objects: Mapping[str, OperationRoles],
        roles: Mapping[str, Role],
        answers_as: Mapping[str, str] | None = None,
    ) -> None:
        # All combinations are computed once: a session then dispatches by two lookups, without checks of roles.
        every = frozenset(roles.values())
        of = {
            frozenset(some): {name: _allowed(needs, frozenset(some)) for name, needs in objects.items()}
            for some in chain.from_iterable(combinations(every, count) for count in range(len(every) + 1))
        }
        auth: Operations = {wire.Auth: ElkoSession._auth}
        self.__attrs_init__(roles, answers_as or {}, of, dict.fromkeys(objects, auth), of[every])


def _allowed(needs: OperationRoles, roles: frozenset[Role]) -> Operations:
    return {message: op for message, (op, wanted) in needs.items() if not wanted or roles.intersection(wanted)}


class ElkoSession:
    """The session of one peer. A protocol adds its operations, as `ObjectTables`, and the meaning of its roles."""

    __slots__ = (
        "_access",
        "_ended",
        "_label",
        "_objects",
        "_peer",
        "_pings",
        "_pong_awaited",
        "_roles",
        "_tables",
        "trusted",
        "write",
    )

    def __init__(self, tables: ObjectTables, access: AccessControl, peer: Peer) -> None:
        self._tables = tables
        self._access = access
        self._peer = peer
        self.write = peer.write
        """Send one encoded message."""
        self._label = ANONYMOUS
        self._roles: frozenset[Role] = frozenset()
        self._ended = False
        self._pings = 0
        self._pong_awaited: Callable[[bool | None], object] | None = None
        self.trusted = False
        self._objects = tables.of[self._roles] if access.policy.allow_before_auth else tables.strict

    # Called by the connection

    def receive(self, message: Message) -> None:
        """Execute one message."""
        # One lookup by object and one by type: the tables hold only what the present roles permit.
        operations = self._objects.get(message.to)
        operation = None if operations is None else operations.get(message.__class__)
        if operation is None:
            self.refuse(self._why_not(message))
            return
        try:
            operation(self, message)
        except Refusal as refusal:
            self.refuse(refusal)

    def malformed(self, malformed: Malformed) -> None:
        """Handle input that is not a valid message."""
        if self._objects is self._tables.strict and malformed.op != "auth":
            self.refuse(Refusal(Reason.NOT_AUTHENTICATED, f"the first message must be auth, but: {malformed.text}"))
        else:
            self.refuse(malformed)

    def refuse(self, refusal: Refusal) -> None:
        """Send the reason of a refusal, if the listener has diagnostics on; close the connection if it is fatal."""
        patient = self._peer.refused(refusal)
        if not patient and not refusal.reason.fatal and self._spared():
            return
        if self._access.policy.diagnostics and not (
            self._access.policy.allow_before_auth and refusal.reason in _SILENT
        ):
            text = refusal.text if patient else f"{refusal.text} (too much is refused: closing)"
            self.write(encode(wire.Diagnostic(msg=text)))
        if refusal.reason.fatal or not patient:
            self._peer.close()

    def write_first(self, data: bytes) -> None:
        """Send one encoded message before all later output of any peer."""
        self._peer.write_first(data)

    def ping(self, to: str, answered: Callable[[bool | None], object]) -> None:
        """Ping the peer, in the name of the object ``to``. ``answered`` is called with True when the answer arrives.

        Another ping replaces one that is not answered.
        """
        self._pings += 1
        self._pong_awaited = answered
        self._peer.write(encode(wire.PingOut(to, tag=self._ping_tag)))

    @property
    def _ping_tag(self) -> str:
        return f"check-{self._pings}"

    # Extended by a protocol

    def _admit(self, role: Role, message: wire.Auth) -> None:
        """Give the peer a role. Raises `Refusal` if it may not have it."""
        raise NotImplementedError

    def _spared(self) -> bool:
        """Return True if the peer stays connected regardless of the rate of its refusals."""
        return False

    def _reached(self, op: str, to: str, servers: int) -> None:
        """Raise `Refusal` if an order to the servers that ``to`` names reached none, and the policy requires one."""
        if not servers and to != ALL and self._access.policy.orders_must_reach:
            raise Refusal(Reason.NOT_REGISTERED, f"{op}: no server is called {to[:40]!r}")

    # Common to all objects

    def _auth(self, message: wire.Auth) -> None:
        policy = self._access.policy
        role = self._tables.roles.get(message.to)
        if role is None:
            raise Refusal(Reason.WRONG_CREDENTIALS, f"auth: the object {message.to!r} has no role")
        if role in self._roles:
            raise Refusal(Reason.ALREADY_AUTHENTICATED, f"auth: already authenticated to {message.to!r}")
        self._access.check(role, message.auth, self._peer.address)
        self.trusted = policy.code is not None or self._peer.local
        self._label = ANONYMOUS if message.label is None else message.label[:MAX_TEXT]
        # The role counts only once the protocol has accepted the peer.
        self._admit(role, message)
        self._roles = self._roles | {role}
        self._objects = self._tables.of[self._roles]
        self._peer.authenticated()

    def _disconnect(self, message: wire.Disconnect) -> None:
        self._peer.close()

    def _ping(self, message: wire.Ping) -> None:
        tag = message.tag
        self.write(encode(wire.PongOut(self._answers_as(message), "pong", msgspec.UNSET if tag is None else tag)))

    def _pong(self, message: wire.Pong) -> None:
        answered = self._pong_awaited
        if answered is not None and (message.tag is None or message.tag == self._ping_tag):
            self._pong_awaited = None
            answered(True)

    def _debug(self, message: wire.Debug) -> None:
        self._peer.debug(self._label, message.msg)

    # Internals

    def _answers_as(self, message: Message) -> str:
        """Return the name of the object that answers a message."""
        names = self._tables.answers_as
        return names.get(message.to, message.to) if names else message.to

    def _why_not(self, message: Message) -> Refusal:
        """Return the reason to refuse a message that the present state does not accept."""
        known = self._tables.all.get(message.to)
        op = message.__struct_config__.tag
        if self._objects is self._tables.strict:
            text = f"the first message must be auth, not {op!r}"
            if op == "auth":
                text = f"auth: there is no object {message.to[:40]!r}"
            return Refusal(Reason.NOT_AUTHENTICATED, text)
        if known is None:
            return Refusal(Reason.UNKNOWN_TARGET, f"there is no object {message.to[:40]!r}")
        if type(message) not in known:
            return Refusal(Reason.UNKNOWN_OP, f"the object {message.to!r} has no op {op!r}")
        return Refusal(Reason.NOT_AUTHENTICATED, f"{op}: not authenticated to {message.to!r}")


_SILENT = {
    Reason.NOT_AUTHENTICATED,
    Reason.WRONG_CREDENTIALS,
    Reason.TOO_MANY_GUESSES,
    Reason.ALREADY_AUTHENTICATED,
}
"""Reasons for which the original closes the connection without a message; so do listeners with
``allow_before_auth``."""

COMMON: OperationRoles = {
    wire.Auth: (ElkoSession._auth, ()),
    wire.Disconnect: (ElkoSession._disconnect, ()),
    wire.Ping: (ElkoSession._ping, ()),
    wire.Pong: (ElkoSession._pong, ()),
    wire.Debug: (ElkoSession._debug, ()),
}
"""Operations of every object."""
