"""DBP as a wire of the broker."""

from __future__ import annotations

from broker.net.probes import MOST
from broker.wires.dbp.config import Dbp
from broker.wires.dbp.open import open_dbp
from broker.wires.dbp.section import SECTION
from broker.wires.interface import Wire


def _descriptors(config: Dbp, every: int) -> int:
    """The file descriptors that questions to services may take: one connection each."""
    return min(MOST, every // 4)


WIRE = Wire(SECTION, lambda config: config.enabled, open_dbp, descriptors=_descriptors)
"""The Core Catalog Service over ZeroMQ, with heartbeats by UDP."""
