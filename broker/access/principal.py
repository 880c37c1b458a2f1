"""Principals: authenticated users, and the operations that rights are granted for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from broker.core.errors import Reason, Refusal, no_right

if TYPE_CHECKING:
    from broker.access.passwords import PasswordVerifier
    from broker.access.rights import Grants


class Method(Enum):
    """The means by which a user is known."""

    NONE = "none"
    PASSWORD = "password"
    TOKEN = "token"
    CERTIFICATE = "certificate"


@attrs.frozen
class Principal:
    """A user. The anonymous one has the empty name. ``address`` is the peer's host, for the audit log.

    ``credential`` identifies the password, token, certificate or key that authenticated the user; it is no secret.
    ``request_id`` is the id of the request over HTTP, for the audit log.
    """

    name: str = ""
    method: Method = Method.NONE
    address: str = ""
    credential: str = attrs.field(default="", repr=False)
    request_id: str = attrs.field(default="", eq=False, repr=False)

    @property
    def payer(self) -> str:
        """The address that what the peer has stored counts for; empty for a user: see `StoredMemory`."""
        return "" if self.name else self.address


LOGIN = "login"
"""The operation that permits no more than a connection, in order to log in."""

OPERATIONS = {
    LOGIN: "connect, in order to log in",
    "find": "find services, and watch the registry",
    "offer": "offer services, renew and withdraw own ones, and report loads",
    "publish": "publish to topics, and write to queues",
    "subscribe": "subscribe to topics, and read queues",
    "view": "read the state of the daemon: views, metrics, events, plans",
    "admin.withdraw": "withdraw services and disconnect providers of others",
    "admin.disconnect": "disconnect sessions",
    "admin.queues": "purge queues, move their messages, and deliver dead letters again",
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

    Without a users file every principal has every right: listeners are reached from this machine only then.
    """

    @property
    def users(self) -> bool:
        """True if a users file is configured: then the anonymous principal has only the rights that are given to it."""

    def by_password(self, user: str, password: str, address: str) -> Deferred[Principal]:
        """Authenticate by a password, behind the gate of all listeners (`broker.access.logins`)."""

    def by_token(self, token: str, address: str) -> Principal:
        """Authenticate by a bearer token that has not expired."""

    def by_certificate(self, names: tuple[str, ...], address: str) -> Principal | None:
        """Return the user of a client certificate that the listener has verified, by the first name that has one."""

    def allows(self, principal: Principal, listener: str, operation: str, name: str = "") -> bool:
        """Return True if the user may do that at the listener of that title.

        ``name`` is that of a service, topic or queue; empty for an operation on all of them.
        """

    def grants(self, principal: Principal, listener: str) -> Grants:
        """Return all that the user may do at the listener of that title. Sessions keep it until `changed`."""

    @property
    def keys(self) -> Mapping[str, str]:
        """The user of each CURVE public key (Z85)."""

    def logs_in(self, listener: str) -> bool:
        """Return True if a user with a password has any right at the listener of that title."""

    def verifier(self, user: str) -> PasswordVerifier | None:
        """Return the password verifier of a user for SCRAM, None if there is none."""

    @property
    def verifiers(self) -> Mapping[str, PasswordVerifier]:
        """The password verifiers for SCRAM, by user. The mapping itself never changes."""

    @property
    def shapes(self) -> Sequence[tuple[int, int]]:
        """Iterations and length of the salt of each of them, in any fixed order."""

    @property
    def work(self) -> int:
        """Iterations of a check of a password of any user: see `broker.access.passwords.work_of`."""

    def stands(self, principal: Principal) -> bool:
        """Return True if the credential that authenticated the user is still valid; True for the anonymous user."""

    @property
    def changed(self) -> list[Callable[[], object]]:
        """Callbacks for a change of users, rights or the validity of a token, without arguments.

        A session whose principal no longer `stands` ends; the others take their `grants` again.
        """

    @property
    def problems(self) -> Sequence[str]:
        """Reasons why the present users file is not used, as sentences; empty if it is, or if there is none."""


def sees_secrets(access: Access, principal: Principal, local: bool) -> bool:
    """Return True if a peer is shown the secrets of services (`broker.core.model.Service.auth`), on any wire.

    Users are. Without a users file peers of this machine are (``local``), too: with one, a peer without a user is a
    stranger wherever it is.
    """
    return bool(principal.name) or (local and not access.users)


# Administrative acts, as the audit log records them.

DONE = "done"
"""The result of an act that was carried out."""


@attrs.frozen
class Act:
    """One administrative act: a user at a listener, an operation of `broker.access.principal`, and its object.

    ``result`` is "done", or "refused: " and the code of the reason.
    """

    principal: Principal
    listener: str
    operation: str
    object: str = ""
    result: str = DONE


class Audit(Protocol):
    """The audit log."""

    def record(self, act: Act) -> None:
        """Record an act, with the present time. Never raises."""


class NoAudit:
    """Implementation of `Audit` that records nothing, for tests and tools."""

    def record(self, act: Act) -> None:
        """Record nothing."""


def perform(audit: Audit, act: Act, grants: Grants | None, carry_out: Callable[[], Any], by_name: bool = False) -> Any:
    """Check the right to an act, carry it out, and record it with its result.

    ``grants`` are those of the user; None permits everything. ``by_name``: the right for some names suffices. A result
    with ``problems`` is recorded as refused. If the result is a Deferred, the act is recorded when it has fired. Raises
    `Refusal` FORBIDDEN, and what ``carry_out`` raises.
    """

    def done(result: Any) -> Any:
        problems = getattr(result, "problems", ())
        audit.record(attrs.evolve(act, result=refused(Reason.PARAMETER)) if problems else act)
        return result

    def failed(reason: Failure) -> Failure:
        audit.record(attrs.evolve(act, result=failure(reason.value)))
        return reason

    try:
        if grants is not None and not (grants.may_some if by_name else grants.may)(act.operation):
            raise forbidden(act.principal, act.operation)
        result = carry_out()
    except Exception as error:
        audit.record(attrs.evolve(act, result=failure(error)))
        raise
    return result.addCallbacks(done, failed) if isinstance(result, Deferred) else done(result)


def forbidden(principal: Principal, operation: str, name: str = "") -> Refusal:
    """Return the refusal of an operation that a user has no right to, for that name."""
    return no_right(operation, name, principal.name)


def refused(reason: Reason) -> str:
    """Return the result of an act that was refused."""
    return f"refused: {reason.code}"


def failure(error: BaseException | None) -> str:
    """Return the result of an act that raised this exception."""
    reason = getattr(error, "reason", None)
    return refused(reason) if isinstance(reason, Reason) else "failed"
