"""Addresses as ``--check`` prints them."""

from __future__ import annotations

from broker.config.endpoint import Endpoint
from broker.config.zmq_endpoint import ZEndpoint


def bound(where: Endpoint) -> str:
    """Return the address of a listener of streams, with its kind where that is not TCP."""
    return f"{where.kind} {where.where}" if where.kind in ("tls", "unix") else where.where


def zmq_bound(where: ZEndpoint) -> str:
    """Return the address of a ZeroMQ listener, with its kind."""
    return where.where if where.kind == "systemd" else f"{where.kind} {where.where}"
