"""The section ``[bridges]``: other brokers, outside of this one's cluster, that chosen services and topics go to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import attrs

from broker.access.identity import is_local
from broker.config import endpoint, key_checks
from broker.config.endpoint import BadEndpoint, ZEndpoint
from broker.config.key import REQUIRED, Binding, Resolves, Section, Settings, curve_key, curve_key_file
from broker.config.key import key as setting  # one of the keys is called so
from broker.config.key_checks import Problem

MAX_NAME = 64
"""Characters of the name of a site, which stands in the path of each entry and message."""

MAX_PATH = 8
"""Sites that an entry or a message may pass through: more are a mistake, and their names must fit into one header."""

MAX_PREFIX = 64
"""Characters of a prefix."""

ANSWER_WITHIN = 2.0
"""Seconds in which --check finds a fault of the address of another broker."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PREFIX = re.compile(r"[A-Za-z0-9._-]*")
_CONNECT = "must be tcp://HOST:PORT, the endpoint bridges.listen of the other broker"


def _name(here: str, name: str) -> Iterator[Problem]:
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        yield Problem(
            here, f"must have 1 to {MAX_NAME} letters, digits, dots, hyphens, underscores, the first a letter or digit"
        )


def _prefix(here: str, prefix: str) -> Iterator[Problem]:
    if len(prefix) > MAX_PREFIX or not _PREFIX.fullmatch(prefix):
        yield Problem(here, f"must have up to {MAX_PREFIX} letters, digits, dots, hyphens and underscores")


def _place(connect: str | None) -> tuple[str, int] | None:
    """Return the host and port of tcp://HOST:PORT; None for any other text."""
    scheme, found, where = (connect or "").partition("://")
    return key_checks.hostport(where) if found and scheme == "tcp" else None


def _connect(here: str, connect: str) -> Iterator[Problem]:
    if _place(connect) is None:
        yield Problem(here, _CONNECT)


@attrs.frozen
class BridgeTo(Settings):
    """A bridge to the broker of another site, which has an entry for this one. Each side decides what it sends and
    what it receives, in shell patterns of names; what one sends and the other receives travels."""

    name: str = setting(REQUIRED, "Name of the other site: its bridges.site.", check=_name, example="east")
    key: str = setting(
        REQUIRED,
        "CURVE public key of the other broker. If a user of the users file has it, the rights of that user at the "
        "listener `bridges` hold, else those of `anonymous`.",
        check=key_checks.curve,
        example="change.me.change.me.change.me.change.me.",
    )
    connect: str | None = setting(
        None,
        "Endpoint of the other broker, its bridges.listen: tcp://HOST:PORT. One of the two sides has it.",
        check=_connect,
        example="tcp://east.example.org:5777",
    )
    send_services: tuple[str, ...] = setting((), "Names of services that are sent.", check=key_checks.patterns)
    receive_services: tuple[str, ...] = setting(
        (), "Names of services that are received, as the other broker has them.", check=key_checks.patterns
    )
    send_topics: tuple[str, ...] = setting((), "Topics whose messages are sent.", check=key_checks.patterns)
    receive_topics: tuple[str, ...] = setting(
        (), "Topics whose messages are received, as the other broker has them.", check=key_checks.patterns
    )
    prefix: str = setting("", "Put before the names of received services and topics.", check=_prefix, example="east.")
    hops: int = setting(
        1,
        "Bridges that a received entry or message may have crossed. 1 takes only what the other site has of its own.",
        within=(1, MAX_PATH),
    )
    keep: float = setting(
        60.0,
        "Time for which received services stay, as doubtful ones, while the other broker is not reached.",
        unit="s",
        within=(0, 86_400),
    )
    services: int = setting(1_000, "Services that are received at most.", within=(0, 100_000))
    rate: float = setting(
        1_000.0, "Messages a second that are sent at most, and received; further ones are dropped.", within=(1, 100_000)
    )


@attrs.frozen
class Bridges(Settings):
    """Bridges: services and topics that are exchanged with brokers of other sites. docs/bridges.md describes them. A
    bridge stays as it is until the broker stops: all keys need a restart."""

    KEYS_LAST = ("to",)

    site: str | None = setting(
        None, "Name of this site, the same at all brokers of a cluster.", check=_name, example="west"
    )
    secret_key: str | None = curve_key("Secret CURVE key of this broker's bridges, which `brokerkeys` makes.")
    secret_key_file: str | None = curve_key_file()
    listen: str | None = setting(
        None,
        "Endpoint where the other brokers connect: tcp://ADDRESS:PORT, or tcp://*:PORT for all addresses. By default "
        "there is none, and each bridge needs `connect`.",
        check=key_checks.zmq_tcp,
        example="tcp://*:5777",
    )
    to: tuple[BridgeTo, ...] = setting((), check=key_checks.rules)

    @property
    def enabled(self) -> bool:
        """True if there are bridges."""
        return bool(self.to)

    @property
    def place(self) -> ZEndpoint | None:
        """The endpoint of the listener; None without one. Raises `BadEndpoint`."""
        return None if self.listen is None else endpoint.parse_zmq(self.listen)

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield keys that are missing, and bridges to this broker itself."""
        if not self.enabled:
            return
        if self.site is None:
            yield Problem(f"{here}.site", "is needed: the other brokers know this one by it")
        if self.secret_key is None and self.secret_key_file is None:
            yield Problem(f"{here}.secret_key_file", "is needed: run brokerkeys new NAME")
        own = None if self.secret_key is None else _public(self.secret_key)
        names: set[str] = set()
        keys: set[str] = set()
        for index, each in enumerate(self.to):
            place = f"{here}.to[{index}]"
            if each.name == self.site:
                yield Problem(f"{place}.name", "is the name of this site itself", f"{here}.site")
            if each.name in names:
                yield Problem(f"{place}.name", f'the name "{each.name}" is that of another bridge too')
            if each.key == own:
                yield Problem(f"{place}.key", "is the public key of this broker itself")
            elif each.key in keys:
                yield Problem(f"{place}.key", "is that of another bridge too")
            if each.connect is None and self.listen is None:
                yield Problem(f"{place}.connect", f"is needed, or {here}.listen: one of the two sides connects")
            elif each.connect is not None and self._is_own(each.connect):
                yield Problem(f"{place}.connect", f"is {here}.listen of this broker itself", f"{here}.listen")
            names.add(each.name)
            keys.add(each.key)

    def _is_own(self, connect: str) -> bool:
        """Return True if ``connect`` leads to the listener of this broker, as far as the addresses tell."""
        try:
            own = None if self.place is None else self.place.stream
        except BadEndpoint:
            return False
        other = _place(connect)
        if own is None or other is None or other[1] != own.port:
            return False
        return other[0] == own.interface or (is_local(other[0]) and (own.wildcard or own.loopback))

    def bindings(self) -> Iterator[Binding]:
        """Yield the socket."""
        if self.enabled and self.place is not None:
            yield Binding("bridges.listen", "bridges", self.place.stream, members=True)

    def summary(self) -> Iterator[str]:
        """Yield a line with the bridges."""
        if not self.enabled:
            return
        where = "" if self.place is None else f" on {self.place.shown}"
        ways = ", ".join(f"to {each.name}{f' at {each.connect}' if each.connect else ''}" for each in self.to)
        yield f"bridges: site {self.site}{where}, {ways}"

    def unanswered(self, fault: Callable[[str, bool, float], str]) -> Iterator[str]:
        """Yield a warning for each endpoint that is not one of a broker now. ``fault`` is `address_fault`."""
        for each in self.to:
            why = "" if each.connect is None else fault(each.connect, True, ANSWER_WITHIN)
            if why:
                yield f"bridges: {each.connect}, to {each.name}: {why}"

    def warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield warnings of bridges over which nothing travels, and of hosts that have no address."""
        for each in self.to:
            if not (each.send_services or each.receive_services or each.send_topics or each.receive_topics):
                yield f"bridges: nothing is sent to {each.name}, nor received from it: give its patterns"
            place = _place(each.connect)
            if place is not None and not resolves(place[0]):
                yield f"bridges: {place[0]}, the host of {each.name}, cannot be resolved on this machine"


def _public(secret_key: str) -> str:
    """Return the public key of a secret one."""
    # Imported here: programs that use the client import the configuration, and have no libsodium.
    from nacl.bindings import crypto_scalarmult_base

    from broker import curve_keys

    return curve_keys.encode(crypto_scalarmult_base(curve_keys.decode(secret_key)))


BRIDGES = Section("bridges", Bridges())
"""The section."""
