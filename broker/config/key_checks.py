"""Checks that several sections of the configuration need."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_network

import attrs

from broker.config import endpoint
from broker.config.endpoint import BadEndpoint, Endpoint
from broker.config.files import KEY_LENGTH, MAX_SECRET, is_curve_key

# Problems of the values of a configuration, and its errors: all of them at once, each with its place.


@attrs.frozen
class Problem:
    """A problem at ``key``. ``other`` is the key that it disagrees with, if there is one."""

    key: str
    text: str
    other: str = ""


@attrs.frozen
class ConfigError:
    """One error.

    ``line`` counts from 1 and is None for an error without a line (an unreadable file, a value of the command line);
    ``key`` is the dotted key, empty for an error without a key (a syntax error).
    """

    line: int | None
    key: str
    text: str

    def located(self, name: str) -> str:
        """Return the error as one line of text, in the form that editors recognise: ``FILE:LINE: key: text``."""
        place = name if self.line is None else f"{name}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.text) if part)


class BadConfig(Exception):
    """A configuration that cannot be used. ``errors`` has all errors, in order of lines; never empty.

    ``str()`` gives one line for each error, for operators. It shows no secret.
    """

    def __init__(self, name: str, errors: Iterable[ConfigError]) -> None:
        self.name = name
        self.errors = tuple(sorted(errors, key=lambda error: (error.line or 0, error.key)))
        super().__init__(name, self.errors)

    def __str__(self) -> str:
        return "\n".join(error.located(self.name) for error in self.errors)


MAX_RULES = 100
"""Rules of a list: each registration, or each event, goes through all of them."""

MAX_LABEL = 1_024
"""Characters of a label or an address: the bound for those of peers, too."""

MAX_SUFFIX = 200
"""Characters of the suffix of the broker's own service names, which must stay under 255 with it."""

_HOSTPORT = re.compile(r"(?:\[(?P<six>[^\[\]\s]+)\]|(?P<host>[^\[\]\s]+)):(?P<port>[0-9]{1,5})")


def hostport(text: str) -> tuple[str, int] | None:
    """Return the host and port of ``host:port``, an IPv6 address in brackets; None for any other text."""
    match = _HOSTPORT.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= 65_535:
        return None
    host = match["six"] or match["host"]
    return None if (":" in host) != bool(match["six"]) else (host, int(match["port"]))


def printable(key: str, value: str | None, most: int) -> Iterator[Problem]:
    """Yield the problems of a text to be displayed, of at most ``most`` characters."""
    if value is None:
        return
    if not value.strip():
        yield Problem(key, "is empty")
    elif not value.isprintable():
        yield Problem(key, "has a character that cannot be printed")
    elif len(value) > most:
        yield Problem(key, f"has more than {most} characters")


def in_range(key: str, value: float, least: float, most: float) -> Iterator[Problem]:
    """Yield a problem if ``value`` is not between the two."""
    # False for a NaN as well.
    if not least <= value <= most:
        yield Problem(key, f"must be between {least:.15g} and {most:.15g}, not {value:.15g}")


def path(key: str, value: str) -> Iterator[Problem]:
    """Yield the problem of a text that is no path."""
    if not value or "\0" in value:
        yield Problem(key, "is no path")


def secret(key: str, value: str) -> Iterator[Problem]:
    """Yield the problems of a secret."""
    if not value:
        yield Problem(key, "is empty")
    elif len(value.encode(errors="replace")) > MAX_SECRET:
        yield Problem(key, f"has more than {MAX_SECRET} bytes")


def patterns(key: str, texts: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems of a list of patterns of names."""
    for index, text in enumerate(texts):
        if not text:
            yield Problem(f"{key}[{index}]", 'is empty; "*" is every name')


def rules(key: str, entries: Sequence[object]) -> Iterator[Problem]:
    """Yield the problem of a list of too many rules."""
    if len(entries) > MAX_RULES:
        yield Problem(key, f"has more than {MAX_RULES} rules")


def networks(key: str, texts: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems of a list of networks, such as ``10.0.0.0/8``."""
    for index, text in enumerate(texts):
        try:
            ip_network(text)
        except ValueError as error:
            yield Problem(f"{key}[{index}]", f"is no network: {error}")


def listens(key: str, text: str) -> Iterator[Problem]:
    """Yield the problems of an endpoint string."""
    try:
        endpoint.parse(text)
    except BadEndpoint as error:
        yield Problem(key, str(error))


def zmq_listens(key: str, text: str) -> Iterator[Problem]:
    """Yield the problem of an endpoint of ZeroMQ."""
    try:
        endpoint.parse_zmq(text)
    except BadEndpoint as error:
        yield Problem(key, str(error))


def zmq_tcp(key: str, text: str) -> Iterator[Problem]:
    """Yield the problems of a ZeroMQ endpoint to which other brokers connect."""
    try:
        where = endpoint.parse_zmq(text)
    except BadEndpoint as error:
        yield Problem(key, str(error))
        return
    if where.kind != "tcp":
        yield Problem(key, f"must be tcp://ADDRESS:PORT: other machines connect to it, not {where.where}")


def curve(key: str, text: str) -> Iterator[Problem]:
    """Yield the problem of a CURVE key."""
    if not is_curve_key(text):
        yield Problem(key, f"is no CURVE key, which has {KEY_LENGTH} Z85 characters")


def parsed(text: str) -> Endpoint | None:
    """Return the endpoint that ``text`` describes, None if it describes none."""
    try:
        return endpoint.parse(text)
    except BadEndpoint:
        return None


def expiring(key: str, path: str, now: float) -> Iterator[str]:
    """Yield a sentence if a certificate has expired or expires soon."""
    try:
        # Imported here: programs that use the client import this module, and have no cryptography.
        from broker import pem

        expires = pem.expiry(pem.certificates(path))
    except ValueError:
        return  # a problem, not a warning
    if expires <= now + pem.EXPIRES_SOON:
        days = math.ceil((expires - now) / 86_400)
        when = "has expired" if expires <= now else f"expires within {days} {'day' if days == 1 else 'days'}"
        yield f"{key}: the certificate {path} {when}"


def services(here: str, services: tuple[str, ...]) -> Iterator[Problem]:
    """Yield the lack of patterns of services, and those that match nothing."""
    if not services:
        yield Problem(here, 'is for no service; "*" is every one')
    yield from patterns(here, services)
