"""Who may do what on a listener: credentials, roles, rights. Shared by every Elko session."""

from __future__ import annotations

import hmac
from typing import Literal, Protocol

import attrs

from broker.core.errors import Reason, Refusal
from broker.core.model import Rights

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
    """

    roles: frozenset[Role] = frozenset(("client", "admin"))
    code: str | None = attrs.field(default=None, repr=False)
    allow_before_auth: bool = False
    diagnostics: bool = True
    rights: Rights = attrs.field(factory=Rights)
    waits: int = 1_000

    def check(self, role: Role, credentials: Credentials | None) -> None:
        """Raise `Refusal` unless a peer with these credentials may have that role here."""
        if role not in self.roles:
            raise Refusal(Reason.WRONG_CREDENTIALS, f"auth: the role {role!r} is not served on this listener")
        mode = "open" if credentials is None else credentials.mode
        wanted = "open" if self.code is None else "password"
        if mode != wanted:
            raise Refusal(Reason.WRONG_CREDENTIALS, f"auth: this listener wants mode {wanted!r}, not {mode[:40]!r}")
        if self.code is None:
            return
        code = "" if credentials is None or credentials.code is None else credentials.code
        if not hmac.compare_digest(code.encode(), self.code.encode()):
            raise Refusal(Reason.WRONG_CREDENTIALS, "auth: wrong password")


@attrs.define
class Door:
    """One listener as its sessions see it: its rules, which a reload replaces whole."""

    policy: Policy
