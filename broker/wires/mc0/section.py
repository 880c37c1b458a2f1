"""The section ``[mc0]`` of the configuration: its checks, summary and warnings, and the keys that a reload changes.

docs/configuration.md describes the keys; `broker.wires.mc0.validation` checks their values.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from broker.config import files, zmq_endpoint
from broker.config.files import Named as Files
from broker.config.section import Binding, PortOption, Resolves, Section
from broker.config.summary import zmq_bound
from broker.wires.mc0.config import Mc0
from broker.wires.mc0.validation import effective_mc0_auth, mc0_place, mc0_problems


def _bindings(mc0: Mc0) -> Iterator[Binding]:
    where = mc0_place(mc0)
    if mc0.enabled and where is not None:
        yield Binding("mc0.endpoint", "mc0", where.stream)


def _summary(mc0: Mc0) -> Iterator[str]:
    if not mc0.enabled:
        yield "mc0: off"
        return
    where = zmq_endpoint.parse(mc0.endpoint)
    parts = [f"bound to {zmq_bound(where)}", f"auth {effective_mc0_auth(mc0)}"]
    if mc0.client_keys is not None:
        parts.append(f"client keys {mc0.client_keys}")
    elif mc0.any_key:
        parts.append("client keys any")
    parts.append(f"rules {len(mc0.rules) or 'none'}")
    yield f"mc0: {', '.join(parts)}"


def _warnings(mc0: Mc0, resolves: Resolves) -> Iterator[str]:
    if not mc0.enabled:
        return
    where = zmq_endpoint.parse(mc0.endpoint)
    unkeyed = effective_mc0_auth(mc0) == "open"
    if unkeyed and not where.loopback:
        what = "do what mc0.rules allow to peers without a key" if mc0.rules else "read and write every topic"
        yield f"mc0: open: any client that reaches {where.where} may {what}"
    if mc0.any_key:
        yield "mc0.any_key: any client key is allowed, also one that was just made"
    if mc0.client_keys is not None and not _has_keys(mc0.client_keys):
        yield f"mc0.client_keys: {mc0.client_keys} has no file NAME{files.PUBLIC} yet: no client can connect"
    yield from _rule_warnings(mc0, unkeyed)


def _has_keys(directory: str) -> bool:
    try:
        return files.has_public_keys(directory)
    except files.BadFile:
        return False


def _rule_warnings(mc0: Mc0, unkeyed: bool) -> Iterator[str]:
    for_all: str | None = None
    for index, rule in enumerate(mc0.rules):
        here = f"mc0.rules[{index}]"
        if for_all is not None:
            yield f"{here}: never counts, since {for_all} matches every client"
        elif not all(pattern.strip("*") for pattern in rule.keys):
            # A pattern of asterisks matches every name, so that no later rule is ever reached.
            for_all = here
        elif unkeyed:
            yield f"{here}: never counts, since no client has a key where auth is open"


def _read(mc0: Mc0, named: Files) -> Mc0:
    key = named.secret("mc0.secret_key_file", mc0.secret_key, mc0.secret_key_file, files.curve_secret)
    return attrs.evolve(mc0, secret_key=key, client_keys=named.absolute(mc0.client_keys))


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
    _warnings,
    reloadable=(
        "handshake",
        "stalled_after",
        "connections",
        "connections_per_address",
        "high_water",
        "max_message",
        "sessions",
        "subscriptions",
        "rules",
    ),
    read=_read,
    wants_users=lambda mc0: ["mc0.auth"] if mc0.enabled and mc0.auth == "users" else [],
    option=PortOption("mc0-port", "Port of mc0 on 127.0.0.1, or 'off'; 0 takes a free one [default: 61616]", _port),
    example=(Path(__file__).with_name("example.toml")).read_text,
)
"""The section ``[mc0]``."""
