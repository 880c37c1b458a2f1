"""Who may connect to a ZeroMQ socket: the handler of ZAP 1.0, the ZeroMQ Authentication Protocol (RFC 27).

libzmq asks once in every handshake: a request goes to the ROUTER that is bound to `ENDPOINT` in the same context, and
the handshake goes on with the answer.

Rules:
- A request names a *domain*: one for each wire. A domain takes CURVE, with a set of keys or with any, or else NULL.
- Status 200 lets the peer in. Its User-Id, which every frame of it has from then on, is its public key in Z85; it is
  empty for NULL.
- Status 300 is for what may change: a key that is not allowed, or too many connections. The client hears nothing, its
  handshake runs out of time, and it tries again by itself.
- Status 400 is for what will not change: a mechanism that the domain does not take, a domain that does not exist, a
  request that is none. The client is told, and gives up for good.
- A request that has no id cannot be answered: it is dropped and counted, and that handshake runs out of time.
- Without a handler, libzmq lets everybody in: the handler's socket is bound before the others and closed after them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs
from twisted.internet.interfaces import IReactorTime

from broker import curve
from broker.core.errors import Reason, Refusal
from broker.net.allowed import AllowedKeys
from broker.net.limits import COMPLAIN_EVERY, Complaints, Rates

ENDPOINT = "inproc://zeromq.zap.01"
"""Where libzmq asks."""

KEYS_LOGGED = 20
"""Refused keys of one address that are logged in a minute. Each is logged once a minute, so that a farm behind one
address can be enrolled from the log, and whoever makes new keys all the time cannot fill it."""

_LOCAL = re.compile(r"localhost:([0-9]+):[0-9]+:[0-9]+")
"""What libzmq gives as the address of a peer at a unix socket: its user, its group, its process."""

_VERSION = b"1.0"
_WIRE = "zap"
"""What is complained of where no domain says which wire it is."""


class Replies(Protocol):
    """The socket of the handler."""

    def send(self, identity: bytes, frames: Sequence[bytes]) -> object:
        """Send one message to whoever has that identity."""


@attrs.frozen
class _Domain:
    wire: str
    keys: AllowedKeys | None
    any_key: bool
    admit: Callable[[str], bool]

    @property
    def curve(self) -> bool:
        """Whether it takes CURVE; else it takes NULL."""
        return self.any_key or self.keys is not None

    @property
    def mechanism(self) -> bytes:
        return b"CURVE" if self.curve else b"NULL"

    def allows(self, key: str) -> bool:
        """Whether this key may come in; that of a NULL peer is empty."""
        return self.any_key or self.keys is None or self.keys.name_of(key) is not None


@attrs.frozen
class _No:
    """A refusal: the status, and what the log says; ``key`` is the public key that was shown."""

    status: bytes
    refusal: Refusal
    key: str = ""


class Gate:
    """Answers ZAP requests. ``admit`` is asked with the peer's address before a peer is let in to a domain that has no
    such question of its own.

    Refusals are added to ``complaints`` under the name of the domain.
    """

    def __init__(
        self, complaints: Complaints, clock: IReactorTime, admit: Callable[[str], bool] = lambda address: True
    ) -> None:
        self._complaints = complaints
        self._admit = admit
        self._domains: dict[bytes, _Domain] = {}
        self._replies: Replies | None = None
        self._due: Rates[tuple[str, str]] = Rates(clock)
        self._shown: Rates[str] = Rates(clock)

    def serve(self, replies: Replies) -> None:
        """Answer through this socket. Requests that come before are dropped."""
        self._replies = replies

    def domain(
        self, name: bytes, keys: AllowedKeys | None, any_key: bool, admit: Callable[[str], bool] | None = None
    ) -> None:
        """Define a domain, or define it anew.

        It takes CURVE with these keys, or with any if ``any_key`` is set; with neither it takes NULL.
        """
        self._domains[name] = _Domain(name.decode(), keys, any_key, admit or self._admit)

    def receive(self, identity: bytes, frames: list[Any], fd: int) -> None:
        """Take one request: the frames after the identity."""
        answer = self.answer(frames)
        if answer is None or self._replies is None:
            self._complaints.count(_WIRE, "dropped")
        else:
            self._replies.send(identity, answer)

    def answer(self, frames: Sequence[Any]) -> list[bytes] | None:
        """The answer to a request, of which some frames may be no bytes; None if it cannot be answered."""
        match frames:
            case [b"", bytes(), bytes() as id, *_]:
                pass
            case _:
                return None
        wire, address, user = _WIRE, "", ""
        match frames:
            case [b"", b"1.0", _, bytes() as domain, bytes() as where, _, bytes() as mechanism, *credentials]:
                address = address_of(where.decode("latin-1"))
                found = self._domains.get(domain)
                wire = _WIRE if found is None else found.wire
                result = self._decide(found, address, mechanism, credentials)
            case _:
                result = _never(Reason.HANDSHAKE, "this is no ZAP 1.0 request")
        if isinstance(result, _No):
            self._complain(wire, address, result)
            status, text = result.status, result.refusal.text
        else:
            status, text, user = b"200", "OK", result
        return [b"", _VERSION, id, status, text.encode("ascii", "replace"), user.encode(), b""]

    def _decide(self, domain: _Domain | None, address: str, mechanism: bytes, credentials: list[Any]) -> str | _No:
        """The user id of a peer that may come in, or why not."""
        if domain is None:
            return _never(Reason.HANDSHAKE, "a request for a domain that does not exist")
        if mechanism != domain.mechanism:
            return _never(Reason.HANDSHAKE, f"another security mechanism than {domain.mechanism.decode()}")
        user = ""
        match credentials:
            case [bytes() as key] if domain.curve and len(key) == curve.KEY_BYTES:
                user = curve.encode(key)
            case [] if not domain.curve:
                pass
            case _:
                return _never(Reason.HANDSHAKE, "the credentials are not those of the mechanism")
        if not domain.allows(user):
            return _later(Reason.KEY_NOT_ALLOWED, "this client key is not allowed", user)
        if not domain.admit(address):
            return _later(Reason.TOO_MANY_CONNECTIONS, "too many connections are open")
        return user

    def _complain(self, wire: str, address: str, no: _No) -> None:
        where = f"{address} with key {no.key}" if no.key else address
        # No token of the address is spent on a key that was logged in the last minute.
        if not no.key or (
            self._due.take((address, no.key), 1 / COMPLAIN_EVERY, 1)
            and self._shown.take(address, KEYS_LOGGED / COMPLAIN_EVERY, KEYS_LOGGED)
        ):
            self._complaints.add(wire, where, no.refusal)
        else:
            self._complaints.count(f"{wire}_refused", no.refusal.reason.code)


def _later(reason: Reason, text: str, key: str = "") -> _No:
    return _No(b"300", Refusal(reason, text), key)


def _never(reason: Reason, text: str) -> _No:
    return _No(b"400", Refusal(reason, text))


def address_of(text: str) -> str:
    """A peer's address as libzmq gives it, as one that counters and the log can be kept by.

    An IPv4 address is the same on every kind of socket; and all processes of a user of this machine are one peer.
    """
    local = _LOCAL.fullmatch(text)
    if local is not None:
        return f"uid {local[1]} here"
    return ascii(text.removeprefix("::ffff:") if "." in text else text)[1:-1]
