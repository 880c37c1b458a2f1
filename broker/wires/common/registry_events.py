"""Changes of the registry as JSON, one object for each: what the broker publishes on topics of its own.

A service that came (``on`` true) or went, and a load. ``revision`` rises with every change of the registry, also with
those that are not published on the same topic. No object has anything of how to authenticate with a service.
"""

from __future__ import annotations

import msgspec

SERVICES = b"elkobroker.services"
LOAD = b"elkobroker.load"
"""The topics."""


class ServiceChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A service came or went. ``hostport`` is where it is, ``provider`` the number of the peer that offers it."""

    revision: int
    on: bool
    service: str
    hostport: str
    protocol: str
    provider: int
    label: str | None = None


class LoadChange(msgspec.Struct, frozen=True):
    """A provider reported a load: any number from 0 upwards, in a measure that the farm's servers share."""

    revision: int
    provider: int
    label: str
    load: float


encode = msgspec.json.Encoder().encode
