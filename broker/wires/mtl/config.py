"""The configuration of MTL as frozen values, with their defaults."""

from __future__ import annotations

from typing import Literal

import attrs

from broker.net.interfaces.limits import RouterLimits


@attrs.frozen
class MtlRule:
    """What some users may do in some virtual hosts. The first rule whose ``users`` match counts."""

    users: tuple[str, ...] = ("*",)
    """Shell patterns of user names; somebody who did not have to say a name has the empty one."""
    hosts: tuple[str, ...] = ("*",)
    """Virtual hosts that they may open, as shell patterns."""
    read: tuple[str, ...] = ()
    """What they may read, as PROFILE:RESOURCE: exact, or a prefix that ends with ``*``; ``{user}`` stands for the name
    of the user."""
    write: tuple[str, ...] = ()
    """What they may write to; as ``read``."""
    offer: tuple[str, ...] = ()
    """Names of services that they may offer, as shell patterns."""


@attrs.frozen
class MtlQueue:
    """How some queues of MTL behave; the first entry that matches counts. Sizes in bytes, times in seconds."""

    queues: tuple[str, ...] = ("*",)
    """Shell patterns of names."""
    durable: bool = False
    """Keep the messages over a restart: they are confirmed when they are on the disk."""
    messages: int = 100_000
    """That may be in one queue; further ones are refused for now."""
    size: int = 64 * 1024 * 1024
    """Of all messages in one queue."""
    deliveries: int = 20
    """How often a message is given out, before it counts as poison."""
    dead_letters: tuple[Literal["rejected", "deliveries", "expired"], ...] = ("deliveries",)
    """What is kept in a queue of the same name with ``.dead``: messages that were rejected, given out too often, or
    that waited too long. Others are gone."""
    ttl: float = 0.0
    """Time that a message may wait, if it does not say so itself; 0: for ever."""
    expires: float = 300.0
    """Time after which a queue that is empty and unused is gone; 0: never."""
    single: bool = False
    """Give all messages to the reader that came first."""
    duplicates: bool = False
    """Confirm and drop a message whose message-id the same user has sent within the last two minutes."""


@attrs.frozen
class Mtl(RouterLimits):
    """The MTL wire: a control flow in JSON and binary data flows, over ZeroMQ. Sizes in bytes, times in seconds."""

    enabled: bool = True
    endpoint: str = "tcp://127.0.0.1:5975"
    """Of the control flow: ``tcp://ADDRESS:PORT``, ``tcp://*:PORT``, ``ipc://PATH`` or ``systemd:...``; port 0 takes a
    free one."""
    data_port: int | None = None
    """Of the data flows, at the same address. None: the next one, or a free one where the endpoint's is; 0: a free one.
    The endpoint's own number, and any ipc or systemd endpoint: one socket for both."""
    data_endpoint: str | None = None
    """What clients are told to connect their data flows to, where it is not the host that they know and that port."""
    auth: Literal["open", "sasl"] | None = None
    """None: sasl where there are users or a secret key, else open on loopback and ipc; elsewhere it must be said."""
    users: str | None = None
    """A file with the users and what is stored of their passwords. Relative to the configuration file; reading that
    makes it absolute."""
    plain: bool = False
    """Offer PLAIN to whom the network can overhear, too."""
    anonymous: bool = False
    """Offer ANONYMOUS: anybody is let in, as a user with the empty name."""
    secret_key: str | None = attrs.field(default=None, repr=False)
    """The broker's CURVE secret key, as for mc0. With it, only CURVE clients are let in, and the name of a key is a
    user's."""
    secret_key_file: str | None = None
    """A file whose first word is ``secret_key`` instead."""
    client_keys: str | None = None
    """A directory with the public keys of clients, one NAME.public each. Relative to the configuration file; reading
    that makes it absolute."""
    any_key: bool = False
    """Let any client key in, to authenticate by SASL. Must be said where there are no ``client_keys``."""
    hosts: tuple[str, ...] = ("/",)
    """The virtual hosts. The first one is where the registry and the topics of the other wires are."""
    heartbeat: float = 5.0
    """Silence of a data flow after which it is asked whether it is there; after three times that it is over."""
    lease: float = 30.0
    """Time in which a data lease must be used."""
    window: int = 100
    """Contents that a reader may have unconfirmed, if it does not ask for another number."""
    most_window: int = 1_000
    """A reader that asks for more gets this."""
    window_bytes: int = 4 * 1024 * 1024
    """Of Contents that a reader may have unconfirmed; one Content it may always have."""
    sessions: int = 10_000
    """Control sessions. The one that was used least recently is forgotten, and its client must begin again."""
    flows: int = 1_000
    """Data flows of one user."""
    high_water: int = 4_000
    """Messages that may wait for one peer; further ones for it are refused. A reader that confirms has
    ``most_window`` of them at most; the rest is for bursts to readers that do not."""
    rules: tuple[MtlRule, ...] = ()
    """None: everybody who was let in may do everything in all hosts, but use the broker's own names."""
    queues: tuple[MtlQueue, ...] = ()
    """None: every queue is in memory, with the limits above."""
