"""Check of the addresses of a configuration: the listeners that could not be opened now.

Every address is bound by a plain socket and released. An address that is free now may be taken at the start; sockets
passed by systemd are unknown here.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from broker.app.configuration import SCHEMA
from broker.config.endpoint import Endpoint
from broker.config.schema import Config
from broker.config.validate import bindings
from broker.net.listeners import check_path_free

Trial = tuple[str, str, Callable[[ExitStack], None]]
"""The name of a listener, its address, and a function that binds it until the stack is closed, or raises OSError."""


def obstacles(config: Config) -> list[str]:
    """Return a sentence for each listener of ``config`` that cannot be bound. All are bound at the same time."""
    found = []
    with ExitStack() as bound:
        for name, where, bind in _trials(config):
            try:
                bind(bound)
            except OSError as error:
                found.append(f"{name}: cannot listen on {where}: {error.strerror or error}")
    return found


def _trials(config: Config) -> Iterator[Trial]:
    for binding in bindings(config, SCHEMA):
        where = binding.where
        if binding.datagrams:
            host, port = where.interface or "0.0.0.0", where.port or 0
            yield binding.title, f"udp {where.where}", partial(_inet, socket.SOCK_DGRAM, host, port)
        else:
            yield _stream(binding.title, where)


def _stream(name: str, where: Endpoint) -> Trial:
    if where.kind == "systemd":
        return name, where.where, lambda bound: None
    if where.path is not None:
        return name, where.where, partial(_unix, where.path)
    return name, where.where, partial(_inet, socket.SOCK_STREAM, where.interface or "0.0.0.0", where.port or 0)


def _inet(kind: socket.SocketKind, host: str, port: int, bound: ExitStack) -> None:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
    opened = bound.enter_context(socket.socket(family, kind))
    if kind == socket.SOCK_STREAM:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the listeners do
    opened.bind(address)
    if kind == socket.SOCK_STREAM:
        opened.listen()


def _unix(path: str, bound: ExitStack) -> None:
    if path.startswith("\0"):
        bound.enter_context(socket.socket(socket.AF_UNIX)).bind(path)
        return
    check_path_free(path)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
