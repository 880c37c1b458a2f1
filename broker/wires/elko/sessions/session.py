"""Base of all Elko sessions: authentication, the ops common to all objects, and refusals.

Rules (both documents; where real peers differ, both are supported):
- A message is for an object (``to``). Each object that can be authenticated to is a role; some have two names.
- Before `auth`, any other message closes the connection, unless the listener has ``allow_before_auth``: then operations
  without a role are served, unknown ones are answered, and only an operation that needs a role closes. An `auth` with
  an ill-typed parameter is answered, and may be repeated.
- A role is authenticated once; a connection may have several roles.
- Trusted peers receive the secrets of services (`broker.access.principal.sees_secrets`).
- The broker pings servers (`ElkoSession.ping`). Only the answer to the latest ping counts: one with its tag, or without
  any. All others are ignored.
- With a users file, each operation needs a right of the peer's user. While the password of an `auth` is checked in a
  thread, later messages wait.
- Administrative operations are recorded in the audit log.

`broker_session` and `director_session` add the operations of their protocols.

The file is longer than others: it has one method for each operation that all objects share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import chain, combinations
from typing import Any

import attrs
import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from broker.access.principal import Act, Principal, forbidden, perform
from broker.access.rights import EVERY_ENTRY, Grants, RegistryReading
from broker.core.errors import PER_ADDRESS, Malformed, Reason, Refusal, at_limit
from broker.core.model import ANONYMOUS, MAX_TEXT
from broker.net.peer_interfaces import Peer
from broker.wires.elko.codec import blocks as wire
from broker.wires.elko.codec.blocks import Message, encode
from broker.wires.elko.sessions.authentication import AccessControl, Role

NOBODY = Principal()
"""The anonymous user, where no users file distinguishes users."""

MAX_HELD = 1_000
"""Messages of one peer that wait for the check of its password: real servers send a few at once."""

HELD_BYTES = 500
"""Bytes of memory that a message takes while it waits, besides its texts."""

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
        "__weakref__",
        "_access",
        "_ended",
        "_grants",
        "_label",
        "_login",
        "_objects",
        "_peer",
        "_pings",
        "_pong_awaited",
        "_requests",
        "_roles",
        "_tables",
        "principal",
        "reading",
        "trusted",
        "write",
    )

    def __init__(self, tables: ObjectTables, access: AccessControl, peer: Peer) -> None:
        self._tables = tables
        self._access = access
        self._peer = peer
        self._requests = access.requests
        self.write = peer.write
        """Send one encoded message."""
        self._label = ANONYMOUS
        self._roles: frozenset[Role] = frozenset()
        self._ended = False
        self._pings = 0
        self._pong_awaited: Callable[[bool | None], object] | None = None
        self.trusted = False
        self._login: _Login | None = None
        self.principal = NOBODY
        """The user of the peer; see `become`."""
        self._grants: Grants | None = None
        self.reading = EVERY_ENTRY
        """The entries of the registry that the user is shown."""
        access.sessions.add(self)
        if access.access.users:
            self.become(Principal(address=peer.address))
        self._objects = self._permitted()

    # Called by the connection

    def begin(self) -> None:
        """Nothing is sent before a message."""

    def receive(self, message: Message) -> None:
        """Execute one message."""
        # One that waits for a login counts when it is executed, for the user of the login.
        if self._requests.on and self._objects is not _HOLDING:
            try:
                self._requests.take(self.principal.name, self._peer.address)
            except Refusal as refusal:
                self.refuse(refusal)
                return
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
            self.diagnose(refusal.text if patient else f"{refusal.text} (too much is refused: closing)")
        if refusal.reason.fatal or not patient:
            self._peer.close()

    def diagnose(self, text: str) -> None:
        """Send a diagnostic. The listener has them on."""
        self.write(encode(wire.Diagnostic(msg=text)))

    def input_ended(self) -> bool:
        """Handle the end of input; see `broker.net.peer_interfaces.PeerSession`."""
        raise NotImplementedError

    def become(self, principal: Principal) -> None:
        """Act as that user from now on."""
        self.principal = principal
        self._use_grants()

    def review(self) -> bool:
        """Check the user, the rights and the roles again after a change of the users file or the policy. Closes if they
        do not suffice now.

        Returns True if the session stays.
        """
        objection = self._objection()
        if objection is not None:
            self.refuse(Refusal(Reason.REVOKED, f"{objection}: closing"))
            return False
        if self._login is not None:
            self._login.objects = self._permitted()
        elif not self._roles:
            self._objects = self._permitted()
        return True

    def _objection(self) -> str | None:
        """Check the user, the rights, which become the present ones, and the roles. Returns what does not suffice."""
        if not self._access.access.stands(self.principal):
            return f"the login of {self.principal.name} is not valid any more"
        self._use_grants()
        for role in self._roles:
            if not self._may_be(role):
                return f"{self.principal.name or 'a peer without a user'} may not be {role} any more"
        return None

    @property
    def must_authenticate(self) -> bool:
        """True if the peer has no role, and its listener serves no peer without one."""
        return not self._roles and not self._access.policy.allow_before_auth

    def _permitted(self) -> dict[str, Operations]:
        return self._tables.strict if self.must_authenticate else self._tables.of[self._roles]

    def _use_grants(self) -> None:
        self._grants = self._access.grants(self.principal)
        self.reading = RegistryReading.of(self._grants)

    def permit(self, operation: str, name: str = "") -> None:
        """Raise `Refusal` FORBIDDEN if the user has no right to the operation for that name."""
        if self._grants is not None and not self._grants.may(operation, name):
            raise self._forbidden(operation, name)

    def permit_some(self, operation: str) -> None:
        """Raise `Refusal` FORBIDDEN if the user has no right to the operation for any name."""
        if self._grants is not None and not self._grants.may_some(operation):
            raise self._forbidden(operation, "")

    def administer(self, operation: str, concerned: str, carry_out: Callable[[], None]) -> None:
        """Carry out an administrative operation if the user has the right, and record it in the audit log."""
        access, peer = self._access, self._peer
        # Without a users file the principal has no address.
        address = self.principal.address or peer.address
        principal = attrs.evolve(self.principal, address=address, request_id=peer.request_id)
        perform(access.audit, Act(principal, access.title, operation, concerned), self._grants, carry_out)

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
    def unreachable(self) -> bool:
        """True if the host of the peer has not acknowledged all output."""
        return self._peer.unacknowledged

    @property
    def _ping_tag(self) -> str:
        return f"check-{self._pings}"

    # Extended by a protocol

    def _admit(self, role: Role, message: wire.Auth) -> None:
        """Give the peer a role. Raises `Refusal` if it may not have it."""
        raise NotImplementedError

    def _kept(self) -> int:
        """Return the bytes of memory that the protocol keeps for the peer, as `Peer.hold` counts them."""
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
        role = self._tables.roles.get(message.to)
        if role is None:
            raise Refusal(Reason.WRONG_CREDENTIALS, f"auth: the object {message.to!r} has no role")
        if role in self._roles:
            raise Refusal(Reason.ALREADY_AUTHENTICATED, f"auth: already authenticated to {message.to!r}")
        self._log_in(role, message)

    def _enter(self, role: Role, message: wire.Auth) -> None:
        """Give the authenticated peer a role. Raises `Refusal` if the peer may not have it."""
        if not self._may_be(role):
            # As the original, which closes the connection of a peer without the password.
            reason = Reason.FORBIDDEN if self.principal.name else Reason.WRONG_CREDENTIALS
            raise Refusal(reason, f"auth: {self.principal.name or 'a peer without a user'} may not be {role} here")
        self._label = ANONYMOUS if message.label is None else message.label[:MAX_TEXT]
        # The role counts only once the protocol has accepted the peer.
        self._admit(role, message)
        self._roles = self._roles | {role}
        self._objects = self._tables.of[self._roles]
        self._peer.authenticated()

    def _log_in(self, role: Role, message: wire.Auth) -> None:
        """Authenticate. Messages wait while a password is checked. An identified user needs no password."""
        self._access.policy.check_mode(role, message.auth)
        known = self.principal.name and (message.auth is None or message.auth.mode == "open")
        found = self.principal if known else self._access.log_in(message.auth, self._peer)
        if isinstance(found, Principal):
            self._logged_in(role, message, found)
            return
        self._login = login = _Login(found, self._objects)
        self._objects = _HOLDING

        def decided(result: Principal | Failure) -> None:
            if self._login is not login:
                return  # the peer has gone
            self._login = None
            self._objects = login.objects
            self._peer.hold(self._kept())
            try:
                if isinstance(result, Failure):
                    result.trap(Refusal)
                    result.raiseException()
                else:
                    self._logged_in(role, message, result)
            except Refusal as refusal:
                refusal.__traceback__ = None  # it has this frame, and so the message, in a cycle
                self.refuse(refusal)
                if refusal.reason is Reason.LIMIT:
                    # Too many passwords are checked: a real peer logs in again only over a new connection.
                    self._peer.close()
            for held in login.held:
                if self._ended:
                    break  # the connection is closed, and all input behind its end is discarded
                self.receive(held)
            # A held `auth` may have begun another check, which handles the end of input then.
            if login.input_ended and not self.input_ended():
                self._peer.close()

        found.addBoth(decided)

    def _logged_in(self, role: Role, message: wire.Auth, principal: Principal) -> None:
        # An `auth` for a second role needs no second password.
        if principal.name or not self.principal.name:
            self.become(principal)
        self.trusted = self._access.trusts(self.principal, self._peer)
        self._enter(role, message)

    def _waits_for_login(self) -> bool:
        """Return True if a password is checked now. Then the end of input is handled after the check."""
        if self._login is not None:
            self._login.input_ended = True
        return self._login is not None

    def _give_up_login(self) -> None:
        """Discard the result of a password check: the connection has gone."""
        login, self._login = self._login, None
        if login is not None:
            login.found.addErrback(lambda failure: failure.trap(Refusal, CancelledError))
            login.found.cancel()

    def _hold(self, message: Message) -> None:
        """Keep a message until the password is checked."""
        login = self._login
        assert login is not None
        if len(login.held) >= MAX_HELD:
            raise Refusal(Reason.LIMIT, f"more than {MAX_HELD} messages before the answer to auth")
        size = login.size + HELD_BYTES + len(msgspec.json.encode(message))
        if not self._peer.hold(self._kept() + size):
            raise at_limit("auth: too many messages of this address wait for its answer", PER_ADDRESS)
        login.size = size
        login.held.append(message)

    def _may_be(self, role: Role) -> bool:
        if role not in self._access.policy.roles:
            return False  # a reload may change them, even while a password is checked
        grants = self._grants
        if grants is None:
            return True
        return grants.administers if role == "admin" else any(map(grants.may_some, _NEEDS[role]))

    def _forbidden(self, operation: str, name: str) -> Refusal:
        return forbidden(self.principal, operation, name[:MAX_TEXT])

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
        if self._access.policy.log_debug:
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


@attrs.define(eq=False)
class _Login:
    """A password check in progress: its result, the operations permitted before, and the messages that wait."""

    found: Deferred[Principal]
    objects: dict[str, Operations]
    held: list[Message] = attrs.field(factory=list)
    size: int = 0
    """Bytes that these take."""
    input_ended: bool = False


class _HoldingOperations(dict[type[Message], Operation]):
    """The operations of any object while a password is checked: all messages wait."""

    def get(self, message: Any, default: Any = None) -> Operation:
        """Return the operation that keeps the message."""
        return ElkoSession._hold


class _HoldingObjects(dict[str, Operations]):
    """The objects while a password is checked."""

    def get(self, name: Any, default: Any = None) -> Operations:
        """Return the operations of any object."""
        return _HOLDING_OPERATIONS


_HOLDING_OPERATIONS = _HoldingOperations()
_HOLDING = _HoldingObjects()

_NEEDS: Mapping[str, tuple[str, ...]] = {"client": ("find", "offer"), "user": ("find",), "provider": ("offer",)}
"""The operations of which a role needs a right to one. An administrator needs any right to administer or view."""


def viewing(operation: Operation) -> Operation:
    """Return an operation that needs the right "view"."""

    def permitted(session: Any, message: Any) -> None:
        session.permit("view")
        operation(session, message)

    return permitted


def administering(right: str, operation: Operation, concerned: Callable[[Any], str | None]) -> Operation:
    """Return an operation that needs an administrative right, and is recorded. ``concerned`` names its object."""

    def recorded(session: Any, message: Any) -> None:
        session.administer(right, concerned(message) or "", partial(operation, session, message))

    return recorded


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
