"""DNS as a wire of the broker."""

from __future__ import annotations

from broker.wires.dns.counters import COUNTERS
from broker.wires.dns.open import open_dns
from broker.wires.dns.section import SECTION
from broker.wires.interface import Wire

WIRE = Wire(SECTION, lambda config: config.enabled, open_dns, COUNTERS)
"""The Domain Name System: services by name, for any program."""
