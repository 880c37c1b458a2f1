"""The configuration of mc0 as frozen values, with their defaults."""

from __future__ import annotations

import attrs

from broker.net.interfaces.limits import RouterLimits


@attrs.frozen
class Mc0(RouterLimits):
    """The mc0 wire: publish and subscribe over ZeroMQ. Sizes in bytes, times in seconds. See docs/configuration.md."""

    enabled: bool = True
    endpoint: str = "tcp://127.0.0.1:61616"
    """``tcp://ADDRESS:PORT``, ``tcp://*:PORT``, ``ipc://PATH`` or ``systemd:...``; port 0 takes a free one."""
    secret_key: str | None = attrs.field(default=None, repr=False)
    """The broker's CURVE secret key, 40 Z85 characters. With it, all clients must have keys, and need the
    corresponding public key."""
    secret_key_file: str | None = None
    """A file whose first word is the ``secret_key``."""
    sessions: int = 10_000
    """Sessions at a time."""
    subscriptions: int = 1_000
    """Topics to which one session may be subscribed."""
