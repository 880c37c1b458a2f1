"""Values of both flows for tests: keys of the section and bounds, by their names."""

from __future__ import annotations

from typing import Any

import attrs

from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.sessions.flow_context import FlowBounds

_BOUNDS = attrs.fields_dict(FlowBounds)


@attrs.frozen
class FlowValues:
    """The section, and the bounds that no key sets."""

    config: Mtl
    bounds: FlowBounds

    @property
    def patience(self) -> float:
        """Seconds without a frame after which a data peer's flows end."""
        return self.config.heartbeat * self.bounds.dead_after


def flow_values(**given: Any) -> FlowValues:
    """Return the default values with those that are given, keys and bounds alike."""
    bounds = {name: value for name, value in given.items() if name in _BOUNDS}
    return FlowValues(Mtl(**{name: value for name, value in given.items() if name not in bounds}), FlowBounds(**bounds))
