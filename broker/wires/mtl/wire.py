"""MTL as a wire of the broker."""

from __future__ import annotations

from broker.wires.interface import Wire
from broker.wires.mtl.open import open_mtl
from broker.wires.mtl.section import SECTION

WIRE = Wire(SECTION, lambda config: config.enabled, open_mtl)
"""The Message Transport Layer, RFC 11 of ZeroMQ."""
