"""Who may do what on a listener: credentials, roles, rights. Shared by every Elko session."""

from __future__ import annotations

from typing import Literal, Protocol

import attrs

from broker.core.errors import Reason, Refusal
from broker.core.model import Rights
from broker.wires.common.password_backoff import Guesses

Role = Literal["client", "user", "provider", "admin"]
"""The broker's peers are clients and admins, the director's users, providers and admins."""


class Credentials(Protocol):
    """An AUTHDESC: a mode, and a secret."""

    @property
    def mode(self) -> str: ...
    @property
    def code(self) -> str | None: ...


@attrs.frozen
class Policy:
    """The rules of one listener.

    ``code`` is the password, None on an open listener. ``allow_before_auth`` serves ping, debug and find before `auth`,
    as the original does. ``waits`` is how many finds of one peer may wait; or how many watches of the director it has.
    ``orders_must_reach`` refuses an administrator's order to servers if none of them matches; by default it has no
    answer then, as with the original.
    ``reservations`` is how many reservations of the director one peer may have that nobody has used yet.
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
        """Raise `Refusal` if no peer may have that role here, or none with credentials of this mode."""
        if role not in self.roles:
            raise Refusal(Reason.WRONG_CREDENTIALS, f"auth: the role {role!r} is not served on this listener")
        mode = "open" if credentials is None else credentials.mode
        wanted = "open" if self.code is None else "password"
        if mode != wanted:
            raise Refusal(Reason.WRONG_CREDENTIALS, f"auth: this listener wants mode {wanted!r}, not {mode[:40]!r}")


@attrs.define
class AccessControl:
    """One listener as its sessions see it: its rules, which a reload replaces whole, and who failed to get in."""

    policy: Policy
    guesses: Guesses

    def check(self, role: Role, credentials: Credentials | None, address: str) -> None:
        """Raise `Refusal` unless a peer with these credentials, at that address, may have that role here."""
        self.policy.check_mode(role, credentials)
        if self.policy.code is None:
            return
        code = "" if credentials is None or credentials.code is None else credentials.code
        try:
            self.guesses.check(address, code, self.policy.code)
        except Refusal as refusal:
            raise Refusal(refusal.reason, f"auth: {refusal.text}") from None
