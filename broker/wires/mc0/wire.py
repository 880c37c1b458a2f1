"""mc0 as a wire of the broker."""

from __future__ import annotations

from broker.wires.interface import Wire
from broker.wires.mc0.open import open_mc0
from broker.wires.mc0.section import SECTION

WIRE = Wire(SECTION, lambda config: config.enabled, open_mc0)
"""The Marionette Collective protocol over ZeroMQ."""
