"""The section ``[mtl]`` of the configuration: keys, checks, sockets, and the lines of ``--check``."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import attrs

from broker.config import endpoint, key_checks
from broker.config.endpoint import BadEndpoint, ZEndpoint
from broker.config.key import (
    Binding,
    PortOption,
    Resolves,
    Section,
    Settings,
    bytes_key,
    curve_key,
    curve_key_file,
    key,
    moved,
    seconds_key,
)
from broker.config.key_checks import Problem
from broker.net.connection_limits import RouterLimits, high_water_key, max_message_key

MAX_HOSTS = 1_000
"""Virtual hosts. Each Open compares them."""

MAX_HOST = 255
"""Characters of the name of a virtual host."""


def _names(here: str, names: tuple[str, ...]) -> Iterator[Problem]:
    if not names:
        yield Problem(here, 'is for no queue; "*" is every one')
    for number, pattern in enumerate(names):
        if not pattern:
            yield Problem(f"{here}[{number}]", 'is empty; "*" is every queue')


def _hosts(here: str, hosts: tuple[str, ...]) -> Iterator[Problem]:
    if not hosts:
        yield Problem(here, 'is empty: no client could open a virtual host; "/" is the usual one')
    if len(hosts) > MAX_HOSTS:
        yield Problem(here, f"has more than {MAX_HOSTS} names")
    for number, host in enumerate(hosts):
        if not host or not host.isprintable() or len(host) > MAX_HOST:
            yield Problem(f"{here}[{number}]", f"must have 1 to {MAX_HOST} characters, all of them printable")
        elif host in hosts[:number]:
            yield Problem(f"{here}[{number}]", f"{host!r} is there twice")


def _data_endpoint(here: str, where: str) -> Iterator[Problem]:
    try:
        parsed = endpoint.parse_zmq(where)
    except BadEndpoint as error:
        # Clients may need a host name, which is no address to bind to.
        if not where.startswith("tcp://") or not where.isprintable():
            yield Problem(here, str(error))
    else:
        if parsed.kind == "systemd":
            yield Problem(here, "is an endpoint for clients: it must begin with tcp:// or ipc://")
        elif parsed.wildcard or parsed.port == 0:
            yield Problem(here, f"{parsed.where} is no address that a client can reach")


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


def _queue_store(here: str, url: str) -> Iterator[Problem]:
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        port = parts.port
    except ValueError:
        yield Problem(here, "is no URL")
        return
    if parts.scheme not in ("postgresql", "postgres") or not url.isprintable() or port == 0:
        yield Problem(here, "must be postgresql://USER@HOST:PORT/DATABASE")
    elif not parts.path.strip("/") and "dbname" not in options:
        yield Problem(here, "names no database: postgresql://USER@HOST:PORT/DATABASE")
    elif {"password", "sslpassword"} & options.keys():
        yield Problem(here, "has a secret among its options, which would be shown; give queue_store_password_file")
    elif not _has_psycopg():
        yield Problem(here, "needs psycopg: pip install 'elkobroker[daemon,postgresql]'")


@attrs.frozen
class MtlQueue(Settings):
    """Properties of some queues. The first entry with a matching name applies."""

    queues: tuple[str, ...] = key(
        ("*",), "Names of queues, as patterns; by default all.", check=_names, example=("jobs-*",)
    )
    durable: bool = key(
        False, "Keep the messages over a restart: they are confirmed when they are on the disk.", example=True
    )
    messages: int = key(
        100_000, "Messages in one queue; further ones are rejected with recycle.", within=(1, 100_000_000)
    )
    size: int | None = key(
        None,
        "Size of all messages in one queue. By default 64 MiB, where anonymous producers of one address fill no "
        "more than half of broker.memory_per_address; with a size of its own a queue takes that much from any one.",
        unit="bytes",
        within=(65_536, 1024**4),
        example=64 * 1024**2,
    )
    deliveries: int = key(20, "Deliveries of a message, before it counts as poison.", within=(1, 1_000_000))
    dead_letters: tuple[Literal["rejected", "deliveries", "expired"], ...] = key(
        ("deliveries",),
        'Messages that are kept in a queue of the same name with .dead: those that were "rejected", delivered too '
        'often ("deliveries"), or that waited too long ("expired"). Others are removed.',
    )
    ttl: float = key(
        0.0,
        "Time that a message without a ttl of its own may wait; 0 is no limit.",
        unit="s",
        within=(0, 366 * 86_400),
    )
    expires: float = key(
        300.0,
        "Time after which a queue that is empty and unused is removed; 0 is never.",
        unit="s",
        within=(0, 366 * 86_400),
    )
    single: bool = key(False, "Deliver all messages to the reader that came first.")
    duplicates: bool = key(
        False, "Confirm and drop a message whose message-id the same user has sent within the last two minutes."
    )


@attrs.frozen
class Mtl(RouterLimits):
    """The MTL wire: a control flow in JSON and binary data flows over ZeroMQ, RFC 11."""

    # The largest header must fit, and the memory must hold a few of the largest.
    max_message: int = max_message_key(16 * 1024**2, within=(131_072, 1024**3))
    enabled: bool = key(True, "Enables the wire.")
    endpoint: str = key(
        "tcp://127.0.0.1:5975",
        'Endpoint of the control flow, in ZeroMQ\'s form: "tcp://ADDRESS:PORT", "tcp://[IPV6]:PORT", "tcp://*:PORT" '
        'or "ipc://PATH". Port 0 is any free one. "systemd:domain=INET:name=mtl" is a socket that systemd passes to '
        "the daemon; it serves both flows.",
        check=key_checks.zmq_listens,
    )
    data_port: int | None = key(
        None,
        "Port of data flows, at the same address. By default the next one, or a free one where the endpoint's is. "
        "The endpoint's own port is one socket for both; ipc and systemd always use one. 0 is any free one.",
        example=5976,
    )
    data_endpoint: str | None = key(
        None,
        "Endpoint that clients receive for their data flows, where it is not their host with that port.",
        check=_data_endpoint,
        example="tcp://broker.example.net:5976",
    )
    plain: bool = key(
        False,
        "Offer PLAIN on unencrypted connections too. It is always offered over ipc, on loopback, and with a secret "
        "key.",
        reload=True,
    )
    secret_key: str | None = curve_key(
        "The broker's secret key, which `brokerkeys` makes: then clients must have keys too, and everything is "
        'encrypted. Keys that the users file does not have are those of the user "anonymous".',
    )
    secret_key_file: str | None = curve_key_file()
    hosts: tuple[str, ...] = key(
        ("/",),
        "Virtual hosts. The first one shares the registry and the topics of the other wires: it stays until a "
        'restart. It is the listener "mtl" of the users file, each other one "mtl HOST".',
        check=_hosts,
        reload=True,
    )
    # A shorter one would send Pings before clients can answer; a longer one would detect nothing in time.
    heartbeat: float = seconds_key(
        5.0,
        "Silence after which the broker sends a Ping on a data flow; after three times that the flow ends.",
        within=(0.5, 3_600),
    )
    # A client uses its lease at once, but it may have to connect first.
    lease: float = seconds_key(30.0, "Time within which a data lease must be used.", within=(1, 3_600))
    window: int = key(
        100,
        "Unconfirmed Contents of a reader that requests no other number.",
        within=(1, 1_000),
        reload=True,
    )
    window_bytes: int = bytes_key(
        4 * 1024**2,
        "Size of the unconfirmed Contents of a reader; one Content is always permitted.",
        within=(65_536, 1024**3),
    )
    sessions: int = key(
        10_000,
        "Control sessions. The least recently used one is dropped, and its client must begin again.",
        within=(1, 1_000_000),
        reload=True,
    )
    flows: int = key(1_000, "Data flows of one user.", within=(1, 1_000_000), reload=True)
    high_water: int = high_water_key(4_000, "refused")
    queue_store: str | None = key(
        None,
        "Database of durable queues, if they are to outlast this machine: PostgreSQL from version 13 on, in place of"
        ' SQLite in the state directory. Options of libpq, such as sslmode, may follow a "?".',
        check=_queue_store,
        example="postgresql://elkobroker@db.example.net/elkobroker?sslmode=verify-full",
    )
    queue_store_password: str | None = key(
        None,
        "Password for it. Without one, libpq's password file is asked (PGPASSFILE).",
        secret=True,
        example="change me",
    )
    queue_store_password_file: str | None = key(
        None,
        "File with that password on its only line, relative to this file.",
        holds="queue_store_password",
        example="postgresql.password",
    )
    queues: tuple[MtlQueue, ...] = key((), reload=True)

    @property
    def place(self) -> ZEndpoint:
        """The address of the control flow. Raises `BadEndpoint`."""
        return endpoint.parse_zmq(self.endpoint)

    @property
    def data_place(self) -> ZEndpoint | None:
        """The address of the data flow, None if one socket carries both. Raises `BadEndpoint`."""
        where = self.place
        if where.port is None:
            return None
        port = self.data_port
        if port is None:
            port = where.port + 1 if where.port else 0
        elif port == where.port != 0:
            return None
        return attrs.evolve(where, port=port)

    @property
    def curve(self) -> bool:
        """True if connections use CURVE."""
        return self.secret_key is not None or self.secret_key_file is not None

    def normal(self) -> Mtl:
        """Return the values with the password of the URL of the queue store apart."""
        if self.queue_store is None:
            return self
        store, inside = split_password(self.queue_store)
        password = self.queue_store_password if inside is None else inside
        return attrs.evolve(self, queue_store=store, queue_store_password=password)

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield a port of data flows that cannot be, and values that contradict each other."""
        try:
            where = self.place
        except BadEndpoint:
            pass  # it has its own problem
        else:
            yield from self._data_port(here, where)
        if self.queue_store is None:
            for name in ("queue_store_password", "queue_store_password_file"):
                if getattr(self, name) is not None:
                    yield Problem(f"{here}.{name}", "has no effect without queue_store")

    def _data_port(self, here: str, where: ZEndpoint) -> Iterator[Problem]:
        if self.data_port is not None:
            if where.port is None:
                kind = "a unix socket" if where.kind == "ipc" else "systemd's socket"
                yield Problem(f"{here}.data_port", f"has no effect, since {kind} serves both flows", f"{here}.endpoint")
            else:
                yield from key_checks.in_range(f"{here}.data_port", self.data_port, 0, 65_535)
        elif where.port == 65_535:
            yield Problem(f"{here}.data_port", "must be given, since there is no port after 65535", f"{here}.endpoint")

    def bindings(self) -> Iterator[Binding]:
        """Yield the sockets of both flows."""
        if not self.enabled:
            return
        yield Binding("mtl.endpoint", "mtl", self.place.stream)
        data = self.data_place
        if data is not None:
            yield Binding("mtl.endpoint" if self.data_port is None else "mtl.data_port", "mtl", data.stream)

    def summary(self) -> Iterator[str]:
        """Yield the lines of ``--check``."""
        if not self.enabled:
            yield "mtl: off"
            return
        where = self.place
        data = self.data_place
        parts = [f"bound to {where.shown}", f"data {'there too' if data is None else data.where}"]
        if self.data_endpoint is not None:
            parts.append(f"published as {self.data_endpoint}")
        if self.curve:
            parts.append("curve")
        parts.append(f"hosts {' '.join(self.hosts)}")
        if self.queue_store is not None:
            parts.append(f"durable queues in {self.queue_store}")
        yield f"mtl: {', '.join(parts)}; queues {len(self.queues) or 'none'}"

    def warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield the risks of ``--check``."""
        if not self.enabled:
            return
        where = self.place
        if not where.loopback:
            if self.plain and not self.curve:
                yield "mtl.plain: passwords cross the network in the clear"
            elif not self.curve:
                yield "mtl: messages cross the network in the clear; a secret_key_file would hide it"
            if where.wildcard and self.data_endpoint is not None:
                yield f"mtl.data_endpoint: every client is sent to {self.data_endpoint}, whichever way it came"
        for_all: str | None = None
        for index, queue in enumerate(self.queues):
            here = f"mtl.queues[{index}]"
            if for_all is not None:
                yield f"{here}: never counts, since {for_all} is for all"
            elif not all(pattern.strip("*") for pattern in queue.queues):
                for_all = here


SECTION = Section(
    "mtl",
    Mtl(),
    PortOption(
        "mtl-port",
        "Port of MTL on 127.0.0.1, with its data flows on the next, or 'off'; 0 takes free ones [default: 5975]",
        moved("tcp://127.0.0.1:{}", data_port=None),
    ),
)
"""The section ``[mtl]``."""
