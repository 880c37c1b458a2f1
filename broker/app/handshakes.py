"""The wiring of handshakes: one handler for all sockets of the process that ask who may come in."""

from __future__ import annotations

from typing import Any

import zmq

from broker.net.limits import Complaints
from broker.net.turns import Turns
from broker.net.zap import ENDPOINT, Gate
from broker.net.zcontext import Options, ZContext
from broker.net.zsocket import ZSocket


def open_gate(context: ZContext, complaints: Complaints, clock: Any, turns: Turns) -> tuple[Gate, ZSocket]:
    """Open the handler, before any socket that asks it. Raises OSError with nothing left open."""
    gate = Gate(complaints, clock)
    handler = ZSocket(context, Options(), turns, "zap")
    gate.serve(handler)
    try:
        handler.bind(ENDPOINT, gate.receive)
    except zmq.ZMQError as error:
        handler.shutdown()
        raise OSError(f"cannot open the handler of handshakes: {zmq.strerror(error.errno or 0)}") from None
    return gate, handler
