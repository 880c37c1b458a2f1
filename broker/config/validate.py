"""What the types cannot say: whether the values of a configuration make sense, alone and together.

`validate_mc0`, `validate_dbp`, `validate_mtl` and `validate_journal` judge their parts; here is the rest, and where one
part disagrees with another.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Literal

from broker.config import endpoint
from broker.config.endpoint import BadEndpoint, Endpoint
from broker.config.files import MAX_SECRET, BadFile, check_tls
from broker.config.problem import Problem, in_range, in_ranges
from broker.config.validate_journal import effective_journal_name, journal_problems
from broker.config.values import Config, Console, Director, DirectorListener, ElkoListener, Launchers, Listener
from broker.config.zmq_endpoint import ZEndpoint
from broker.wires.dbp.validation import dbp_place, dbp_problems, effective_dbp_beacon, effective_dbp_offer
from broker.wires.elko.validate_transport import transport_problems
from broker.wires.mc0.validation import effective_mc0_auth, mc0_place, mc0_problems
from broker.wires.mtl.validation import effective_mtl_auth, mtl_curve, mtl_data_place, mtl_place, mtl_problems

__all__ = [
    "Problem",
    "effective_auth",
    "effective_dbp_beacon",
    "effective_dbp_offer",
    "effective_journal_name",
    "effective_mc0_auth",
    "effective_mtl_auth",
    "effective_offer",
    "found",
    "hostport",
    "mtl_curve",
    "mtl_data_place",
    "problems",
]

MAX_LABEL = 1_024
"""Characters of a label or an address: what the broker takes from peers."""

MAX_SUFFIX = 200
"""Characters of the suffix of the broker's own service names, which with it must stay under 255."""

MAX_GRACE = 86_400.0
"""Seconds. What was known a day ago is worth nothing."""

CONNECTION_RANGES: dict[str, tuple[float, float]] = {
    # each connection takes a file descriptor, and the kernel gives one process a million of them
    "connections": (1, 1_000_000),
    "connections_per_address": (0, 1_000_000),
    "rate": (0, 1_000_000),
    # with 0 nobody could ever connect
    "burst": (1, 1_000_000),
    "authenticate_within": (0, 86_400),
    # less than one full reply would disconnect peers that do nothing wrong
    "write_buffer": (4_096, 1024 * 1024 * 1024),
    # with 0 a peer would be disconnected at its first full buffer
    "stalled_after": (0.1, 86_400),
    # less is over before a browser's next request has come
    "http_timeout": (1, 86_400),
    "http_select_wait": (1, 3_600),
    "rtcp_timeout": (2, 86_400),
    "rtcp_disconnected": (0, 86_400),
    # a few messages, at the least
    "rtcp_backlog": (1_024, 1024 * 1024 * 1024),
}
"""The least and the most of each limit, in the units of `ConnectionLimits`."""

RANGES = {**CONNECTION_RANGES, "waits": (0, 100_000), "services": (0, 100_000)}
"""The same of `Limits`."""

DIRECTOR_LIMITS = {**CONNECTION_RANGES, "watches": (0, 1_000), "reservations": (1, 10_000)}
"""The same of `DirectorLimits`."""

DIRECTOR_RANGES: dict[str, tuple[float, float]] = {
    "providers": (1, 1_000_000),
    # a load is a fraction of a server's time, and one context at most all of it
    "load_bump": (0, 1),
    # with less, no user comes in time; and nobody waits an hour
    "reservation": (1, 3_600),
    # all of one user are looked at where there are too many
    "user_reservations": (1, 100),
}
"""The least and the most of each number of the director, in the units of `Director`."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HOSTPORT = re.compile(r"(?:\[(?P<six>[^\[\]\s]+)\]|(?P<host>[^\[\]\s]+)):(?P<port>[0-9]{1,5})")


def problems(config: Config) -> list[tuple[str, str]]:
    """All that is wrong with the values, as pairs of dotted key and text; empty when nothing is.

    Reads nothing but the TLS files that endpoints name, and the names in the directory of client keys.
    """
    return [(problem.key, problem.text) for problem in found(config)]


def found(config: Config) -> list[Problem]:
    """As `problems`, with the other key of each disagreement."""
    return [
        *_broker(config),
        *_listeners("elko.listeners", config.elko.listeners),
        *_director(config.director),
        *mc0_problems(config.mc0),
        *dbp_problems(config.dbp),
        *mtl_problems(config.mtl),
        *journal_problems(config.journal),
        *_console(config.console),
        *_overlaps(config),
        *_launchers(config.launchers),
    ]


def effective_auth(listener: ElkoListener) -> Literal["open", "password"]:
    """How peers authenticate on a listener: as it says, else open where only this machine can connect.

    Elsewhere `problems` refuses a listener that does not say. Raises `BadEndpoint`.
    """
    if listener.auth is not None:
        return listener.auth
    return "open" if endpoint.parse(listener.endpoint).loopback else "password"


def effective_offer(listener: Listener) -> tuple[str, ...]:
    """Patterns of the service names that may be offered on a listener: its own, else all where peers are known.

    They are known where they give a password, and where only this machine can connect. Raises `BadEndpoint`.
    """
    if listener.offer is not None:
        return listener.offer
    known = effective_auth(listener) == "password" or endpoint.parse(listener.endpoint).loopback
    return ("*",) if known else ()


def hostport(text: str) -> tuple[str, int] | None:
    """The parts of ``host:port``, an IPv6 address in brackets; None where it is something else."""
    match = _HOSTPORT.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= 65_535:
        return None
    host = match["six"] or match["host"]
    return None if (":" in host) != bool(match["six"]) else (host, int(match["port"]))


def _printable(key: str, value: str | None, most: int) -> Iterator[Problem]:
    if value is None:
        return
    if not value.strip():
        yield Problem(key, "is empty")
    elif not value.isprintable():
        yield Problem(key, "has a character that cannot be printed")
    elif len(value) > most:
        yield Problem(key, f"has more than {most} characters")


def _secret(key: str, value: str) -> Iterator[Problem]:
    if not value:
        yield Problem(key, "is empty")
    elif len(value.encode(errors="replace")) > MAX_SECRET:
        yield Problem(key, f"has more than {MAX_SECRET} bytes")


def _broker(config: Config) -> Iterator[Problem]:
    broker = config.broker
    yield from _printable("broker.service", broker.service, MAX_SUFFIX)
    if broker.state is not None and (not broker.state or "\0" in broker.state):
        yield Problem("broker.state", "is no path")
    yield from in_range("broker.grace", broker.grace, 0, MAX_GRACE)


def _director(director: Director) -> Iterator[Problem]:
    yield from _printable("director.service", director.service, MAX_SUFFIX)
    yield from in_ranges("director", director, DIRECTOR_RANGES)
    yield from _listeners("director.listeners", director.listeners)


def _listeners(key: str, listeners: Sequence[Listener | DirectorListener]) -> Iterator[Problem]:
    names: dict[str, str] = {}
    for index, listener in enumerate(listeners):
        here = f"{key}[{index}]"
        if not listener.name:
            yield Problem(f"{here}.name", "is empty")
        elif not _NAME.fullmatch(listener.name):
            yield Problem(f"{here}.name", "may have up to 64 letters, digits, dots, hyphens and underscores")
        elif listener.name in names:
            other = names[listener.name]
            yield Problem(f"{here}.name", f'the name "{listener.name}" is that of {other} too', other)
        else:
            names[listener.name] = here
        yield from _listener(here, listener)
        if isinstance(listener, Listener):
            yield from _offer(f"{here}.offer", listener.offer)
            yield from in_ranges(f"{here}.limits", listener.limits, RANGES)
        else:
            yield from in_ranges(f"{here}.limits", listener.limits, DIRECTOR_LIMITS)


def _listener(here: str, listener: Listener | DirectorListener) -> Iterator[Problem]:
    yield from _endpoint(f"{here}.endpoint", listener.endpoint)
    if not listener.allow:
        roles = "client, admin or both" if isinstance(listener, Listener) else "user, provider or admin"
        yield Problem(f"{here}.allow", f"allows nobody; name {roles}")
    yield from transport_problems(here, listener)
    yield from _listener_auth(here, listener)
    if listener.publish is not None and hostport(listener.publish) is None:
        hint = "; an IPv6 address goes in brackets" if listener.publish.count(":") > 1 else ""
        yield Problem(f"{here}.publish", f"must be host:port with a port from 1 to 65535{hint}")
    elif listener.publish is not None and len(listener.publish) > MAX_LABEL:
        yield Problem(f"{here}.publish", f"has more than {MAX_LABEL} characters")
    yield from _printable(f"{here}.label", listener.label, MAX_LABEL)


def _offer(here: str, offer: Sequence[str] | None) -> Iterator[Problem]:
    for number, pattern in enumerate(offer or ()):
        if not pattern:
            yield Problem(f"{here}[{number}]", 'is empty; "*" is every name')


def _listener_auth(here: str, listener: ElkoListener) -> Iterator[Problem]:
    if listener.code is not None:
        yield from _secret(f"{here}.code", listener.code)
    if listener.auth == "password" and listener.code is None:
        yield Problem(f"{here}.auth", '"password" needs a code, or a code_file')
    if listener.auth != "password" and listener.code is not None:
        yield Problem(f"{here}.code", 'has no effect without auth = "password"')
    where = _parsed(listener.endpoint)
    if listener.auth is None and listener.code is None and where is not None and not where.loopback:
        yield Problem(
            f"{here}.auth",
            f'must be said, since {where.where} can be reached from elsewhere: "password" with a code, '
            'or "open", which lets anybody who reaches it in without one',
        )


def _console(console: Console) -> Iterator[Problem]:
    yield from _endpoint("console.endpoint", console.endpoint)
    if console.password is not None:
        yield from _secret("console.password", console.password)
    where = _parsed(console.endpoint)
    if console.enabled and console.password is None and where is not None and not where.loopback:
        yield Problem("console.password", f"is needed, since {where.where} can be reached from elsewhere")


def _endpoint(key: str, text: str) -> Iterator[Problem]:
    try:
        where = endpoint.parse(text)
        if where.kind == "tls":
            check_tls(where.kwargs["certificate"], where.kwargs["key"], where.kwargs.get("ca"))
    except (BadEndpoint, BadFile) as error:
        yield Problem(key, str(error))


def _parsed(text: str) -> Endpoint | None:
    try:
        return endpoint.parse(text)
    except BadEndpoint:
        return None


def _overlaps(config: Config) -> Iterator[Problem]:
    places: list[tuple[str, Endpoint | ZEndpoint | None]] = [
        (f"elko.listeners[{index}].endpoint", _parsed(each.endpoint))
        for index, each in enumerate(config.elko.listeners)
    ]
    if config.director.enabled:
        places += [
            (f"director.listeners[{index}].endpoint", _parsed(each.endpoint))
            for index, each in enumerate(config.director.listeners)
        ]
    if config.console.enabled:
        places.append(("console.endpoint", _parsed(config.console.endpoint)))
    if config.mc0.enabled:
        places.append(("mc0.endpoint", mc0_place(config.mc0)))
    if config.dbp.enabled:
        places.append(("dbp.endpoint", dbp_place(config.dbp)))
    if config.mtl.enabled and mtl_place(config.mtl) is not None:
        places.append(("mtl.endpoint", mtl_place(config.mtl)))
        data = "mtl.endpoint" if config.mtl.data_port is None else "mtl.data_port"
        places.append((data, mtl_data_place(config.mtl)))
    bound: list[tuple[str, Endpoint | ZEndpoint]] = []
    for key, where in places:
        if where is None:
            continue
        other = next((other for other, there in bound if _overlap(where, there)), None)
        if other is not None:
            yield Problem(key, f"{where.where} is taken by {other}", other)
        bound.append((key, where))


def _overlap(one: Endpoint | ZEndpoint, other: Endpoint | ZEndpoint) -> bool:
    return other.overlaps(one) if isinstance(other, ZEndpoint) else one.overlaps(other)


def _launchers(launchers: Launchers) -> Iterator[Problem]:
    names: dict[str, str] = {}
    for index, entry in enumerate(launchers.table):
        here = f"launchers.table[{index}]"
        if entry.name in names:
            other = names[entry.name]
            yield Problem(f"{here}.name", f'the name "{entry.name}" is that of {other} too', other)
        names.setdefault(entry.name, here)
        yield from _printable(f"{here}.name", entry.name, MAX_LABEL)
        try:
            words = shlex.split(entry.script)
        except ValueError as error:
            yield Problem(f"{here}.script", f"is no command line: {str(error).lower()}")
        else:
            if not words or not words[0] or "\0" in entry.script:
                yield Problem(f"{here}.script", "is empty" if not entry.script.strip() else "names no program")
