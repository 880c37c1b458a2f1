"""The configuration of MTL as frozen values, with their defaults."""

from __future__ import annotations

from typing import Literal

import attrs

from broker.net.interfaces.limits import RouterLimits


@attrs.frozen
class MtlQueue:
    """Settings of some queues; the first entry that matches applies. Sizes in bytes, times in seconds."""

    queues: tuple[str, ...] = ("*",)
    """Shell patterns of the names of queues."""
    durable: bool = False
    """Messages outlast a restart: they are confirmed when they are on the disk."""
    messages: int = 100_000
    """Messages in one queue; further ones are refused for now."""
    size: int | None = None
    """Size of all messages in one queue. None: 64 MiB, of which the producers of one address fill as much as
    ``broker.memory_per_address`` allows unless they have authenticated."""
    deliveries: int = 20
    """Deliveries of a message, after which it counts as poison."""
    dead_letters: tuple[Literal["rejected", "deliveries", "expired"], ...] = ("deliveries",)
    """Reasons for which messages become dead letters, in a queue of the same name with ``.dead``: rejected, delivered
    too often, or expired. Others are discarded."""
    ttl: float = 0.0
    """Time to live of a message without its own; 0: unlimited."""
    expires: float = 300.0
    """Time after which an empty, unused queue is removed; 0: never."""
    single: bool = False
    """Give all messages to the first reader (single active consumer)."""
    duplicates: bool = False
    """Deduplicate: confirm and drop a message whose message-id the same user sent within the last two minutes."""


@attrs.frozen
class Mtl(RouterLimits):
    """The MTL wire: a control flow in JSON and binary data flows, over ZeroMQ. Sizes in bytes, times in seconds."""

    enabled: bool = True
    endpoint: str = "tcp://127.0.0.1:5975"
    """Endpoint of the control flow: ``tcp://ADDRESS:PORT``, ``tcp://*:PORT``, ``ipc://PATH`` or ``systemd:...``; port 0
    takes a free one."""
    data_port: int | None = None
    """Port of the data flow, at the same address. None: the next one, or a free one if the endpoint has port 0; 0: a
    free one. The port of the endpoint itself, and any ipc or systemd endpoint: one socket carries both flows."""
    data_endpoint: str | None = None
    """Endpoint of the data flow for clients, if it is not the host that they are connected to with that port."""
    plain: bool = False
    """Offer PLAIN on connections that third parties can read, too."""
    secret_key: str | None = attrs.field(default=None, repr=False)
    """The broker's CURVE secret key, as for mc0. With it, only CURVE clients are let in."""
    secret_key_file: str | None = None
    """A file whose first word is ``secret_key`` instead."""
    hosts: tuple[str, ...] = ("/",)
    """The virtual hosts. The first one has the registry and the topics of the other wires, and is the listener ``mtl``
    of the users file; each other one is ``mtl HOST``."""
    heartbeat: float = 5.0
    """Silence of a data flow after which it is sent a Ping; after three times that, it ends."""
    lease: float = 30.0
    """Time within which a data lease must be used."""
    window: int = 100
    """Unconfirmed Contents of a reader that asks for no other number."""
    most_window: int = 1_000
    """Most unconfirmed Contents that a reader may ask for."""
    window_bytes: int = 4 * 1024 * 1024
    """Size of the unconfirmed Contents of a reader; one Content is always allowed."""
    sessions: int = 10_000
    """Control sessions. Beyond it, the least recently used one ends, and its client must open another."""
    flows: int = 1_000
    """Data flows of one user."""
    high_water: int = 4_000
    """Messages that may wait for one peer; further ones for it are refused. A reader that confirms has
    ``most_window`` of them at most; the rest is for bursts to readers that do not."""
    queue_store: str | None = None
    """URL of the PostgreSQL database that has the messages of durable queues, ``postgresql://USER@HOST/DATABASE``. A
    password in it is moved to ``queue_store_password`` by the reading. None: SQLite in the state directory."""
    queue_store_password: str | None = attrs.field(default=None, repr=False)
    """Password of that database. None: that of libpq's password file (PGPASSFILE), if any."""
    queue_store_password_file: str | None = None
    """A file that has ``queue_store_password`` on its only line instead."""
    queues: tuple[MtlQueue, ...] = ()
    """None: every queue is in memory, with the defaults of `MtlQueue`."""
