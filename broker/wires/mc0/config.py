"""The configuration of mc0 as frozen values, with their defaults."""

from __future__ import annotations

from typing import Literal

import attrs

from broker.net.interfaces.limits import RouterLimits


@attrs.frozen
class Mc0Rule:
    """What the holders of some client keys may do with topics. The first rule whose ``keys`` match counts."""

    keys: tuple[str, ...] = ("*",)
    """Shell patterns of key names (a file's name without ``.public``); a peer without a key has the empty name."""
    publish: tuple[str, ...] = ()
    """Topics: exact, or a prefix that ends with ``*``; ``{key}`` stands for the name of the peer's key."""
    subscribe: tuple[str, ...] = ()
    """As ``publish``."""


@attrs.frozen
class Mc0(RouterLimits):
    """The mc0 wire: publish and subscribe over ZeroMQ. Sizes in bytes, times in seconds."""

    enabled: bool = True
    endpoint: str = "tcp://127.0.0.1:61616"
    """``tcp://ADDRESS:PORT``, ``tcp://*:PORT``, ``ipc://PATH`` or ``systemd:...``; port 0 takes a free one."""
    auth: Literal["open", "curve"] | None = None
    """None: curve where a secret key is given, else open on loopback and ipc; elsewhere it must be said."""
    secret_key: str | None = attrs.field(default=None, repr=False)
    """The broker's CURVE secret key, 40 Z85 characters. Clients need the public key that belongs to it."""
    secret_key_file: str | None = None
    """A file whose first word is ``secret_key`` instead, as ``code_file`` is for a listener."""
    client_keys: str | None = None
    """A directory with the public keys of the clients that are let in, one NAME.public each. Relative to the
    configuration file; reading that makes it absolute."""
    any_key: bool = False
    """Let any client key in, as the originals do. Must be said where there are no ``client_keys``."""
    sessions: int = 10_000
    """Clients with a session."""
    subscriptions: int = 1_000
    """Topics that one session may be subscribed to."""
    rules: tuple[Mc0Rule, ...] = ()
    """None: everybody may use every topic; but publish on none that begins with ``elkobroker.``."""
