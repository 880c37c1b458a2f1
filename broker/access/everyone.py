"""Access without a users file: the anonymous user may do everything."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred, fail

from broker.access.grants import EVERYTHING, Grants
from broker.access.password_verifiers import ITERATIONS, PasswordVerifier
from broker.access.principal import Principal
from broker.core.errors import Reason, Refusal


class Everyone:
    """Implementation of `broker.access.principal.Access` without users: all credentials are refused."""

    users = False
    problems = ()

    def __init__(self) -> None:
        self.changed: list[Callable[[], object]] = []
        """Callbacks, which are never called: nothing changes."""
        self.keys: dict[str, str] = {}
        """No keys."""
        self.verifiers: dict[str, PasswordVerifier] = {}
        """No passwords."""
        self.shapes: tuple[tuple[int, int], ...] = ()
        self.work = ITERATIONS

    def by_password(self, user: str, password: str, address: str) -> Deferred[Principal]:
        """Refuse the password."""
        return fail(self._refusal())

    def by_token(self, token: str, address: str) -> Principal:
        """Refuse the token."""
        raise self._refusal()

    def by_certificate(self, names: tuple[str, ...], address: str) -> Principal | None:
        """Return None: no certificate has a user."""
        return None

    def by_key(self, key: str, address: str) -> Principal | None:
        """Return None: no key has a user."""
        return None

    def allows(self, principal: Principal, listener: str, operation: str, name: str = "") -> bool:
        """Return True."""
        return True

    def grants(self, principal: Principal, listener: str) -> Grants:
        """Return the grants of everything."""
        return EVERYTHING

    def logs_in(self, listener: str) -> bool:
        """Return False: there are no users."""
        return False

    def verifier(self, user: str) -> PasswordVerifier | None:
        """Return None: there are no users."""
        return None

    def stands(self, principal: Principal) -> bool:
        """Return True."""
        return True

    def _refusal(self) -> Refusal:
        return Refusal(Reason.WRONG_CREDENTIALS, "no users file is configured, so there are no users")
