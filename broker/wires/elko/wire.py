"""The Elko Broker and the Elko Director as wires of the broker."""

from __future__ import annotations

from broker.wires.elko.open import OpenElko
from broker.wires.elko.open_director import OpenDirector
from broker.wires.elko.section import BROKER as BROKER_SECTION
from broker.wires.elko.section import DIRECTOR as DIRECTOR_SECTION
from broker.wires.interface import Wire

# The Elko Broker has no switch: without listeners, it still is what operators type at the console.
BROKER = Wire(BROKER_SECTION, lambda config: True, OpenElko)
"""The Elko Broker: services are offered and found."""

DIRECTOR = Wire(DIRECTOR_SECTION, lambda config: config.enabled, OpenDirector)
"""The Elko Director: users are placed into contexts."""
