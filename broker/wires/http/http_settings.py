"""The section ``[http]`` of the configuration: keys, checks, the socket, and the lines of ``--check``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

import attrs

from broker.config import key_checks
from broker.config.endpoint import Endpoint, parse
from broker.config.key import Binding, PortOption, Resolves, Section, Settings, bytes_key, key, moved
from broker.config.key_checks import Problem
from broker.net.connection_limits import connections_key, connections_per_address_key, rate_key

_HOST = re.compile(r"\*|[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


def _hosts(here: str, hosts: tuple[str, ...]) -> Iterator[Problem]:
    for index, host in enumerate(hosts):
        if not _HOST.fullmatch(host):
            yield Problem(f"{here}[{index}]", f'{host!r} is no host name in lower case, nor "*"')


@attrs.frozen
class Http(Settings):
    """HTTP: health, metrics, the API of operators, and registration for any program: `curl` offers a service, and
    finds one."""

    enabled: bool = key(True, "Enables the listener.")
    endpoint: str = key(
        "tcp:9080:interface=127.0.0.1",
        "Endpoint, as for an Elko listener: tcp:, tls:, unix: or systemd:.",
        check=key_checks.listens,
    )
    hosts: tuple[str, ...] = key(
        (),
        "Host names by which the listener is addressed, besides IP addresses and localhost: others are refused, so "
        'that no web page reaches it by a name that resolves to its address (DNS rebinding). "*" allows all.',
        check=_hosts,
        reload=True,
    )
    services: int = key(10_000, "Registered instances.", within=(0, 100_000), reload=True)
    services_per_user: int = key(
        1_000,
        "Registered instances of one user, or of one address without a user. 0 is no limit.",
        within=(0, 100_000),
        reload=True,
    )
    connections: int = connections_key(
        5_000, "Open connections. Beyond them, the one that is idle for the longest time is closed."
    )
    connections_per_address: int = connections_per_address_key(
        2_000, "Open connections of one address; further ones are refused. Loopback addresses count. 0 is no limit."
    )
    rate: float = rate_key(100.0, "New connections a second of one address, loopback excepted. 0 is no limit.")
    waiting: int = key(
        2_000,
        "Answers that wait at once: finds with `wait`, event streams and WebSockets.",
        within=(0, 1_000_000),
        reload=True,
    )
    waiting_per_address: int = key(
        1_000, "Waiting answers of one address. 0 is no limit.", within=(0, 1_000_000), reload=True
    )
    # A registration of ordinary size must fit; the account of memory bounds all bodies together.
    max_body: int = bytes_key(
        1024**2,
        "Size of the body of a request. JSON is decoded in one turn, 1 to 4 ms for each MiB.",
        within=(4_096, 64 * 1024**2),
    )

    @cached_property
    def place(self) -> Endpoint:
        """The address of the listener. Raises `BadEndpoint`."""
        return parse(self.endpoint)

    def bindings(self) -> Iterator[Binding]:
        """Yield the socket."""
        if self.enabled:
            yield Binding("http.endpoint", "http", self.place)

    def summary(self) -> Iterator[str]:
        """Yield a line."""
        if not self.enabled:
            yield "http: off"
            return
        parts = (
            f"bound to {self.place.where}",
            *([f"hosts {' '.join(self.hosts)}"] if self.hosts else []),
        )
        yield f"http: {', '.join(parts)}"

    def warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield the risks of the names and the endpoint."""
        if not self.enabled:
            return
        if "*" in self.hosts:
            yield "http.hosts: every name is accepted, so a web page can reach the listener by DNS rebinding"
        where = self.place
        if where.kind != "tls" and not where.loopback:
            yield f"http: tokens and passwords travel unencrypted to {where.where}"


SECTION = Section(
    "http",
    Http(),
    PortOption(
        "http-port",
        "Port of HTTP on 127.0.0.1, or 'off'; 0 takes a free one [default: 9080]",
        moved("tcp:{}:interface=127.0.0.1"),
    ),
)
"""The section ``[http]``."""
