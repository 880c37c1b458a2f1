"""The section ``[mc0]`` of the configuration: keys, checks, the socket, and the lines of ``--check``."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from broker.config import endpoint, key_checks
from broker.config.endpoint import ZEndpoint
from broker.config.key import Binding, PortOption, Section, curve_key, curve_key_file, key, moved
from broker.net.connection_limits import RouterLimits


@attrs.frozen
class Mc0(RouterLimits):
    """The mc0 wire: publish and subscribe over ZeroMQ, the protocol of Marionette Collective's connector."""

    enabled: bool = key(True, "Enables the wire.")
    endpoint: str = key(
        "tcp://127.0.0.1:61616",
        'Endpoint, in ZeroMQ\'s form: "tcp://ADDRESS:PORT", "tcp://[IPV6]:PORT", "tcp://*:PORT" or "ipc://PATH". Port'
        ' 0 is any free one. "systemd:domain=INET:name=mc0" is a socket that systemd passes to the daemon; also '
        "INET6, UNIX; also index=N.",
        check=key_checks.zmq_listens,
    )
    secret_key: str | None = curve_key(
        "The broker's secret key, which `brokerkeys` makes: 40 characters. With it, all clients must have keys, "
        "which the users file has, and everything is encrypted. Clients need the corresponding public key.",
    )
    secret_key_file: str | None = curve_key_file()
    sessions: int = key(10_000, "Sessions of clients.", within=(1, 1_000_000), reload=True)
    subscriptions: int = key(1_000, "Topics that one session may be subscribed to.", within=(0, 100_000), reload=True)

    @property
    def place(self) -> ZEndpoint:
        """The address of the ROUTER. Raises `BadEndpoint`."""
        return endpoint.parse_zmq(self.endpoint)

    def bindings(self) -> Iterator[Binding]:
        """Yield the socket."""
        if self.enabled:
            yield Binding("mc0.endpoint", "mc0", self.place.stream)

    def summary(self) -> Iterator[str]:
        """Yield a line."""
        if not self.enabled:
            yield "mc0: off"
            return
        yield f"mc0: bound to {self.place.shown}{', curve' if self.secret_key is not None else ''}"


SECTION = Section(
    "mc0",
    Mc0(),
    PortOption(
        "mc0-port",
        "Port of mc0 on 127.0.0.1, or 'off'; 0 takes a free one [default: 61616]",
        moved("tcp://127.0.0.1:{}"),
    ),
)
"""The section ``[mc0]``."""
