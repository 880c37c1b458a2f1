"""The section ``[mc0]`` of the configuration: its checks and summary, and the keys that a reload changes.

docs/configuration.md describes the keys; `broker.wires.mc0.validation` checks their values.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from broker.config import files, zmq_endpoint
from broker.config.files import Named as Files
from broker.config.section import Binding, PortOption, Section
from broker.config.summary import zmq_bound
from broker.wires.mc0.config import Mc0
from broker.wires.mc0.validation import mc0_place, mc0_problems


def _bindings(mc0: Mc0) -> Iterator[Binding]:
    where = mc0_place(mc0)
    if mc0.enabled and where is not None:
        yield Binding("mc0.endpoint", "mc0", where.stream)


def _summary(mc0: Mc0) -> Iterator[str]:
    if not mc0.enabled:
        yield "mc0: off"
        return
    where = zmq_endpoint.parse(mc0.endpoint)
    curve = ", curve" if mc0.secret_key is not None else ""
    yield f"mc0: bound to {zmq_bound(where)}{curve}"


def _read(mc0: Mc0, named: Files) -> Mc0:
    key = named.secret("mc0.secret_key_file", mc0.secret_key, mc0.secret_key_file, files.curve_secret)
    return attrs.evolve(mc0, secret_key=key)


def _port(mc0: Mc0, port: int | None) -> Mc0:
    if port is None:
        return attrs.evolve(mc0, enabled=False)
    return attrs.evolve(mc0, enabled=True, endpoint=f"tcp://127.0.0.1:{port}")


SECTION = Section(
    "mc0",
    Mc0,
    Mc0(),
    mc0_problems,
    _bindings,
    _summary,
    reloadable=(
        "handshake",
        "stalled_after",
        "connections",
        "connections_per_address",
        "high_water",
        "max_message",
        "sessions",
        "subscriptions",
    ),
    read=_read,
    option=PortOption("mc0-port", "Port of mc0 on 127.0.0.1, or 'off'; 0 takes a free one [default: 61616]", _port),
    example=(Path(__file__).with_name("example.toml")).read_text,
)
"""The section ``[mc0]``."""
