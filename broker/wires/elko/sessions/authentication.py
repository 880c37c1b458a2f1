"""Authentication of Elko sessions: credentials, roles, and the policy of a listener.

Invariant: a reload replaces a listener's `Policy` as a whole, and its sessions read it again at each check. "auth" in
docs/protocols/elko-broker.md describes the protocol.
"""

from __future__ import annotations

from typing import Literal, Protocol

import attrs

from broker.access.password_backoff import Guesses
from broker.core.errors import Reason, Refusal
from broker.core.model import Rights

Role = Literal["client", "user", "provider", "admin"]
"""Roles of a peer: client and admin at the broker; user, provider and admin at the director."""


class Credentials(Protocol):
    """An AUTHDESC: a mode, and a secret."""

    @property
    def mode(self) -> str: ...
    @property
    def code(self) -> str | None: ...


@attrs.frozen
class Policy:
    """The policy of one listener.

    ``roles`` are those that peers may authenticate for. ``code`` is the password, None on an open listener.
    ``allow_before_auth`` permits ping, debug and find before `auth`, as the original does. ``diagnostics`` sends the
    reasons of refusals to peers. ``rights`` limits the services that a peer may offer. ``waits`` is the maximum number
    of waiting finds of one peer; at the director, of its watches. ``orders_must_reach`` refuses an administrator's
    order if no server matches; by default it then has no answer, as in the original. ``reservations`` is the maximum
    number of unused reservations of one peer of the director.
    """

    roles: frozenset[Role] = frozenset(("client", "admin"))
    code: str | None = attrs.field(default=None, repr=False)
    allow_before_auth: bool = False
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
        wanted = "open" if self.code is None else "password"
        if mode != wanted:
            raise Refusal(Reason.WRONG_CREDENTIALS, f"auth: this listener wants mode {wanted!r}, not {mode[:40]!r}")


@attrs.define
class AccessControl:
    """Access control of one listener: its policy and its recent wrong passwords. A reload replaces the policy."""

    policy: Policy
    guesses: Guesses

    def check(self, role: Role, credentials: Credentials | None, address: str) -> None:
        """Raise `Refusal` unless the credentials of a peer at that address permit the role."""
        self.policy.check_mode(role, credentials)
        # An open listener compares no password, and so counts no wrong ones.
        if self.policy.code is None:
            return
        code = "" if credentials is None or credentials.code is None else credentials.code
        try:
            self.guesses.check(address, code, self.policy.code)
        except Refusal as refusal:
            raise Refusal(refusal.reason, f"auth: {refusal.text}") from None
