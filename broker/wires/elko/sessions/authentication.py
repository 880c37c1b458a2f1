"""Authentication of Elko sessions: credentials, roles, and the policy of a listener.

Invariant: a reload replaces a listener's `Policy` as a whole, its sessions read it again at each check, and what it
permits no more ends at once, of many sessions within several turns of the reactor. "auth" in
docs/protocols/elko-broker.md describes the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, Protocol
from weakref import WeakSet

import attrs
from twisted.internet.defer import Deferred

from broker.access.logins import RequestLimits, unlimited
from broker.access.principal import Access, Audit, NoAudit, Principal, sees_secrets
from broker.access.rights import AnonymousAccess, Grants
from broker.core.errors import Reason, Refusal
from broker.core.model import Rights
from broker.core.turns import all_at_once, for_each
from broker.net.peer_interfaces import Peer

if TYPE_CHECKING:
    from broker.wires.elko.sessions.session import ElkoSession

Role = Literal["client", "user", "provider", "admin"]
"""Roles of a peer: client and admin at the broker; user, provider and admin at the director."""


class Credentials(Protocol):
    """An AUTHDESC: a mode, a secret, and the name of the user."""

    @property
    def mode(self) -> str: ...
    @property
    def code(self) -> str | None: ...
    @property
    def id(self) -> str | None: ...


MODES = ("open", "password")
"""Modes of credentials."""


@attrs.frozen
class Policy:
    """The policy of one listener.

    ``roles`` are those that peers may authenticate for. ``allow_before_auth`` permits ping, debug and find before
    `auth`, as the original does. ``log_debug`` writes debug messages to the log. ``diagnostics`` sends the reasons of
    refusals to peers. ``rights`` limits the number of services that a peer may offer. ``waits`` is the maximum number
    of waiting finds of one peer; at the director, of its watches. ``orders_must_reach`` refuses an administrator's
    order if no server matches; by default it then has no answer, as in the original. ``reservations`` is the maximum
    number of unused reservations of one peer of the director.
    """

    roles: frozenset[Role] = frozenset(("client", "admin"))
    allow_before_auth: bool = False
    log_debug: bool = False
    diagnostics: bool = True
    rights: Rights = attrs.field(factory=Rights)
    waits: int = 1_000
    orders_must_reach: bool = False
    reservations: int = 100

    def check_mode(self, role: Role, credentials: Credentials | None) -> None:
        """Raise `Refusal` WRONG_CREDENTIALS if the listener does not serve this role or mode of credentials."""
        if role not in self.roles:
            raise Refusal(Reason.WRONG_CREDENTIALS, f"auth: the role {role!r} is not served on this listener")
        mode = "open" if credentials is None else credentials.mode
        if mode not in MODES:
            text = f"auth: the mode is one of {', '.join(MODES)}, not {mode[:40]!r}"
            raise Refusal(Reason.WRONG_CREDENTIALS, text)


@attrs.define(eq=False)
class AccessControl:
    """Access control of one listener: its policy, which a reload replaces, and the parts shared with others.

    ``title`` is the title of the listener in rights and in the audit log. ``sessions`` are those of the listener.
    ``in_turns`` makes all steps of a work, in several turns of the reactor where there are many.
    """

    policy: Policy
    access: Access = attrs.field(factory=AnonymousAccess)
    title: str = ""
    audit: Audit = attrs.field(factory=NoAudit)
    requests: RequestLimits = attrs.field(factory=unlimited)
    sessions: WeakSet[ElkoSession] = attrs.field(factory=WeakSet)
    in_turns: Callable[[Iterator[object]], object] = all_at_once

    def use(self, policy: Policy) -> None:
        """Apply another policy, also to the present sessions."""
        if policy != self.policy:
            self.policy = policy
            self.review()

    def log_in(self, credentials: Credentials | None, peer: Peer) -> Principal | Deferred[Principal]:
        """Return the user of the credentials. Raises, or fails with, `Refusal`.

        Mode "password" has a user and a password as ``id`` and ``code``, or a token as ``code`` alone. Mode "open" is
        the user of the client certificate, or else the anonymous user.
        """
        if credentials is not None and credentials.mode == "password":
            code = credentials.code or ""
            if credentials.id:
                return self.access.by_password(credentials.id, code, peer.address)
            return self.access.by_token(code, peer.address)
        return self.access.by_certificate(peer.certificate, peer.address) or Principal(address=peer.address)

    def trusts(self, principal: Principal, peer: Peer) -> bool:
        """Return True if an authenticated peer is shown the secrets of services."""
        return sees_secrets(self.access, principal, peer.local)

    def grants(self, principal: Principal) -> Grants | None:
        """Return the rights of the user at this listener; None without a users file, which permits everything."""
        return self.access.grants(principal, self.title) if self.access.users else None

    def review(self) -> None:
        """Check the users, rights and roles of all sessions again, after a change."""
        self.in_turns(for_each(tuple(self.sessions), lambda session: session.review()))
