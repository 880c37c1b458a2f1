"""Credentials of a client and the SASL mechanisms that use them (RFC 4422).

Rules:
- The client selects the strongest mechanism among those that the broker offers. If it has no credentials for any of
  them, authentication fails (`AuthenticationFailed`).
- SCRAM-SHA-256 (RFC 5802, RFC 7677) is mutual: if the broker ends the exchange without proof that it knows the user, it
  is not trusted (`BrokerUnverified`). There is no channel binding, since ZeroMQ has no channel to bind to.
- PLAIN (RFC 4616) reveals the password to the other side. It is used only where SCRAM is not offered, over a connection
  that third parties cannot read (CURVE, ipc, loopback); elsewhere a man in the middle could ask for it.
- EXTERNAL (RFC 4422, appendix A): the connection's CURVE key is the proof. ANONYMOUS (RFC 4505): there is no proof.
- All of these mechanisms are client-first.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import attrs
from scramp import ScramClient, ScramException  # type: ignore[import-untyped]

from broker.client.errors import AuthenticationFailed, BrokerUnverified

SCRAM = "SCRAM-SHA-256"
PLAIN = "PLAIN"
EXTERNAL = "EXTERNAL"
ANONYMOUS = "ANONYMOUS"

_OTHER = "other-error"
"""The error name of SCRAM for errors without a name of their own (RFC 5802, section 7). scramp gives it to errors that
it detects itself."""


class Exchange(Protocol):
    """One authentication attempt by one mechanism. ``mechanism`` is its name in capitals."""

    mechanism: str

    def begin(self) -> bytes:
        """Return the initial response."""

    def answer(self, challenge: bytes) -> bytes:
        """Return the response to a challenge. It may block for a while. Raises `AuthenticationFailed` or
        `BrokerUnverified`."""

    def end(self) -> None:
        """Check the exchange after the broker has accepted it. Raises `BrokerUnverified`."""


class Credentials(Protocol):
    """Proof of identity that a client has."""

    def exchange(self, offered: Collection[str], secure: bool) -> Exchange:
        """Begin an exchange by one of the offered mechanisms. ``secure``: third parties cannot read the connection.

        Raises `AuthenticationFailed` if no mechanism fits.
        """


@attrs.frozen
class Password:
    """A user name and a password. ``plain``: permit PLAIN over any connection, also an unencrypted one."""

    user: str
    password: str = attrs.field(repr=False)
    plain: bool = False

    def exchange(self, offered: Collection[str], secure: bool) -> Exchange:
        if SCRAM in offered:
            return _Scram(self.user, self.password)
        if PLAIN in offered:
            if not secure and not self.plain:
                raise AuthenticationFailed(
                    "the broker requires the password itself, over a connection that others may read"
                )
            return _Single(PLAIN, f"\0{self.user}\0{self.password}".encode())
        raise _no_mechanism(offered)


@attrs.frozen
class External:
    """The user that the connection's CURVE key stands for. ``user``, if given, must be that user."""

    user: str = ""

    def exchange(self, offered: Collection[str], secure: bool) -> Exchange:
        if EXTERNAL not in offered:
            raise _no_mechanism(offered)
        return _Single(EXTERNAL, self.user.encode())


@attrs.frozen
class Anonymous:
    """An anonymous user. ``trace`` is text for the broker's log."""

    trace: str = ""

    def exchange(self, offered: Collection[str], secure: bool) -> Exchange:
        if ANONYMOUS not in offered:
            raise _no_mechanism(offered)
        return _Single(ANONYMOUS, self.trace.encode())


def _no_mechanism(offered: Collection[str]) -> AuthenticationFailed:
    # The names come from the peer and may hold any characters: escape them for the log.
    names = ", ".join(sorted(map(ascii, offered))) or "nothing"
    return AuthenticationFailed(f"no credentials for the mechanisms that the broker offers: {names}")


class _Single:
    """A mechanism with one message: the initial response."""

    def __init__(self, mechanism: str, response: bytes) -> None:
        self.mechanism = mechanism
        self._response = response

    def begin(self) -> bytes:
        return self._response

    def answer(self, challenge: bytes) -> bytes:
        raise BrokerUnverified(f"the broker sent a challenge, and {self.mechanism} has none")

    def end(self) -> None:
        """Accept: the broker proves nothing in these mechanisms."""


class _Scram:
    """SCRAM-SHA-256: client-first, server-first, client-final, server-final, and an empty response."""

    mechanism = SCRAM

    def __init__(self, user: str, password: str) -> None:
        try:
            self._client = ScramClient([SCRAM], user, password)
        except ScramException as error:
            raise AuthenticationFailed(f"invalid user name or password: {error.args[0]}") from None
        self._steps = [self._final, self._verify]
        self._proven = False

    def begin(self) -> bytes:
        first: str = self._client.get_client_first()
        return first.encode()

    def answer(self, challenge: bytes) -> bytes:
        if not self._steps:
            raise BrokerUnverified("the broker sent more challenges than SCRAM has")
        try:
            return self._steps.pop(0)(challenge.decode())
        except ScramException as error:
            if error.server_error is not None and error.server_error.value != _OTHER:
                raise AuthenticationFailed(error.server_error.value) from None
            raise BrokerUnverified(f"the broker violates SCRAM: {error}") from None
        except UnicodeDecodeError:
            raise BrokerUnverified("the broker violates SCRAM: a challenge is not UTF-8") from None

    def end(self) -> None:
        if not self._proven:
            raise BrokerUnverified("the broker accepted the client without proof that it knows the user")

    def _final(self, challenge: str) -> bytes:
        self._client.set_server_first(challenge)
        final: str = self._client.get_client_final()
        return final.encode()

    def _verify(self, challenge: str) -> bytes:
        self._client.set_server_final(challenge)
        self._proven = True
        return b""
