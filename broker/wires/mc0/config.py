"""The configuration of mc0 as frozen values, with their defaults."""

from __future__ import annotations

from typing import Literal

import attrs

from broker.net.interfaces.limits import RouterLimits


@attrs.frozen
class Mc0Rule:
    """Topic rights of the holders of some client keys. The first rule whose ``keys`` match applies."""

    keys: tuple[str, ...] = ("*",)
    """Shell patterns of key names (a file's name without ``.public``). A peer without a key has the empty name."""
    publish: tuple[str, ...] = ()
    """Topics: exact, or a prefix that ends with ``*``. ``{key}`` stands for the name of the peer's key."""
    subscribe: tuple[str, ...] = ()
    """Topics, in the same form as ``publish``."""


@attrs.frozen
class Mc0(RouterLimits):
    """The mc0 wire: publish and subscribe over ZeroMQ. Sizes in bytes, times in seconds. See docs/configuration.md."""

    enabled: bool = True
    endpoint: str = "tcp://127.0.0.1:61616"
    """``tcp://ADDRESS:PORT``, ``tcp://*:PORT``, ``ipc://PATH`` or ``systemd:...``; port 0 takes a free one."""
    auth: Literal["open", "curve", "users"] | None = None
    """With "users", CURVE with the keys of the users file, besides those of ``client_keys``. None:
    curve where a secret key is given, else open on loopback and ipc. Required for other endpoints."""
    secret_key: str | None = attrs.field(default=None, repr=False)
    """The broker's CURVE secret key, 40 Z85 characters. Clients need the corresponding public key."""
    secret_key_file: str | None = None
    """A file whose first word is the ``secret_key``, like ``code_file`` of a listener."""
    client_keys: str | None = None
    """A directory with the public keys of the allowed clients, one NAME.public each. Relative to the configuration
    file; reading the file makes it absolute."""
    any_key: bool = False
    """Allow any client key, as the original brokers do. Required for CURVE without ``client_keys``."""
    sessions: int = 10_000
    """Sessions at a time."""
    subscriptions: int = 1_000
    """Topics to which one session may be subscribed."""
    rules: tuple[Mc0Rule, ...] = ()
    """Topic rules. Without any, every client may use every topic, except to publish on one that begins with
    ``elkobroker.``."""
