"""The configuration as frozen values. Each default stands here, and nowhere else in the code."""

from __future__ import annotations

from typing import Literal

import attrs

from broker.net.interfaces.limits import RouterLimits
from broker.wires.elko.transports.limits import TransportLimits

Role = Literal["client", "admin"]

DirectorRole = Literal["user", "provider", "admin"]


@attrs.frozen
class Limits(TransportLimits):
    """Those of a listener of the broker."""

    waits: int = 1_000
    """Finds that one peer may have waiting or monitoring."""
    services: int = 1_000
    """Services that one peer may offer."""


@attrs.frozen
class DirectorLimits(TransportLimits):
    """Those of a listener of the director."""

    watches: int = 1_000
    """Contexts and users that one administrator may watch."""
    reservations: int = 100
    """Reservations that one connection may have whose users have not come yet, unless it is a Context Server's."""


@attrs.frozen
class ElkoListener:
    """One place where peers of an Elko protocol connect."""

    name: str = "main"
    endpoint: str = "tcp:9000:interface=127.0.0.1"
    """``tcp:``, ``unix:``, ``tls:`` or ``systemd:`` endpoint string."""
    transport: Literal["tcp", "websocket", "http", "rtcp"] = "tcp"
    """How messages are carried: as they are, in WebSocket frames, by HTTP requests, or in sessions of RTCP."""
    path: str | None = None
    """Path of the WebSocket, or the root of the paths of HTTP; None: ``/``."""
    origins: tuple[str, ...] = ()
    """Web pages that may connect (``https://HOST[:PORT]``), where the transport is for browsers too; ``*``: all."""
    auth: Literal["open", "password"] | None = None
    """None: open on loopback and unix sockets; elsewhere it must be said."""
    code: str | None = attrs.field(default=None, repr=False)
    """The password of a ``password`` listener."""
    code_file: str | None = None
    """A file that holds ``code`` instead, relative to the configuration file; reading it fills ``code``."""
    allow_before_auth: bool = False
    """Serve ping, debug and find before `auth`, as the original does."""
    publish: str | None = None
    """The ``host:port`` told to peers; by default the bound one."""
    label: str | None = None


@attrs.frozen
class Listener(ElkoListener):
    """One where the broker's peers do."""

    allow: tuple[Role, ...] = ("client", "admin")
    offer: tuple[str, ...] | None = None
    """Patterns of service names that may be offered; None: all on a password, loopback or unix listener, else none."""
    limits: Limits = Limits()


@attrs.frozen
class DirectorListener(ElkoListener):
    """One where the director's peers do."""

    endpoint: str = "tcp:9010:interface=127.0.0.1"
    """As the broker's."""
    allow: tuple[DirectorRole, ...] = ("user", "provider", "admin")
    limits: DirectorLimits = DirectorLimits()


@attrs.frozen
class Broker:
    """The daemon itself."""

    service: str | None = None
    """Suffix of the broker's own service names: ``broker-client-SUFFIX``."""
    state: str | None = None
    """State directory, where neither the environment nor the command line names one."""
    grace: float = 60.0
    """Seconds for which finds are answered from what was known before a restart. Real servers retry every 15 s."""
    diagnostics: bool = True
    """Tell peers what was wrong with what they sent."""
    strict_listeners: bool = False
    """Do not start where any listener cannot be opened; else all but the first Elko listener may be opened later."""


@attrs.frozen
class Log:
    """What is logged, and how."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warn", "error"] = "info"


@attrs.frozen
class Console:
    """The operators' console. Elsewhere than on loopback it needs a password."""

    enabled: bool = True
    endpoint: str = "tcp:9001:interface=127.0.0.1"
    """As a listener's."""
    password: str | None = attrs.field(default=None, repr=False)
    """What `auth` must say; None: nothing, anybody who connects is an administrator."""
    password_file: str | None = None
    """A file that holds ``password`` instead, as ``code_file`` does for a listener."""


@attrs.frozen
class LauncherEntry:
    """A program that administrators may start."""

    name: str
    script: str
    initial: bool = False
    on: bool = False


@attrs.frozen
class Launchers:
    """The launcher table, and what of it is started with the broker."""

    start: Literal["initial", "recover", "restart"] = "initial"
    """``initial``: those with ``initial`` or switched on; ``recover`` and ``restart``: those switched on."""
    table: tuple[LauncherEntry, ...] = ()


@attrs.frozen
class Elko:
    """The Elko Broker wire."""

    listeners: tuple[Listener, ...] = (Listener(),)


@attrs.frozen
class Director:
    """The Elko Director: it places users into contexts on a farm of Context Servers. Times in seconds."""

    enabled: bool = True
    """Whether there is one. Without the table ``director`` there is none: servers that find one in the registry
    connect to it, so that a farm which has its own would be changed."""
    service: str | None = None
    """Suffix of its service names: ``director-provider-SUFFIX``; None: that of the broker."""
    providers: int = 10_000
    """Connections that Context Servers may have, all together."""
    load_bump: float = 0.0008
    """What placing a context on a server adds to the load that it reported, until it reports again."""
    reservation: float = 30.0
    """Time that a reservation takes up room before its user has come: as long as the servers keep it."""
    user_reservations: int = 10
    """Reservations that one user may have, for different contexts, before coming to any of them."""
    listeners: tuple[DirectorListener, ...] = (DirectorListener(),)


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


@attrs.frozen
class Dbp(RouterLimits):
    """The DBP wire: a catalogue of services over ZeroMQ, with heartbeats by UDP. Sizes in bytes, times in seconds."""

    enabled: bool = True
    endpoint: str = "tcp://127.0.0.1:5246"
    """``tcp://ADDRESS:PORT`` with an IPv4 address, ``*`` or ``localhost``: heartbeats and beacons are broadcast, which
    IPv6 does not do. Port 0 takes a free one."""
    udp_port: int | None = None
    """Where heartbeats arrive, at the same address; None: the number of the endpoint's port. 0 takes a free one."""
    auth: Literal["open"] | None = None
    """DBP has no authentication. None: open on loopback; elsewhere it must be said."""
    offer: tuple[str, ...] | None = None
    """Patterns of service names that may be registered; None: all on loopback, else none."""
    beacon: tuple[str, ...] | None = None
    """IPv4 addresses that the beacon goes to; None: 127.255.255.255 on loopback, else 255.255.255.255; empty: no
    beacon."""
    beacon_port: int = 5245
    """Where peers wait for the beacon. Nothing of the broker's may be bound to it, or they cannot."""
    check_address: bool = True
    """A heartbeat, an update or a DISCONNECT counts only from the address that registered the service."""
    interval: float = 1.0
    """Time between heartbeats, where a service names none; the broker's own too."""
    least_interval: float = 0.2
    """A service that names a shorter one gets this."""
    most_interval: float = 3_600.0
    """A service that names a longer one gets this."""
    liveness: int = 3
    """Intervals without a sign of life after which a service is gone, where it names no number."""
    fall_back: bool = True
    """Ask a service that missed a heartbeat by TCP, before it is gone."""
    probe: float = 0.0
    """Time between questions to services without a heartbeat contract; 0: they are never asked. The original broker
    and its services abort when two requests overlap."""
    services: int = 10_000
    """Registered services."""
    max_message: int = 1024 * 1024
    """As every ROUTER's."""


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


@attrs.frozen
class FullLoad:
    """The load at which a provider of some services is full. The first entry whose ``services`` match counts."""

    services: tuple[str, ...]
    """Shell patterns of service names."""
    load: float
    """In the measure in which they report; above 0."""


@attrs.frozen
class Journal:
    """The metrics journal: what the broker heard of load and life, for capacity planning. Sizes in bytes, times in
    seconds."""

    enabled: bool = True
    directory: str | None = None
    """None: ``journal`` in the state directory. Relative to the configuration file; reading that makes it absolute."""
    name: str | None = None
    """What this broker is called in the journal, file names included; None: the host's name."""
    segment_bytes: int = 64 * 1024 * 1024
    """Size of a segment, before it is compressed; then it is sealed."""
    segment_seconds: float = 3_600.0
    """Time since a segment's first record; then it is sealed, whatever its size."""
    keep_seconds: float = 400 * 86_400.0
    """Sealed segments that are older are deleted. A year and a month, since some loads have yearly seasons."""
    keep_bytes: int = 20 * 1024**3
    """When there are more sealed segments than that, the oldest are deleted."""
    full_load: tuple[FullLoad, ...] = ()
    """None: no claim about capacity."""


@attrs.frozen
class Config:
    """Everything."""

    broker: Broker = Broker()
    log: Log = Log()
    elko: Elko = Elko()
    director: Director = Director(enabled=False)
    mc0: Mc0 = Mc0()
    dbp: Dbp = Dbp()
    mtl: Mtl = Mtl()
    journal: Journal = Journal()
    console: Console = Console()
    launchers: Launchers = Launchers()
