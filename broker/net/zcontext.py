"""What ZeroMQ sockets are opened in and how: libzmq's context, and the options of a socket."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import attrs
import zmq
from txzmq import ZmqFactory

LINGER = 100
"""Milliseconds for which the last answers may still go out when the broker stops; it stands still meanwhile."""

SOCKETS = 4_096
"""Sockets that libzmq lets the process have: a few for each wire, those of probes, and those that it has not quite
closed yet. It costs eight bytes for each."""

KEEPALIVE_IDLE = 60
"""Seconds of silence after which the kernel asks whether the other side is still there."""

KEEPALIVE_INTERVAL = 15
KEEPALIVE_COUNT = 4
"""So a peer that vanished without a word is known to be gone after two minutes."""

BACKLOG = 1_024
"""Connections that may wait for being accepted, as for the other listeners."""


@attrs.frozen
class Options:
    """How a socket behaves.

    ``high_water`` is how many messages may wait for one peer, or from it; ``max_message`` the bytes of one frame.
    ``handover`` lets a new connection take an identity over from an old one. ``secret_key`` (Z85) makes it a CURVE
    server; ``domain`` names its rules at the ZAP handler, ``handshake`` is the time that a handshake may take, in
    seconds. ``linger`` is how long what was sent may still go out after a close, in milliseconds. ``identified`` says
    that messages begin with the identity of their peer: those of a ROUTER do.
    """

    kind: int = zmq.ROUTER
    high_water: int = 1_000
    max_message: int = 16 * 1024 * 1024
    handover: bool = False
    secret_key: str | None = attrs.field(default=None, repr=False)
    domain: str = ""
    handshake: float = 30.0
    linger: int = LINGER

    @property
    def identified(self) -> bool:
        """Whether messages begin with an identity."""
        return self.kind == zmq.ROUTER


class ZContext:
    """libzmq's context, with the one thread that does its input and output. Made when something is to be opened."""

    def __init__(self, reactor: Any) -> None:
        # libzmq numbers peers that have no identity from rand() on, which nobody seeds; and ends the process when one
        # of them comes with a number before it was given.
        ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4), "little"))
        self.factory = ZmqFactory()
        self.factory.reactor = reactor
        self.factory.context.set(zmq.MAX_SOCKETS, SOCKETS)

    def close(self) -> None:
        """Close all sockets. Waits `LINGER` at most for what is still to be sent."""
        if self.factory.context is not None:
            self.factory.shutdown()


def configure(opened: zmq.Socket[bytes], options: Options) -> None:
    """Set a socket up so, before it is bound or connected."""
    set_option = opened.set
    set_option(zmq.LINGER, options.linger)  # over txzmq's, which is the same for all
    set_option(zmq.MAXMSGSIZE, options.max_message)
    set_option(zmq.HANDSHAKE_IVL, int(options.handshake * 1000))
    set_option(zmq.BACKLOG, BACKLOG)
    set_option(zmq.TCP_KEEPALIVE, 1)
    set_option(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE)
    set_option(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL)
    set_option(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_COUNT)
    if options.kind == zmq.ROUTER:
        set_option(zmq.ROUTER_MANDATORY, 1)
        set_option(zmq.ROUTER_HANDOVER, int(options.handover))
    if options.domain:
        set_option(zmq.ZAP_DOMAIN, options.domain.encode())
        set_option(zmq.ZAP_ENFORCE_DOMAIN, 1)  # or everybody comes in while nobody answers
    if options.secret_key is not None:
        set_option(zmq.CURVE_SERVER, 1)
        set_option(zmq.CURVE_SECRETKEY, options.secret_key.encode())
