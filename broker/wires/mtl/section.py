"""The section ``[mtl]`` of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from broker.config import files, zmq_endpoint
from broker.config.files import Named as Files
from broker.config.section import Binding, PortOption, Resolves, Section
from broker.config.summary import zmq_bound
from broker.wires.mtl.config import Mtl
from broker.wires.mtl.validation import (
    mtl_curve,
    mtl_data_place,
    mtl_place,
    mtl_problems,
    split_password,
)


def _bindings(mtl: Mtl) -> Iterator[Binding]:
    where = mtl_place(mtl)
    if not mtl.enabled or where is None:
        return
    yield Binding("mtl.endpoint", "mtl", where.stream)
    data = mtl_data_place(mtl)
    if data is not None:
        yield Binding("mtl.endpoint" if mtl.data_port is None else "mtl.data_port", "mtl", data.stream)


def _summary(mtl: Mtl) -> Iterator[str]:
    if not mtl.enabled:
        yield "mtl: off"
        return
    where = zmq_endpoint.parse(mtl.endpoint)
    data = mtl_data_place(mtl)
    parts = [f"bound to {zmq_bound(where)}", f"data {'there too' if data is None else data.where}"]
    if mtl.data_endpoint is not None:
        parts.append(f"told as {mtl.data_endpoint}")
    if mtl_curve(mtl):
        parts.append("curve")
    parts.append(f"hosts {' '.join(mtl.hosts)}")
    if mtl.queue_store is not None:
        parts.append(f"durable queues in {mtl.queue_store}")
    yield f"mtl: {', '.join(parts)}; queues {len(mtl.queues) or 'none'}"


def _warnings(mtl: Mtl, resolves: Resolves) -> Iterator[str]:
    if not mtl.enabled:
        return
    where = zmq_endpoint.parse(mtl.endpoint)
    if not where.loopback:
        if mtl.plain and not mtl_curve(mtl):
            yield "mtl.plain: passwords cross the network in the clear"
        elif not mtl_curve(mtl):
            yield "mtl: what is read and written crosses the network in the clear; a secret_key_file would hide it"
        if where.wildcard and mtl.data_endpoint is not None:
            yield f"mtl.data_endpoint: every client is sent to {mtl.data_endpoint}, whichever way it came"
    for_all: str | None = None
    for index, queue in enumerate(mtl.queues):
        here = f"mtl.queues[{index}]"
        if for_all is not None:
            yield f"{here}: never counts, since {for_all} is for all"
        elif not all(pattern.strip("*") for pattern in queue.queues):
            for_all = here


def _read(mtl: Mtl, named: Files) -> Mtl:
    key = named.secret("mtl.secret_key_file", mtl.secret_key, mtl.secret_key_file, files.curve_secret)
    store, inside = (None, None) if mtl.queue_store is None else split_password(mtl.queue_store)
    password = named.secret(
        "mtl.queue_store_password_file",
        mtl.queue_store_password if inside is None else inside,
        mtl.queue_store_password_file,
    )
    return attrs.evolve(
        mtl,
        secret_key=key,
        queue_store=store,
        queue_store_password=password,
    )


def _port(mtl: Mtl, port: int | None) -> Mtl:
    if port is None:
        return attrs.evolve(mtl, enabled=False)
    return attrs.evolve(mtl, enabled=True, endpoint=f"tcp://127.0.0.1:{port}", data_port=None)


SECTION = Section(
    "mtl",
    Mtl,
    Mtl(),
    mtl_problems,
    _bindings,
    _summary,
    _warnings,
    reloadable=(
        "plain",
        "heartbeat",
        "handshake",
        "high_water",
        "max_message",
        "stalled_after",
        "connections",
        "connections_per_address",
        "sessions",
        "flows",
        "lease",
        "window",
        "most_window",
        "window_bytes",
        "hosts",
        "queues",
    ),
    read=_read,
    option=PortOption(
        "mtl-port",
        "Port of MTL on 127.0.0.1, with its data flows on the next, or 'off'; 0 takes free ones [default: 5975]",
        _port,
    ),
    example=(Path(__file__).with_name("example.toml")).read_text,
)
"""The section ``[mtl]``: values, checks, and the keys that a reload applies."""
