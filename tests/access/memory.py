"""Access in memory, whose users and rights tests change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from broker.access.passwords import MIN_ITERATIONS, PasswordVerifier
from broker.access.principal import Method, Principal
from broker.access.rights import AnonymousAccess, Grants, Right, grants_of
from broker.core.errors import Reason, Refusal

ALL_USERS = (Right(("*",), ("*",)),)
"""All users may do everything, and the anonymous one nothing."""


_grants = lru_cache(maxsize=None)(grants_of)
"""All sessions of a user share their grants, as with the users file."""


class MemoryAccess(AnonymousAccess):
    """`broker.access.principal.Access` with these verifiers and tokens of users, and rights."""

    users = True
    work = MIN_ITERATIONS

    def __init__(
        self,
        passwords: Mapping[str, PasswordVerifier] | None = None,
        rights: Iterable[Right] = ALL_USERS,
        tokens: Mapping[str, str] | None = None,
    ) -> None:
        self.changed: list[Callable[[], object]] = []
        self.keys: dict[str, str] = {}
        self.passwords = dict(passwords or {})
        self.rights = tuple(rights)
        self.tokens = dict(tokens or {})

    @property
    def verifiers(self) -> Mapping[str, PasswordVerifier]:  # type: ignore[override]
        return self.passwords

    @property
    def shapes(self) -> Sequence[tuple[int, int]]:  # type: ignore[override]
        return sorted((kept.iterations, len(kept.salt)) for kept in self.passwords.values())

    def verifier(self, user: str) -> PasswordVerifier | None:
        return self.passwords.get(user)

    def by_token(self, token: str, address: str) -> Principal:
        user = self.tokens.get(token)
        if user is None:
            raise Refusal(Reason.WRONG_CREDENTIALS, "the token is wrong, or revoked")
        return Principal(user, Method.TOKEN, address, token)

    def stands(self, principal: Principal) -> bool:
        return not principal.name or principal.credential in self.tokens

    def logs_in(self, listener: str) -> bool:
        return any(right.concerns_any(self.passwords, listener) for right in self.rights)

    def grants(self, principal: Principal, listener: str) -> Grants:
        return _grants(principal.name, listener, self.rights)

    def allows(self, principal: Principal, listener: str, operation: str, name: str = "") -> bool:
        return self.grants(principal, listener).may(operation, name)
