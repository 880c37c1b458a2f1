"""Registry events: changes of the registry as JSON objects, which the broker publishes on topics of its own.

An event is an offer (``on`` true) or a withdrawal of a service, or a load. ``revision`` rises with every change of the
registry, also with changes that are not published on the same topic. No event contains credentials. The format is in
docs/protocols/mc0.md, "Watch the farm"; `broker.wires.common.registry_topics` publishes the events.
"""

from __future__ import annotations

import msgspec

SERVICES = b"elkobroker.services"
LOAD = b"elkobroker.load"
"""Topics of the events: offers and withdrawals on the first, loads on the second."""


class ServiceChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The offer or withdrawal of a service. ``hostport`` is its address, ``provider`` the number of its provider."""

    revision: int
    on: bool
    service: str
    hostport: str
    protocol: str
    provider: int
    label: str | None = None


class LoadChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A provider reported a load: any number from 0 upwards, in a measure that the farm's servers share.

    The details are those that it reported, see `broker.core.model.LoadDetails`.
    """

    revision: int
    provider: int
    label: str
    load: float
    requests: int | None = None
    errors: int | None = None
    in_flight: int | None = None
    latency_ms: float | None = None


encode = msgspec.json.Encoder().encode
"""Encodes an event."""
