"""Views of the Elko Broker for operators: its connected peers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from broker.core.interfaces import IRegistry
from broker.wires.elko.sessions.broker import BrokerWiring, PeerInfo
from broker.wires.views import AnyView, Column, Row, View

COLUMNS = (
    Column("address", "Address of the peer"),
    Column("label", "Label that the peer gave"),
    Column("roles", "Roles that the peer authenticated for"),
    Column("trusted", "True if the peer is shown the secrets of services"),
    Column("waits", "Finds of the peer that wait or monitor", "finds"),
    Column("provider", "Id of the peer in the registry"),
    Column("services", "Services that it offers", "services"),
    Column("load", "Load that it reported last"),
)


def views(wiring: BrokerWiring) -> Sequence[AnyView]:
    """Return the views of the wire."""
    return [
        View(
            "elko sessions",
            "Shows the sessions, the oldest first, those of operators too. A pattern selects labels or addresses.",
            COLUMNS,
            lambda: (session.info for session in list(wiring.sessions)),
            partial(_session, wiring.registry),
            lambda info: (info.label, info.address),
        )
    ]


def _session(registry: IRegistry, info: PeerInfo) -> Row:
    about: dict[str, object] = {
        "address": info.address,
        "label": info.label,
        "roles": list(info.roles),
        "trusted": info.trusted,
        "waits": info.waits,
    }
    provider = None if info.provider is None else registry.provider(info.provider)
    if provider is not None:
        about |= {"provider": provider.id, "services": len(provider.services), "load": provider.load}
    return about
