"""DNS as a wire of the broker."""

from __future__ import annotations

from broker.wires.dns.config import SECTION, Dns
from broker.wires.dns.counters import COUNTERS
from broker.wires.dns.open import open_dns
from broker.wires.interface import Wire

WIRE: Wire[Dns] = Wire(SECTION, lambda dns: dns.enabled, open_dns, COUNTERS)
