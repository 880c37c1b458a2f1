"""Validation of the configuration of MTL, and the effective values of keys that are not given."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import attrs

from broker.config import zmq_endpoint
from broker.config.endpoint import BadEndpoint
from broker.config.files import KEY_LENGTH, is_curve_key
from broker.config.problem import Problem, in_range, in_ranges
from broker.config.zmq_endpoint import ZEndpoint
from broker.net.interfaces.limits import ROUTER_RANGES
from broker.wires.mtl.config import Mtl, MtlQueue

MTL_RANGES: dict[str, tuple[float, float]] = {
    **ROUTER_RANGES,
    # a shorter one would send Pings before clients can answer; a longer one would detect nothing in time
    "heartbeat": (0.5, 3_600),
    # a client uses its lease at once, but it may have to connect first
    "lease": (1, 3_600),
    "window": (1, 100_000),
    "most_window": (1, 100_000),
    # a Content of ordinary size must fit
    "window_bytes": (65_536, 1024 * 1024 * 1024),
    # as connections
    "sessions": (1, 1_000_000),
    "flows": (1, 1_000_000),
    # the largest header must fit, and the memory must hold a few of the largest
    "max_message": (131_072, 1024 * 1024 * 1024),
}
"""Range of each limit, in the units of `Mtl`."""

QUEUE_RANGES: dict[str, tuple[float, float]] = {
    "messages": (1, 100_000_000),
    "size": (65_536, 1024**4),
    "deliveries": (1, 1_000_000),
    "ttl": (0, 366 * 86_400),
    "expires": (0, 366 * 86_400),
}
"""Range of each limit of queues, in the units of `MtlQueue`."""

MAX_HOSTS = 1_000
"""Virtual hosts. Each Open compares them."""

MAX_HOST = 255
"""Characters of the name of a virtual host."""


def mtl_curve(mtl: Mtl) -> bool:
    """Return True if connections use CURVE."""
    return mtl.secret_key is not None or mtl.secret_key_file is not None


def mtl_place(mtl: Mtl) -> ZEndpoint | None:
    """Return the endpoint of the control flow, None if it is invalid."""
    try:
        return zmq_endpoint.parse(mtl.endpoint)
    except BadEndpoint:
        return None


def mtl_data_place(mtl: Mtl) -> ZEndpoint | None:
    """Return the endpoint of the data flow, None if one socket carries both. `mtl.endpoint` must be valid."""
    where = zmq_endpoint.parse(mtl.endpoint)
    if where.port is None:
        return None
    port = mtl.data_port
    if port is None:
        port = where.port + 1 if where.port else 0
    elif port == where.port != 0:
        return None
    return attrs.evolve(where, port=port)


def mtl_problems(mtl: Mtl) -> Iterator[Problem]:
    """Yield the mistakes in the configuration. Reads no file, except the names in the directory of client keys."""
    try:
        where = zmq_endpoint.parse(mtl.endpoint)
    except BadEndpoint as error:
        yield Problem("mtl.endpoint", str(error))
    else:
        yield from _data(mtl, where)
    yield from in_ranges("mtl", mtl, MTL_RANGES)
    if mtl.window > mtl.most_window:
        yield Problem("mtl.window", f"{mtl.window} is more than most_window, {mtl.most_window}", "mtl.most_window")
    if mtl.secret_key is not None and not is_curve_key(mtl.secret_key):
        yield Problem("mtl.secret_key", f"is no CURVE key, which has {KEY_LENGTH} Z85 characters")
    yield from _hosts(mtl)
    yield from _queue_store(mtl)
    for index, queue in enumerate(mtl.queues):
        yield from _queue(f"mtl.queues[{index}]", queue)


def _data(mtl: Mtl, where: ZEndpoint) -> Iterator[Problem]:
    if mtl.data_port is not None:
        if where.port is None:
            kind = "a unix socket" if where.kind == "ipc" else "systemd's socket"
            yield Problem("mtl.data_port", f"has no effect, since {kind} serves both flows", "mtl.endpoint")
        else:
            yield from in_range("mtl.data_port", mtl.data_port, 0, 65_535)
    elif where.port == 65_535:
        yield Problem("mtl.data_port", "must be given, since there is no port after 65535", "mtl.endpoint")
    if mtl.data_endpoint is not None:
        try:
            told = zmq_endpoint.parse(mtl.data_endpoint)
        except BadEndpoint as error:
            # Clients may need a host name, which is no address to bind to.
            if not mtl.data_endpoint.startswith("tcp://") or not mtl.data_endpoint.isprintable():
                yield Problem("mtl.data_endpoint", str(error))
        else:
            if told.kind == "systemd":
                yield Problem("mtl.data_endpoint", "is told to clients: it must begin with tcp:// or ipc://")
            elif told.wildcard or told.port == 0:
                yield Problem("mtl.data_endpoint", f"{told.where} is an address for nobody")


def _hosts(mtl: Mtl) -> Iterator[Problem]:
    if not mtl.hosts:
        yield Problem("mtl.hosts", 'is empty: no client could open a virtual host; "/" is the usual one')
    if len(mtl.hosts) > MAX_HOSTS:
        yield Problem("mtl.hosts", f"has more than {MAX_HOSTS} names")
    for number, host in enumerate(mtl.hosts):
        if not host or not host.isprintable() or len(host) > MAX_HOST:
            yield Problem(f"mtl.hosts[{number}]", f"must have 1 to {MAX_HOST} characters, all of them printable")
        elif host in mtl.hosts[:number]:
            yield Problem(f"mtl.hosts[{number}]", f"{host!r} is there twice")


def split_password(url: str) -> tuple[str, str | None]:
    """Return a URL without its password, and the password, None without one. An invalid URL is returned as it is."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return url, None
    if password is None:
        return url, None
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}@{host}")), unquote(password)


def _has_psycopg() -> bool:
    try:
        return importlib.util.find_spec("psycopg") is not None
    except ValueError:
        return False  # it is disabled


def _queue_store(mtl: Mtl) -> Iterator[Problem]:
    url, key = mtl.queue_store, "mtl.queue_store"
    if url is None:
        for name, given in (
            ("queue_store_password", mtl.queue_store_password),
            ("queue_store_password_file", mtl.queue_store_password_file),
        ):
            if given is not None:
                yield Problem(f"mtl.{name}", "has no effect without queue_store")
        return
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        port = parts.port
    except ValueError:
        yield Problem(key, "is no URL")
        return
    if parts.scheme not in ("postgresql", "postgres") or not url.isprintable() or port == 0:
        yield Problem(key, "must be postgresql://USER@HOST:PORT/DATABASE")
    elif not parts.path.strip("/") and "dbname" not in options:
        yield Problem(key, "names no database: postgresql://USER@HOST:PORT/DATABASE")
    elif {"password", "sslpassword"} & options.keys():
        yield Problem(key, "has a secret among its options, which would be shown; give queue_store_password_file")
    elif not _has_psycopg():
        yield Problem(key, "needs psycopg: pip install 'elkobroker[daemon,postgresql]'")


def _queue(here: str, queue: MtlQueue) -> Iterator[Problem]:
    if not queue.queues:
        yield Problem(f"{here}.queues", 'is for no queue; "*" is every one')
    for number, pattern in enumerate(queue.queues):
        if not pattern:
            yield Problem(f"{here}.queues[{number}]", 'is empty; "*" is every queue')
    yield from in_ranges(here, queue, QUEUE_RANGES)
