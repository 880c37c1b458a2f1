"""Logins: the limits on passwords that all listeners share, so that guesses at one listener count at the others.

Logins by name and password, for all wires: the gate, then the cache of verified passwords, then a check in a thread.

Rules:
- The gate (`broker.access.login_gate`) comes first, so that a right password is refused as a wrong one while guesses
  are refused. It is asked again when the check begins: attempts that wait are no guesses that are admitted already.
- A password that was right a short while ago is not checked again: HTTP has it in every request, and a farm with one
  user comes back at once. Only right ones are kept, as a keyed BLAKE2 digest: neither a password nor a digest that
  another process could compare is in memory.
- An entry counts while its verifier is one of the user's, and no longer than `LIFETIME`.
- In the queue for threads, the names that have logged in from an address take turns with the other names there.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail, succeed

from broker.access.identity import network_of
from broker.access.login_gate import Attempt, LoginGate, RequestLimits, unlimited
from broker.access.passwords import PasswordChecks, PasswordVerifier, is_usable, is_user, matching
from broker.core.errors import Refusal

MOST = 10_000
"""Verified passwords: one for each session, at some 400 bytes each. Beyond it the one unused for longest goes."""

LIFETIME = 300.0
"""Seconds after which a password is checked again."""

Verifiers = Callable[[], Sequence[PasswordVerifier]]
"""Returns the verifiers of one user at present, none for an unknown user."""


class PasswordLogins:
    """Checks of passwords. ``seconds`` returns the time of a clock, in seconds."""

    def __init__(self, gate: LoginGate, checks: PasswordChecks, seconds: Callable[[], float]) -> None:
        self._gate = gate
        self._checks = checks
        self._seconds = seconds
        self._secret = secrets.token_bytes(32)
        self._verified: OrderedDict[bytes, tuple[PasswordVerifier, float]] = OrderedDict()

    def verify(
        self, name: str, password: str, address: str, verifiers: Verifiers, work: int
    ) -> Deferred[PasswordVerifier | None]:
        """Return a Deferred of the verifier that the password fits; of None if it is wrong.

        ``work`` is `broker.access.passwords.work_of` of all users of that kind. The Deferred fails with
        `Refusal` TOO_MANY_GUESSES, or LIMIT if too many passwords are being checked. It may be cancelled.
        """
        # Bounded before anything is kept: attempts wait for a thread.
        name = name if is_user(name) else ""
        password = password if is_usable(password) else ""  # no verifier has it; the work is that of any wrong one
        digest = self._digest(name, password)

        def begin() -> Callable[[list[PasswordVerifier]], PasswordVerifier | None]:
            attempt = self._gate.begin(address, name)

            def settle(fitting: list[PasswordVerifier]) -> PasswordVerifier | None:
                # The users may have changed during the check.
                present = verifiers()
                verifier = next((each for each in fitting if each in present), None)
                return verifier if verifier is None else self._right(digest, verifier, attempt)

            return settle

        try:
            self._gate.admit(address, name)
            verifier = self._find(digest, verifiers())
            if verifier is not None:
                return succeed(self._right(digest, verifier, self._gate.begin(address, name)))
            turn = (network_of(address), self._gate.knows(address, name))
            return self._checks.run(matching, verifiers(), password, work, turn=turn, begin=begin)
        except Refusal as refusal:
            return fail(refusal)

    def _right(self, digest: bytes, verifier: PasswordVerifier, attempt: Attempt) -> PasswordVerifier:
        attempt.right()
        if digest not in self._verified:
            self._verified[digest] = (verifier, self._seconds() + LIFETIME)
            if len(self._verified) > MOST:
                self._verified.popitem(last=False)
        return verifier

    def _find(self, digest: bytes, present: Sequence[PasswordVerifier]) -> PasswordVerifier | None:
        """Return the verifier of a password that was right; None if it has to be checked."""
        verifier, until = self._verified.get(digest, (None, 0.0))
        if verifier is None:
            return None
        # The clock of another reactor may be set back: an entry of the future is too old as well.
        if not 0.0 < until - self._seconds() <= LIFETIME or verifier not in present:
            del self._verified[digest]
            return None
        self._verified.move_to_end(digest)
        return verifier

    def _digest(self, name: str, password: str) -> bytes:
        hashed = blake2b(key=self._secret, digest_size=32)
        for part in (name, password):
            data = part.encode("utf-8", "surrogatepass")
            hashed.update(len(data).to_bytes(8) + data)
        return hashed.digest()


@attrs.frozen(eq=False)
class Logins:
    """One instance of each limit.

    - ``gate``: guesses of passwords, by address and name.
    - ``passwords``: checks of passwords, behind the gate.
    - ``requests``: rates of requests, by address and user.
    """

    gate: LoginGate
    passwords: PasswordLogins
    requests: RequestLimits

    @classmethod
    def open(
        cls,
        seconds: Callable[[], float],
        in_thread: Callable[..., Deferred[Any]],
        requests: RequestLimits | None = None,
    ) -> Logins:
        """Return new limits. ``seconds`` is the time of a clock; ``in_thread`` is as in `PasswordChecks`."""
        gate = LoginGate(seconds)
        passwords = PasswordLogins(gate, PasswordChecks(in_thread), seconds)
        return cls(gate, passwords, unlimited() if requests is None else requests)
