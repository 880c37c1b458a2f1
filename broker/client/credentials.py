"""Who a client is, and how it proves that by SASL (RFC 4422).

Rules:
- The client chooses among the mechanisms that the broker offers, the strongest first. Where it has no proof for any of
  them it is not let in (`AuthenticationFailed`).
- SCRAM-SHA-256 (RFC 5802, RFC 7677): the broker has to prove that it knows the user too, before the exchange ends; else
  it is not believed (`BrokerUnverified`). There is no channel binding, since ZeroMQ has no channel to bind.
- PLAIN (RFC 4616) shows the password to the other side. It is used only over what nobody can listen to (CURVE, ipc,
  loopback), where SCRAM is not offered; elsewhere somebody in the middle could ask for it.
- EXTERNAL (RFC 4422, appendix A): the CURVE key of the connection is the proof. ANONYMOUS (RFC 4505): there is none.
- In all of them the client begins.
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
"""What SCRAM calls an error that has no name of its own (RFC 5802, section 7): those that are found here have it."""


class Exchange(Protocol):
    """One attempt to authenticate by one mechanism, whose name is in capitals."""

    mechanism: str

    def begin(self) -> bytes:
        """The first response."""

    def answer(self, challenge: bytes) -> bytes:
        """The response to a challenge. It may take a while. Raises `AuthenticationFailed` or `BrokerUnverified`."""

    def end(self) -> None:
        """The broker is content. Raises `BrokerUnverified` if the client cannot be."""


class Credentials(Protocol):
    """What a client can prove."""

    def exchange(self, offered: Collection[str], secure: bool) -> Exchange:
        """Begin an exchange by one of those mechanisms. ``secure``: nobody else can read the connection.

        Raises `AuthenticationFailed`.
        """


@attrs.frozen
class Password:
    """A user with a password. ``plain``: it may be shown to whoever is at the other side, over any connection."""

    user: str
    password: str = attrs.field(repr=False)
    plain: bool = False

    def exchange(self, offered: Collection[str], secure: bool) -> Exchange:
        if SCRAM in offered:
            return _Scram(self.user, self.password)
        if PLAIN in offered:
            if not secure and not self.plain:
                raise AuthenticationFailed(
                    "the broker wants the password itself, over a connection that others may read"
                )
            return _Single(PLAIN, f"\0{self.user}\0{self.password}".encode())
        raise _no_way(offered)


@attrs.frozen
class External:
    """The user that the CURVE key of the connection stands for. ``user`` says which one that must be."""

    user: str = ""

    def exchange(self, offered: Collection[str], secure: bool) -> Exchange:
        if EXTERNAL not in offered:
            raise _no_way(offered)
        return _Single(EXTERNAL, self.user.encode())


@attrs.frozen
class Anonymous:
    """Nobody in particular. ``trace`` is for the broker's log."""

    trace: str = ""

    def exchange(self, offered: Collection[str], secure: bool) -> Exchange:
        if ANONYMOUS not in offered:
            raise _no_way(offered)
        return _Single(ANONYMOUS, self.trace.encode())


def _no_way(offered: Collection[str]) -> AuthenticationFailed:
    # Names in capitals may still be anything that somebody wrote.
    names = ", ".join(sorted(map(ascii, offered))) or "nothing"
    return AuthenticationFailed(f"the broker offers {names}, of which there is nothing that this client can do")


class _Single:
    """All there is to say is said at once."""

    def __init__(self, mechanism: str, response: bytes) -> None:
        self.mechanism = mechanism
        self._response = response

    def begin(self) -> bytes:
        return self._response

    def answer(self, challenge: bytes) -> bytes:
        raise BrokerUnverified(f"the broker has a question, as there is none in {self.mechanism}")

    def end(self) -> None:
        """The broker proves nothing."""


class _Scram:
    """SCRAM-SHA-256: client-first, server-first, client-final, server-final, and an empty response."""

    mechanism = SCRAM

    def __init__(self, user: str, password: str) -> None:
        try:
            self._client = ScramClient([SCRAM], user, password)
        except ScramException as error:
            raise AuthenticationFailed(f"the user or the password cannot be one: {error.args[0]}") from None
        self._steps = [self._final, self._verify]
        self._proven = False

    def begin(self) -> bytes:
        first: str = self._client.get_client_first()
        return first.encode()

    def answer(self, challenge: bytes) -> bytes:
        if not self._steps:
            raise BrokerUnverified("the broker has more questions than SCRAM has")
        try:
            return self._steps.pop(0)(challenge.decode())
        except ScramException as error:
            if error.server_error is not None and error.server_error.value != _OTHER:
                raise AuthenticationFailed(error.server_error.value) from None
            raise BrokerUnverified(f"the broker does not speak SCRAM as it should: {error}") from None
        except UnicodeDecodeError:
            raise BrokerUnverified("the broker does not speak SCRAM as it should: a challenge is not UTF-8") from None

    def end(self) -> None:
        if not self._proven:
            raise BrokerUnverified("the broker let the client in, but did not prove that it knows the user")

    def _final(self, challenge: str) -> bytes:
        self._client.set_server_first(challenge)
        final: str = self._client.get_client_final()
        return final.encode()

    def _verify(self, challenge: str) -> bytes:
        self._client.set_server_final(challenge)
        self._proven = True
        return b""
