"""The section ``[http]`` of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from broker.config.section import Binding, PortOption, Resolves, Section
from broker.wires.http.config import Http
from broker.wires.http.validation import effective_offer, http_place, http_problems


def _bindings(http: Http) -> Iterator[Binding]:
    where = http_place(http)
    if http.enabled and where is not None:
        yield Binding("http.endpoint", "http", where)


def _summary(http: Http) -> Iterator[str]:
    where = http_place(http)
    if not http.enabled or where is None:
        yield "http: off"
        return
    parts = (
        f"bound to {where.where}",
        f"auth {http.auth or 'open'}",
        *([f"hosts {' '.join(http.hosts)}"] if http.hosts else []),
        f"offer {' '.join(effective_offer(http)) or 'nothing'}",
    )
    yield f"http: {', '.join(parts)}"


def _warnings(http: Http, resolves: Resolves) -> Iterator[str]:
    where = http_place(http)
    if not http.enabled or where is None:
        return
    if "*" in http.hosts:
        yield "http.hosts: every name is accepted, so a web page can reach the listener by DNS rebinding"
    if where.loopback:
        return
    if http.auth == "open":
        yield f"http: open: every program that reaches {where.where} has the rights of the anonymous user"
    if where.kind != "tls":
        yield f"http: tokens and passwords travel unencrypted to {where.where}"
    if http.offer is None:
        yield f"http.offer: nothing may be registered; by default, since {where.where} can be reached from elsewhere"


def _port(http: Http, port: int | None) -> Http:
    if port is None:
        return attrs.evolve(http, enabled=False)
    return attrs.evolve(http, enabled=True, endpoint=f"tcp:{port}:interface=127.0.0.1")


SECTION = Section(
    "http",
    Http,
    Http(),
    http_problems,
    _bindings,
    _summary,
    _warnings,
    reloadable=(
        "hosts",
        "offer",
        "services",
        "services_per_user",
        "connections",
        "connections_per_address",
        "rate",
        "burst",
        "waiting",
        "waiting_per_address",
        "max_body",
        "request_within",
        "kept_open",
        "write_buffer",
        "stalled_after",
    ),
    option=PortOption("http-port", "Port of HTTP on 127.0.0.1, or 'off'; 0 takes a free one [default: 9080]", _port),
    example=(Path(__file__).with_name("example.toml")).read_text,
)
"""The section ``[http]``."""
